"""Which versions of a registered model may still be the best: on one split, or over all looks at new dates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from congruence.kernels.dependence.blocks import TooFewBlocksError
from congruence.kernels.monitoring.best import LookDifference, best_over_looks
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.comparison.differences import pair_blocks
from congruence.tasks.comparison.who_won import best_set, in_set
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.mlflow.connection import with_retries
from congruence.tasks.mlflow.finished import Conditions
from congruence.tasks.mlflow.pages import tag_best
from congruence.tasks.mlflow.reading import logged_versions, read_version
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.models.registry import matching_versions
from congruence.tasks.models.version import ModelVersion
from congruence.tasks.monitor.account import Account, read_account
from congruence.tasks.recalibration.rows import has_seen
from congruence.tasks.runtime.files import load_record, save_record
from congruence.tasks.scores.metrics.registry import ROW_WEIGHT
from congruence.tasks.settings.evaluation import EvaluationSettings

_SCORE = "crps"


@dataclass(frozen=True)
class MayBeBest:
    """A set of versions in which the best one is, but for one in twenty.

    Attributes:
        inside: labels of the versions that may be the best.
        runs: of all versions that were looked at, the version and the run of its evaluation, by label.
        basis: what the set rests on: "of 4 versions", "of 2 versions over 12 looks".
    """

    inside: tuple[str, ...]
    runs: Mapping[str, tuple[ModelVersion, str]]
    basis: str

    def said(self, label: str) -> str:
        """Whether a version may be the best, in words."""
        if label in self.inside:
            return f"{label} may be the best {self.basis} by CRPS"
        return f"{label} is not the best {self.basis} by CRPS: {', '.join(self.inside) or 'none'} may be (95 % set)"

    def mark(self, split: str, settings: TrackingSettings) -> None:
        """Tell it on every version, for lists.

        Raises:
            TrackingError: MLflow does not answer.
        """
        for label, (version, run_id) in self.runs.items():
            word = "may be" if label in self.inside else "not"
            tag_best(version, split, f"{word} the best {self.basis}", run_id, settings)


def best_on_split(version: ComparedVersion, split: SplitSettings, settings: EvaluationSettings) -> MayBeBest | None:
    """Returns which versions of a version's registered model may be the best on its split; None where nobody knows.

    On a split with ``new_dates_only`` over all looks that two versions share, else by their evaluations on the same
    rows under the same protocol. Versions that were corrected on rows of the split are left out.

    Raises:
        TrackingError: MLflow does not answer.
    """
    tracking = settings.tracking
    versions = with_retries("listing versions", lambda: matching_versions([version.model.name]), tracking)
    if split.new_dates_only:
        return best_over(versions, {each.label: read_account(each, split, settings) for each in versions}, settings)
    under = Conditions(version.split.digest, version.protocol_digest)
    fair = {each.uri for each in versions if not has_seen(each, version.split.digest)}
    logged = [each for each in logged_versions(split.name, tracking, conditions=under) if each.model.uri in fair]
    found = best_set(logged)
    for each in logged:
        each.release()
    if not found:
        return None
    runs = {each.label: (each.model, str(each.run_id)) for each in logged}
    return MayBeBest(tuple(in_set(found)), runs, f"of {len(logged)} versions")


def best_over(
    versions: Sequence[ModelVersion], accounts: Mapping[str, Account], settings: EvaluationSettings
) -> MayBeBest | None:
    """Returns which versions may still be the best over all looks that they share; None where they share none.

    Args:
        versions: that were looked at.
        accounts: of the looks at each on one split, by label.
        settings: the evaluation file's content.

    Raises:
        TrackingError: MLflow does not answer.
    """
    shared: dict[tuple[str, str, str], dict[str, str]] = {}
    for label in (version.label for version in versions):
        for look in accounts[label].looks:
            shared.setdefault((look.since, look.until, look.digest), {})[label] = look.run_id
    told = []
    for _, runs in sorted(shared.items()):
        pairs = {pair: _look(runs[pair[0]], runs[pair[1]], settings) for pair in combinations(sorted(runs), 2)}
        if found := {pair: each for pair, each in pairs.items() if each is not None}:
            told.append(found)
    if not told:
        return None
    best = best_over_looks(told)
    last = {
        version.label: (version, accounts[version.label].looks[-1].run_id)
        for version in versions
        if version.label in best.evidence
    }
    looks = f"{best.looks} look{'s' if best.looks > 1 else ''}"
    return MayBeBest(tuple(best.may_be_best), last, f"of {len(last)} versions over {looks}")


def _look(first: str, second: str, settings: EvaluationSettings) -> LookDifference | None:
    """What one look says of two versions, by their runs; None where it has no CRPS, or too few blocks of rows.

    A complete run never changes: the home folder keeps what was found.
    """
    path = settings.home_folder / "looks" / f"{first}.{second}.json"
    if (kept := load_record(path)) is not None:
        return LookDifference(**kept) if kept else None
    versions = [read_version(run_id, settings.tracking) for run_id in (first, second)]
    found = None
    if all(_SCORE in version.scores for version in versions):
        columns = [version.scores[_SCORE].to_numpy(np.float64) for version in versions]
        rows = np.isfinite(columns[0]) & np.isfinite(columns[1])
        weights = (
            versions[0].scores[ROW_WEIGHT].to_numpy(np.float64)[rows] if ROW_WEIGHT in versions[0].scores else None
        )
        try:
            blocks = pair_blocks(versions[0], versions[1], rows, [_SCORE])
            found = LookDifference.of(*(column[rows] for column in columns), weights=weights, blocks=blocks)
        except TooFewBlocksError:
            found = None
    for version in versions:
        version.release()
    save_record(path, {} if found is None else vars(found))
    return found
