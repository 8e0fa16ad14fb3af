"""What is read of versions to compare them, and the rows on which two of them are compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.pit import pit_scores
from congruence.kernels.verdict import Verdict
from congruence.tasks.scores.evaluation import (
    Columns,
    Evaluation,
    MetricValue,
    SplitSummary,
    advice_of,
    statement_of,
    verdict_of,
)
from congruence.tasks.scores.metrics.registry import ROW_WEIGHT
from congruence.tasks.scores.points import dependence_of
from congruence.tasks.sentences.findings import WrongPlace
from congruence.tasks.settings.sections import ModelVersion

_ALL = slice(None)


@dataclass(frozen=True)
class ComparedVersion:
    """What is read of an evaluation, of this process or of a run: see ``Evaluation`` for the fields.

    Versions with the same ``rows_digest`` (not "") share their rows and their reference rows: the same keys, valid
    in the same places. ``slices`` are the names of the slice columns; ``wrong_places`` those that the report names
    wrong, the largest first, None where it is not known; ``said`` is the verdict as it was logged, ``wrong`` what
    the report says is wrong, the largest fault first, ``advice`` what to do. ``is_stored`` where production stored
    the predictions: then each version may have rows of its own. ``stated`` is what predictions say of a row and
    ``levels`` are those of quantiles, see ``Evaluation``. Of a run also its id, that of its experiment, the
    ``identity`` by which it is found again, and when it ``ended``, in milliseconds since 1970. Of a look over time
    (``tasks.monitor``) also when it was ``made``, and how far its ``inputs`` are from those of the first look, in a
    sentence; "" where nobody looked.
    """

    model: ModelVersion
    split: SplitSummary
    protocol_name: str
    protocol_digest: str
    metrics: dict[str, MetricValue]
    scores: Columns = field(repr=False, compare=False)
    run_id: str = ""
    settings_digest: str = ""
    influence: Columns | None = field(default=None, repr=False, compare=False)
    influence_noise: Array | None = field(default=None, repr=False, compare=False)
    rows_digest: str = ""
    slices: tuple[str, ...] = ()
    wrong_places: tuple[WrongPlace, ...] | None = None
    said: str = ""
    wrong: tuple[str, ...] = ()
    advice: str = ""
    is_stored: bool = False
    stated: str = "all"
    levels: tuple[float, ...] = ()
    experiment: str = ""
    identity: str = ""
    ended: int = 0
    made: int = 0
    inputs: str = ""

    @classmethod
    def of(cls, evaluation: Evaluation, run_id: str = "") -> ComparedVersion:
        """What is compared of an evaluation, as its run would give it back."""
        wrong = evaluation.wrong
        return cls(
            model=evaluation.model,
            split=evaluation.split,
            protocol_name=evaluation.protocol.name,
            protocol_digest=evaluation.protocol.digest,
            metrics=evaluation.metrics,
            scores=evaluation.scores,
            run_id=run_id,
            settings_digest=evaluation.settings_digest,
            influence=evaluation.influence,
            influence_noise=evaluation.influence_noise,
            slices=evaluation.slice_names,
            said=str(evaluation.verdict),
            wrong=() if wrong is None else wrong.sentences,
            advice=advice_of(evaluation),
            stated=evaluation.stated,
            levels=evaluation.levels,
            wrong_places=None if wrong is None else wrong.named(),
        )

    @property
    def label(self) -> str:
        """``name/version``."""
        return self.model.label

    @property
    def protocol(self) -> str:
        """The protocol's name and digest."""
        return f"{self.protocol_name} ({self.protocol_digest})"

    @property
    def verdict(self) -> Verdict:
        """Not judged, no fault found, or wrong, with the largest fault."""
        after = self.said.partition(": ")[2]
        return verdict_of(self.metrics, rows=self.split.valid_rows, fault=after, reason=after)

    @property
    def is_registered(self) -> bool:
        """Whether the registry has it, so that it can be recalibrated: what production stored is no model."""
        return bool(self.model.version) and not self.is_stored

    @property
    def again(self) -> str:
        """The command that evaluates it again."""
        return f"congruence evaluate FILE --again -m {self.model.uri}"

    def shares_rows(self, other: ComparedVersion) -> bool:
        """Whether both are known to be of the same rows without looking at them."""
        return self.rows_digest != "" and self.rows_digest == other.rows_digest

    def has_rows_of(self, other: ComparedVersion) -> bool:
        """Whether both are of the same rows, by their keys where nothing else says it."""
        return self.shares_rows(other) or list(self.scores["key"]) == list(other.scores["key"])

    def shares_targets(self, other: ComparedVersion) -> bool:
        """Whether CCE of both is of the same targets, none of which is put into a version's own cells."""
        return not {self.stated, other.stated} & {"quantiles", "bins"}

    @property
    def statement(self) -> str:
        """What the predictions state, in words; see ``statement_of``."""
        return statement_of(self.stated, self.levels)

    def states_as(self, other: ComparedVersion) -> bool:
        """Whether both state quantiles at the same levels, or neither does."""
        return (self.stated == "quantiles", self.levels) == (other.stated == "quantiles", other.levels)

    @property
    def valid(self) -> Array:
        """Which rows of the split are valid, (rows,)."""
        return np.asarray(self.scores["valid"].to_numpy(bool))

    def column(self, name: str, rows: Array | slice = _ALL) -> Array:
        """A column of the scores at some rows, as numbers; NaN for what is none."""
        values = self.scores[name]
        numbers = values if values.dtype.kind in "biuf" else pd.to_numeric(values, errors="coerce")
        return np.asarray(numbers.to_numpy(np.float64)[rows])

    def weights(self, rows: Array) -> Array | None:
        """What some rows count in means; None where all count alike."""
        return self.column(ROW_WEIGHT, rows) if ROW_WEIGHT in self.scores else None

    def release(self) -> None:
        """Give back what reading brought onto this machine; it is read again where it is asked for."""
        for table in (self.scores, self.influence):
            close = getattr(table, "close", None)  # a data frame has nothing to give back
            if close is not None:
                close()


@dataclass(frozen=True)
class Pair:
    """Two versions, and which rows of their split are valid in both, (rows,)."""

    first: ComparedVersion
    second: ComparedVersion
    rows: Array = field(repr=False)

    def __contains__(self, column: object) -> bool:
        """Whether both have a column of scores."""
        return column in self.first.scores and column in self.second.scores

    def columns(self, name: str) -> tuple[Array, Array]:
        """The scores of both at the rows."""
        return self.first.column(name, self.rows), self.second.column(name, self.rows)

    def blocks(self, averaged: Iterable[str] = ()) -> DependentBlocks | None:
        """Blocks of the rows that depend on each other, by the PIT scores of both versions.

        Of means also by the differences of the columns ``averaged``.

        Raises:
            InvalidInputError: fewer than ten.
        """
        dependence = dependence_of(self.first.scores, self.rows)
        if dependence is None:
            return None

        def scores() -> Array:
            versions = [version for version in (self.first, self.second) if "pit" in version.scores]
            parts = [pit_scores(version.column("pit", self.rows)) for version in versions]
            for one, two in (self.columns(name) for name in averaged if name in self):
                parts += [(one - two)[:, None]] if np.isfinite(one - two).all() else []
            return np.hstack(parts) if parts else np.ones((int(np.count_nonzero(self.rows)), 1))

        has_targets = "target" in self.first.scores
        targets = self.first.column("target", self.rows) if has_targets else np.array([np.nan])
        whole = not np.any(targets % 1.0)  # they may be of counts: columns of scores do not say
        return dependence.blocks(scores, counts=targets if whole else None)
