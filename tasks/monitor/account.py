"""The looks that were taken at a split, in order, and what they say together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from mlflow.entities import Run

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import TooFewBlocksError
from congruence.kernels.monitoring.best import LookDifference, best_over_looks
from congruence.kernels.monitoring.evidence import Look, Monitor, ScoreSums, score_bet
from congruence.kernels.pit import pit_scores
from congruence.kernels.rng import hashed_keys
from congruence.tasks.comparison.differences import ComparedVersion, pair_blocks
from congruence.tasks.comparison.explored import best_set, in_set
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.mlflow.connection import with_retries
from congruence.tasks.mlflow.identity import (
    PERIOD,
    PREFIX,
    Conditions,
    complete_runs,
    dates_in_words,
    evaluation_in,
)
from congruence.tasks.mlflow.pages import tag_best
from congruence.tasks.mlflow.reading import logged_pit, logged_versions, read_scores, read_version
from congruence.tasks.models.registry import matching_versions
from congruence.tasks.runtime.files import load_record, save_record, whole_file
from congruence.tasks.scores.evaluation import verdict_of
from congruence.tasks.scores.metrics.registry import ROW_WEIGHT
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import ModelVersion, TrackingSettings

_TESTS = ("cce_p_value", "calibration_p_value")
"""The metrics of the tests that bet by themselves."""

INPUTS = PREFIX + "inputs"
"""The tag of a look's run that says in words how far its inputs are from those of the first look."""

FOUND_AGAIN = PREFIX + "found_again"
"""The tag of a look's run at labels that changed and changed back: when, in milliseconds since 1970."""


@dataclass(frozen=True)
class LoggedLook(ComparedVersion):
    """The evaluation of a version on a range of dates, as its run says it.

    Attributes:
        made: when it was started, in milliseconds since 1970.
        inputs: how far the inputs there are from those of the first look, in a sentence; "" where nobody looked.
    """

    run_id: str = ""
    made: int = 0
    inputs: str = ""

    @classmethod
    def of_run(cls, run: Run) -> LoggedLook:
        """Returns the look that a complete run with a period holds."""
        tags = run.data.tags
        made = int(tags.get(FOUND_AGAIN, run.info.start_time))
        return cls(**vars(evaluation_in(run)), made=made, inputs=tags.get(INPUTS, ""))

    @property
    def since(self) -> str:
        """The first of its dates, ``2026-03-01``."""
        return self.split.period.partition("/")[0]

    @property
    def until(self) -> str:
        """The last one."""
        return self.split.period.partition("/")[2]

    @property
    def rows(self) -> int:
        """How many of its rows are valid."""
        return self.split.valid_rows


@dataclass(frozen=True)
class Account:
    """All looks at one version on one split, in the order of their dates, and what they say all together."""

    looks: tuple[LoggedLook, ...]
    monitor: Monitor

    @property
    def until(self) -> str:
        """The last date that was looked at, "" where there is none."""
        return self.looks[-1].until if self.looks else ""


def read_account(version: ModelVersion, split: SplitSettings, settings: EvaluationSettings) -> Account:
    """Returns the account of a version on one of the splits of an evaluation file.

    Rows that may depend on each other (``groups``, ``time``) are not bet on one by one: their p-values alone count.

    Raises:
        TrackingError: MLflow does not answer.
    """
    logged = _logged(version, split.name, settings)
    latest = {(look.since, look.until): look for look in logged if look.is_stored}
    looks = _disjoint([*latest.values(), *(look for look in logged if not look.is_stored)])
    bets = split.groups is None and split.time is None
    monitor = Monitor(settings.watch.monitor.level, settings.watch.monitor.average_run_length)
    sums = ScoreSums()
    for look in looks:
        # Correlated rows, which nobody named, judge nothing.
        p_value, log_bet = verdict_of(look.metrics).p_value, None
        pit = kept(look, "pit", settings) if bets else np.empty(0)
        if len(pit):
            log_bet, sums = score_bet(pit_scores(pit), sums)
        when = dates_in_words(look.split.period)
        tests = () if p_value is None else tuple(look.metrics[name].value for name in _TESTS if name in look.metrics)
        monitor = monitor.with_look(
            Look(f"{look.since} {look.split.digest}", p_value or 1.0, when, log_bet, look.rows, tests)
        )
    return Account(tuple(looks), monitor)


def counted_keys(account: Account, settings: EvaluationSettings) -> Array:
    """Returns numbers that stand for the keys of all rows that the looks of an account have counted.

    They are those of ``hashed_keys`` of the keys as text.
    """
    return np.concatenate([np.empty(0, np.uint64), *(kept(look, "keys", settings) for look in account.looks)])


def _logged(version: ModelVersion, split: str, settings: EvaluationSettings) -> list[LoggedLook]:
    """The evaluations of a version on dates of a split, in the order in which they were made."""
    runs = complete_runs(settings.tracking, split, {"model": version.name, "version": version.version})
    dated = [run for run in runs if PERIOD in run.data.tags]
    return sorted(map(LoggedLook.of_run, dated), key=lambda look: (look.made, look.run_id))


def _disjoint(looks: Iterable[LoggedLook]) -> list[LoggedLook]:
    """Those that were tested and that share no date with one that was made before, in the order of their dates."""
    found: list[LoggedLook] = []
    for look in looks:
        overlaps = any(look.since <= other.until and other.since <= look.until for other in found)
        if not overlaps and any(name in look.metrics for name in _TESTS):
            found.append(look)
    return sorted(found, key=lambda look: look.since)


def kept(look: LoggedLook, what: str, settings: EvaluationSettings) -> Array:
    """What a look has of its rows: the "pit" of the valid ones, or of all of them the "target", or numbers of "keys".

    It is empty where a vector has none. A complete run never changes: the home folder keeps a copy.
    """
    path = settings.home_folder / "looks" / f"{look.run_id}.{what}.npy"
    if not path.exists():
        values: Array | None = None
        if what == "pit":
            values = logged_pit(look.run_id, settings.tracking)
        elif what == "keys":
            keys = read_scores(look.run_id, settings.tracking, ["key"])["key"]
            values = hashed_keys(keys.astype(str).to_numpy(dtype=object))
        else:
            with suppress(KeyError, ValueError):
                values = read_scores(look.run_id, settings.tracking, [what])[what].to_numpy(np.float64)
        with whole_file(path) as stream:
            np.save(stream, np.empty(0) if values is None else values)
    return np.asarray(np.load(path))


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
    fair = {each.uri for each in versions if not each.has_seen(version.split.digest)}
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
            shared.setdefault((look.since, look.until, look.split.digest), {})[label] = look.run_id
    looks_read = []
    for _, runs in sorted(shared.items()):
        pairs = {pair: _look(runs[pair[0]], runs[pair[1]], settings) for pair in combinations(sorted(runs), 2)}
        if found := {pair: each for pair, each in pairs.items() if each is not None}:
            looks_read.append(found)
    if not looks_read:
        return None
    best = best_over_looks(looks_read)
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
    if (record := load_record(path)) is not None:
        return LookDifference(**record) if record else None
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
