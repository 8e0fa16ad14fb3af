"""What a comparison reads of one logged evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field

from congruence.kernels.arrays import Array
from congruence.kernels.verdict import Verdict
from congruence.tasks.models.settings import ModelVersion
from congruence.tasks.scores.evaluation import Columns, MetricValue, SplitSummary, logged_verdict
from congruence.tasks.scores.wrong import WrongPlace


@dataclass(frozen=True)
class ComparedVersion:
    """What a comparison reads of an evaluation: see ``Evaluation`` for the fields.

    Versions with the same ``rows_digest`` (not "") share their rows and their reference rows: the same keys, valid in
    the same places. ``slices`` are the names of the slice columns; ``wrong_places`` those that the report names wrong,
    the largest first, None where it is not known; ``said`` is the verdict as it was logged, ``wrong`` what the report
    says is wrong, the largest fault first. ``is_stored`` where production stored the predictions: then each version may
    have rows of its own.
    """

    model: ModelVersion
    split: SplitSummary
    protocol_name: str
    protocol_digest: str
    metrics: dict[str, MetricValue]
    scores: Columns = field(repr=False)
    run_id: str | None = None
    settings_digest: str = ""
    influence: Columns | None = field(default=None, repr=False)
    influence_noise: Array | None = field(default=None, repr=False)
    rows_digest: str = ""
    slices: tuple[str, ...] = ()
    wrong_places: tuple[WrongPlace, ...] | None = None
    said: str = ""
    wrong: tuple[str, ...] = ()
    is_stored: bool = False

    @property
    def label(self) -> str:
        """``name/version``."""
        return self.model.label

    @property
    def verdict(self) -> Verdict:
        """Not judged, no fault found, or wrong, with the largest fault."""
        return logged_verdict(self.said, self.metrics, self.split.valid_rows)

    def shares_rows(self, other: ComparedVersion) -> bool:
        """Whether both are known to be of the same rows without looking at them."""
        return self.rows_digest != "" and self.rows_digest == other.rows_digest

    def release(self) -> None:
        """Give back what reading brought onto this machine; it is read again where it is asked for."""
        for table in (self.scores, self.influence):
            release = getattr(table, "release", None)  # a data frame has nothing to give back
            if release is not None:
                release()
