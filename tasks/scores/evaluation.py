"""The result of evaluating one model version on one split: what every plot, report, log and comparison reads.

Its numbers, what is wrong with the version, and what to do with it: use it, recalibrate it, change the model, bring
more rows, or name what they share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.local_reading import LocalDistribution
from congruence.kernels.verdict import NOT_JUDGED, Verdict
from congruence.tasks.scores.metrics.metric import scored_levels
from congruence.tasks.scores.metrics.registry import ROW_WEIGHT
from congruence.tasks.sentences.calibration import WORTH_IT, CorrectionPreview, listed, percent, significant
from congruence.tasks.sentences.counts import CountFit
from congruence.tasks.sentences.findings import Segment, WrongPlace
from congruence.tasks.settings.sections import ModelVersion

if TYPE_CHECKING:
    from PIL.Image import Image

    from congruence.kernels.distributions import Distribution
    from congruence.kernels.protocol import EvaluationProtocol

_LEVELS_SHOWN = 9

INFLUENCE = ("key", "cce_squared_influence", "cce_influence")
DEPENDENT_BLOCKS = "dependent_blocks"
"""A metric: how many blocks of rows are taken as independent, where the split names groups or time."""

ROW_CORRELATION = "row_correlation"
"""A metric: correlation of rows that was found and that the split does not name; p-values are then not to be read."""

P_VALUE = "p_value"
"""A metric: the one p-value of "this version is the truth", by which the verdict is."""

PLACES_P_VALUE = "places_p_value"
"""A metric: the p-value of slices, or regions where the split has none, all of them together."""

PARTS = {
    "calibration_p_value": "calibration",
    "cce_p_value": "congruence",
    "extremes_p_value": "extremes",
    "masses_p_value": "masses",
    PLACES_P_VALUE: "places",
}
"""The metrics that are p-values of a part of the verdict, with the part's name (``kernels.verdict.WEIGHTS``)."""

PROPER = ("crps_mean", "nll_mean")
"""The proper score that orders: the first that all have."""

T = TypeVar("T", bound="Measured")


@dataclass(frozen=True)
class MetricValue:
    """One number of a version on a split, with its confidence interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its ends, where there is one."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def __str__(self) -> str:
        said = [significant(each, 4) for each in (self.value, *(self.interval or ()))]
        return said[0] if len(said) == 1 else f"{said[0]} [{said[1]}, {said[2]}]"


def finite_metrics(values: Mapping[str, float]) -> dict[str, MetricValue]:
    """Numbers without an interval, those that are not finite left out."""
    return {name: MetricValue(float(value)) for name, value in values.items() if np.isfinite(value)}


@dataclass(frozen=True)
class SplitSummary:
    """The split that was evaluated: ``rows`` in all, of which ``valid_rows`` could be.

    ``target`` names the columns that are predicted, joined by "+"; ``period`` is the first and the last date of its
    files, ``2026-03-01/2026-03-07``, where they come by date, and ``dates`` how many these are, where it is known.
    """

    name: str
    digest: str
    rows: int
    valid_rows: int
    target: str = ""
    period: str = ""
    dates: int = 0

    @property
    def since(self) -> str:
        """The first of its dates, ``2026-03-01``."""
        return self.period.partition("/")[0]

    @property
    def until(self) -> str:
        """The last one."""
        return self.period.partition("/")[2]


class Columns(Protocol):
    """A table that is read column by column: a data frame, or one that fetches each column when it is asked for."""

    def __contains__(self, name: object, /) -> bool: ...

    def __getitem__(self, name: str, /) -> pd.Series[Any]: ...


@dataclass(frozen=True)
class Evaluation:
    """One model version on one split under one protocol.

    Attributes:
        metrics: by name (``cce_mean``, ``cce_expected``, ``nll_mean``, ``ece``, ...; what each means is in
            ``tasks.scores.metrics``); finite numbers only.
        scores: one row per row of the split, in its order, with the columns of ``tasks.scores.metrics.registry`` as far
            as they exist and the split's slice columns. Invalid rows have ``valid`` False, a reason, and NaN scores.
        predictive: the predictive distributions of the valid rows, in split order.
        targets: of the valid rows, (v,) or (v, q).
        slices: one row per value of a slice column: ``slice``, ``value``, ``rows``, and a column per mean metric.
        embedding_map: principal components of the embeddings, at least two, of the valid rows that are looked at; the
            index is the row number in the split.
        thumbnails: small images for a list of row numbers of the split, for image inputs.
        texts: their beginnings, for text inputs.
        provenance: encoder, seeds, package versions, solver, certificate, settings: plain values.
        seconds: wall time by stage.
        metric_list: the metrics that were asked for, by which the evaluation is found again; by default those present.
        settings_digest: of the settings that change a number beyond split and protocol, by which the evaluation is
            found again (``tasks.settings.evaluation.settings_digest``).
        influence: one row per *reference* row with the columns ``INFLUENCE``: what it contributes, to first order, to
            the mean squared CCE and to the mean CCE (``CongruenceInfluence``); None where there is
            none.
        influence_noise: (B,), the ``noise`` of the same.
        wrong: what is wrong and where, where calibration given the input was measured.
        preview: what recalibrating would change, where something is wrong.
        features: named features of valid rows by their numbers: of all, or of those that are looked at in a long split
            (``tasks.scores.points``).
    """

    model: ModelVersion
    split: SplitSummary
    protocol: EvaluationProtocol
    metrics: dict[str, MetricValue]
    scores: pd.DataFrame = field(repr=False)
    predictive: Distribution | None = field(default=None, repr=False)
    targets: Array | None = field(default=None, repr=False)
    slices: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    embedding_map: pd.DataFrame | None = field(default=None, repr=False)
    thumbnails: Callable[[Sequence[int]], Sequence[Image]] | None = field(default=None, repr=False)
    texts: Callable[[Sequence[int]], Sequence[str]] | None = field(default=None, repr=False)
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)
    seconds: dict[str, float] = field(default_factory=dict, repr=False)
    metric_list: tuple[str, ...] = ()
    settings_digest: str = ""
    own_settings: str = ""
    influence: pd.DataFrame | None = field(default=None, repr=False)
    influence_noise: Array | None = field(default=None, repr=False)
    wrong: WhatIsWrong | None = field(default=None, repr=False)
    preview: CorrectionPreview | None = field(default=None, repr=False)
    features: pd.DataFrame | None = field(default=None, repr=False)

    @property
    def requested_metrics(self) -> tuple[str, ...]:
        """The metric list by which this evaluation is found again."""
        return tuple(sorted(self.metric_list or self.metrics))

    @property
    def seed(self) -> int:
        """Of what was drawn for it."""
        return int(self.provenance.get("seed", 0))

    @property
    def weights(self) -> Array | None:
        """What each valid row counts in means, (v,); None where all count alike."""
        scores = self.valid_scores
        return scores[ROW_WEIGHT].to_numpy(float) if ROW_WEIGHT in scores else None

    @property
    def stated(self) -> str:
        """What the predictions say of a row: "all" of a distribution, "quantiles", the masses of "bins", or "draws"."""
        if self.predictive is None or self.predictive.stated != "cells":
            return "all" if self.predictive is None else self.predictive.stated
        if self.levels:
            return "quantiles"
        base = (self.predictive.recalibration or (self.predictive, None))[0]
        return "bins" if base.quantile_levels is None else "all"

    @property
    def levels(self) -> tuple[float, ...]:
        """The levels of predicted quantiles, see ``scored_levels``; none of whole distributions."""
        levels = None if self.predictive is None else scored_levels(self.predictive)
        return () if levels is None else tuple(levels.tolist())

    @cached_property
    def count_fit(self) -> CountFit | None:
        """How predicted counts fit; None of a version that predicts anything but one count a row."""
        predictive, targets = self.predictive, self.targets
        if predictive is None or targets is None or targets.ndim != 1 or not predictive.is_discrete or len(targets) < 2:
            return None
        pit = self.valid_scores["pit"].to_numpy(float) if "pit" in self.scores else None
        return CountFit.of(targets, predictive, pit)

    @property
    def slice_names(self) -> tuple[str, ...]:
        """The slice columns."""
        return () if self.slices.empty else tuple(dict.fromkeys(self.slices["slice"].astype(str)))

    @cached_property
    def valid_scores(self) -> pd.DataFrame:
        """The scores of the valid rows; the index is the row number in the split."""
        frame = self.scores.reset_index(drop=True)
        valid = frame["valid"].to_numpy(bool)
        return frame if valid.all() else frame.loc[valid]

    @cached_property
    def verdict(self) -> Verdict:
        """Not judged, no fault found, or wrong, with the largest fault."""
        fault = "" if self.wrong is None else self.wrong.fault
        reason = str(self.provenance.get("inference", {}).get("refused", ""))
        return verdict_of(self.metrics, rows=self.split.valid_rows, fault=fault, reason=reason)

    @property
    def has_dependent_rows(self) -> bool:
        """Whether rows depend on each other, as their groups or times say or as was found."""
        return not {DEPENDENT_BLOCKS, ROW_CORRELATION}.isdisjoint(self.metrics)


def verdict_of(metrics: Mapping[str, MetricValue], *, rows: int = 0, fault: str = "", reason: str = "") -> Verdict:
    """The verdict by a version's metrics.

    Args:
        metrics: of the version, by name.
        rows: how many were tested.
        fault: the largest, in a few words, as it was read.
        reason: why no test was possible, where none was.
    """
    p_values = {part: metrics[name].value for name, part in PARTS.items() if name in metrics}
    found = Verdict.of(p_values, rows=rows, reason=reason, correlated=ROW_CORRELATION in metrics)
    return replace(found, fault=fault) if found.is_wrong else found


def metric_list_digest(names: Iterable[str]) -> str:
    """Twelve hexadecimal digits for a list of metrics, whatever its order."""
    return hashlib.sha256("\n".join(sorted(set(names))).encode()).hexdigest()[:12]


class Measured(Protocol):
    """A version with its metrics on a split and what its predictions state, see ``statement_of``."""

    @property
    def metrics(self) -> Mapping[str, MetricValue]:
        """By name."""

    @property
    def statement(self) -> str:
        """In words."""


def ranked(versions: Iterable[T]) -> list[T]:
    """Versions of one split: those that state the same together, as only their CRPS compares, the best first.

    A proper score says which predicts best, CCE which is honest. Versions whose intervals of the score overlap that of
    the best are not told apart by it, and stand in the order of their CCE; then come the others likewise, and last
    those without the score. Of those that state other things the version with the lowest CCE leads.
    """
    alike: dict[str, list[T]] = {}
    for item in versions:
        alike.setdefault(item.statement, []).append(item)
    return [item for own in sorted(alike.values(), key=lambda own: min(map(_cce, own))) for item in _ranked(own)]


def _cce(item: Measured) -> float:
    metric = item.metrics.get("cce_mean")
    return float("inf") if metric is None else metric.value


def _ranked(left: list[T]) -> list[T]:
    found = list[T]()
    name = next((each for each in PROPER if all(each in item.metrics for item in left)), "")

    def ends(item: T) -> tuple[float, float]:
        metric = item.metrics[name]
        return metric.interval or (metric.value, metric.value)

    while left and name:
        best = min(left, key=lambda item: item.metrics[name].value)
        tier = sorted((item for item in left if ends(item)[0] <= ends(best)[1]), key=_cce)
        found += tier
        left = [item for item in left if item not in tier]
    return [*found, *sorted(left, key=_cce)]


@dataclass(frozen=True)
class WhatIsWrong:
    """The reading of one version.

    Attributes:
        sentences: at most five: the fault over all rows, the places that differ, the rest.
        places: the slices, or regions where the split has none, or the single targets of vector targets, the most wrong
            first: ``place``, ``rows``, ``fault`` in words ("" where none is found), ``shift`` in predicted spreads,
            ``factor`` of the targets' spread over the predicted, ``q_value``, and for slices and regions ``pit``, what
            the PIT interpreter says. Of counts with many zeros, in the place of shift, factor and ``pit``: the sums
            ``observed`` and ``expected``, their ``ratio`` with ``ratio_low`` and ``ratio_high`` (95 %), and the shares
            ``zeros_observed``, ``zeros_expected``, ``ones_...`` and ``more_...`` (two and more). Of versions that state
            quantiles: what the widest central interval ``holds`` of the targets where ``stated`` is right, with
            ``holds_low`` and ``holds_high`` (95 %).
        method: how it was tested, in a sentence.
        region: name of the region of the inputs that is most wrong; None for vector targets.
        row: the number of its medoid in the split.
        curve: the local P-P plot there, one row.
        fault: the largest in a few words, "" where none is named.
        p_value: of the places, all of them together; None where none was read.
        segments: ranges of features in which the version is wrong in another way than elsewhere.
    """

    sentences: tuple[str, ...]
    places: pd.DataFrame = field(repr=False)
    method: str = ""
    region: str | None = None
    row: int | None = None
    curve: LocalDistribution | None = field(default=None, repr=False)
    fault: str = ""
    p_value: float | None = None
    segments: tuple[Segment, ...] = ()

    def noting(self, *notes: str) -> WhatIsWrong:
        """The same with more said of how it was tested."""
        return replace(self, method=" ".join(filter(None, [self.method, *notes])))

    def named(self) -> tuple[WrongPlace, ...]:
        """The places with a fault, the most wrong first: others may have theirs from the rows of that one."""
        table = self.places
        if table.empty:
            return ()
        faulty = table[table["fault"] != ""]
        columns = (faulty[name].tolist() for name in ("place", "rows", "fault"))
        return tuple(WrongPlace(str(place), int(rows), str(fault)) for place, rows, fault in zip(*columns, strict=True))


NAME_WHAT_ROWS_SHARE = (
    "Rows are correlated. Name in the split what they share, and evaluate again: the column that orders them (time:) "
    "or that holds those that belong together (groups:), by whose blocks p-values and intervals then go; or that says "
    "to which of a few large parts a row belongs (slices:), each of which then has its own faults."
)

Kind = Literal["use", "recalibrate", "change the model", "bring more rows", "name what rows share"]


@dataclass(frozen=True)
class Advice:
    """What to do, and why, with what it gains."""

    kind: Kind
    reason: str

    @property
    def words(self) -> str:
        """The kind, as a heading has it."""
        return self.kind.capitalize()


def advise(
    verdict: Verdict, metrics: Mapping[str, MetricValue], preview: CorrectionPreview | None = None
) -> Advice | None:
    """What helps; None where nothing contradicts a version whose skill was not measured.

    "Use" is said of a version in which no fault was found and whose CRPS is below that of the distribution of all
    targets, beyond chance. "Recalibrate" is said where that gets a score of rows that it was not fitted on down by as
    much as ``WORTH_IT`` beyond chance, or CRPS by as much while the fault that they show is found no more; and by that
    better than ignoring the input.
    """
    if verdict.state == NOT_JUDGED:
        if ROW_CORRELATION in metrics:  # more of them would say no more
            return Advice("name what rows share", NAME_WHAT_ROWS_SHARE)
        return Advice("bring more rows", f"No test was possible: {verdict.reason}.")
    skill = metrics.get("crps_skill")
    if not verdict.is_wrong:
        return None if skill is None else _of_right(skill)
    if preview is not None and preview.improves and (gain := _gain(preview)):
        then = next((row.then for row in preview.table if row.name == "CRPS"), None)
        without = metrics.get("crps_uncertainty")
        if then is None or without is None or then < without.value:
            return Advice(
                "recalibrate", f"Do not use it as it is. On rows that the correction was not fitted on, {gain}."
            )
        return Advice(
            "change the model",
            f"Recalibrated, its CRPS would be {significant(then)}: no better than ignoring the input "
            f"({significant(without.value)}).",
        )
    ignores = skill is not None and (skill.value if skill.high is None else skill.high) <= 0.0
    said = "It scores no better than ignoring the input." if ignores else "Do not use it as it is."
    return Advice("change the model", said + ("" if preview is None else _tried(preview)))


def statement_of(stated: str, levels: Sequence[float]) -> str:
    """What predictions state, as far as CRPS and ECE of other statements are other quantities; in words."""
    if stated != "quantiles":
        return "whole distributions"
    shown = [*levels] if len(levels) <= _LEVELS_SHOWN else [*levels[:3], "...", levels[-1]]
    return f"quantiles at {', '.join(each if isinstance(each, str) else f'{each:g}' for each in shown)}"


def advice_of(evaluation: Evaluation) -> str:
    """What to do with an evaluated version, in a sentence or two; "" where nothing is advised."""
    found = advise(evaluation.verdict, evaluation.metrics, evaluation.preview)
    return "" if found is None else f"{found.words}. {found.reason}"


def _of_right(skill: MetricValue) -> Advice:
    low, high = (skill.value if end is None else end for end in (skill.low, skill.high))
    if low > 0.0:
        return Advice("use", f"Its CRPS is {percent(skill.value)} below that of ignoring the input.")
    if high <= 0.0:
        return Advice("change the model", "It scores no better than ignoring the input.")
    return Advice("bring more rows", "Whether it scores better than ignoring the input, so few rows cannot show.")


def _tried(preview: CorrectionPreview) -> str:
    """What came of a correction that is not advised."""
    if not preview.harmed:
        return " No correction of its levels gains enough on rows that it was not fitted on."
    worse = listed([f"{row.name} from {significant(row.now)} to {significant(row.then)}" for row in preview.harmed])
    return f" Recalibrating does harm: on rows that the correction was not fitted on, it raises {worse}."


def _gain(preview: CorrectionPreview) -> str:
    """What a correction takes off, in words; "" where it is not worth it."""
    rows = {row.name: row for row in preview.table if row.name in WORTH_IT}
    parts, is_worth_it = [], preview.leaves_no_fault
    if (crps := rows.get("CRPS")) is not None and (crps.is_better or preview.leaves_no_fault):
        is_worth_it |= crps.now - crps.then >= WORTH_IT["CRPS"] * crps.now
        share = percent(1.0 - crps.then / crps.now) + ("" if crps.is_better else ", within chance")
        parts.append(f"CRPS falls from {significant(crps.now)} to {significant(crps.then)} ({share})")
    if (nll := rows.get("NLL")) is not None and nll.is_better:
        is_worth_it |= nll.now - nll.then >= WORTH_IT["NLL"]
        parts.append(f"NLL falls from {significant(nll.now)} to {significant(nll.then)}")
    said = " and ".join(parts) + (", and no fault is found" if preview.leaves_no_fault else "")
    return said if is_worth_it else ""
