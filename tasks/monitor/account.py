"""The account of looks at a version over time: who tests for ever calls true versions wrong sooner or later.

A look is the evaluation of a version on a split of a range of dates, found and logged as any other. The account is the
list of them as MLflow holds it, in the order of their dates, folded by ``kernels.monitoring``: nothing is written to
keep it. Of two evaluations whose dates overlap the one that was made first counts; of two of the same dates of stored
predictions the one that was made last, as labels came late.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from mlflow.entities import Run

from congruence.kernels.arrays import Array
from congruence.kernels.monitoring import Look, Monitor, ScoreSums, score_bet
from congruence.kernels.pit import pit_scores
from congruence.kernels.streams import hashed_keys
from congruence.tasks.data.settings import STORED_ROWS, SplitSettings
from congruence.tasks.mlflow.connection import connect, with_retries
from congruence.tasks.mlflow.finished import WRONG, run_metrics
from congruence.tasks.mlflow.identity import (
    COMPLETE,
    PERIOD,
    PREFIX,
    STATE,
    all_runs,
    dates_in_words,
    experiments_of,
    facts,
    quoted,
)
from congruence.tasks.mlflow.reading import logged_pit, read_scores
from congruence.tasks.models.version import ModelVersion
from congruence.tasks.runtime.files import whole_file
from congruence.tasks.scores.evaluation import MetricValue, verdict_of
from congruence.tasks.settings.evaluation import EvaluationSettings

_TESTS = ("cce_p_value", "calibration_p_value")
"""The metrics of the tests that bet by themselves."""

INPUTS = PREFIX + "inputs"
"""The tag of a look's run that says in words how far its inputs are from those of the first look."""

FOUND_AGAIN = PREFIX + "found_again"
"""The tag of a look's run at labels that changed and changed back: when, in milliseconds since 1970."""


@dataclass(frozen=True)
class LoggedLook:
    """The evaluation of a version on a range of dates.

    Attributes:
        run_id: its run.
        experiment: the id of the run's.
        since: the first of its dates, ``2026-03-01``.
        until: the last one.
        made: when it was started, in milliseconds since 1970.
        digest: of its rows.
        rows: how many of them are valid.
        metrics: its numbers.
        wrong: what is wrong with the version there, in sentences.
        inputs: how far the inputs there are from those of the first look, in a sentence; "" where nobody looked.
        is_stored: whether production stored the predictions.
    """

    run_id: str
    experiment: str
    since: str
    until: str
    made: int
    digest: str
    rows: int
    metrics: dict[str, MetricValue] = field(repr=False)
    wrong: tuple[str, ...] = ()
    inputs: str = ""
    is_stored: bool = False

    @classmethod
    def of(cls, run: Run) -> LoggedLook:
        """Returns the look that a complete run with a period holds."""
        tags = run.data.tags
        since, _, until = tags[PERIOD].partition("/")
        return cls(
            str(run.info.run_id),
            str(run.info.experiment_id),
            since,
            until,
            int(tags.get(FOUND_AGAIN, run.info.start_time)),
            facts(run)["split_digest"],
            int(run.data.params["valid_rows"]),
            run_metrics(run),
            tuple(tags.get(WRONG, "").splitlines()),
            tags.get(INPUTS, ""),
            facts(run).get("own_settings", "").startswith(STORED_ROWS),
        )


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
        pit = _kept(look, "pit", settings) if bets else np.empty(0)
        if len(pit):
            made = score_bet(pit_scores(pit), sums)
            log_bet, sums = made.log_e, made.sums
        when = dates_in_words(f"{look.since}/{look.until}")
        tests = () if p_value is None else tuple(look.metrics[name].value for name in _TESTS if name in look.metrics)
        monitor = monitor.with_look(
            Look(f"{look.since} {look.digest}", p_value or 1.0, when, log_bet, look.rows, tests)
        )
    return Account(tuple(looks), monitor)


def counted_keys(account: Account, settings: EvaluationSettings) -> Array:
    """Returns numbers that stand for the keys of all rows that the looks of an account have counted.

    They are those of ``hashed_keys`` of the keys as text.
    """
    return np.concatenate([np.empty(0, np.uint64), *(_kept(look, "keys", settings) for look in account.looks)])


def _logged(version: ModelVersion, split: str, settings: EvaluationSettings) -> list[LoggedLook]:
    """The evaluations of a version on dates of a split, in the order in which they were made."""
    client = connect(settings.tracking)
    tags = {PREFIX + "kind": "evaluation", STATE: COMPLETE, PREFIX + "model": version.name}
    tags |= {PREFIX + "version": version.version, PREFIX + "split": split}
    wanted = " and ".join(f"tags.`{key}` = {quoted(value)}" for key, value in tags.items())

    def search() -> list[Run]:
        return all_runs(client, experiments_of(client, split, settings.tracking), wanted)

    runs = with_retries("reading the account of looks", search, settings.tracking)
    dated = [run for run in runs if PERIOD in run.data.tags]
    return sorted(map(LoggedLook.of, dated), key=lambda look: (look.made, look.run_id))


def _disjoint(looks: Iterable[LoggedLook]) -> list[LoggedLook]:
    """Those that were tested and that share no date with one that was made before, in the order of their dates."""
    found: list[LoggedLook] = []
    for look in looks:
        overlaps = any(look.since <= other.until and other.since <= look.until for other in found)
        if not overlaps and any(name in look.metrics for name in _TESTS):
            found.append(look)
    return sorted(found, key=lambda look: look.since)


def _kept(look: LoggedLook, what: str, settings: EvaluationSettings) -> Array:
    """The PIT values of the valid rows of a look, none of vectors, or the numbers of the keys of all of its rows.

    A complete run never changes: the home folder keeps a copy.
    """
    path = settings.home_folder / "looks" / f"{look.run_id}.{what}.npy"
    if not path.exists():
        if what == "pit":
            pit = logged_pit(look.run_id, settings.tracking)
            values = np.empty(0) if pit is None else pit
        else:
            keys = read_scores(look.run_id, settings.tracking, ["key"])["key"]
            values = hashed_keys(keys.astype(str).to_numpy(dtype=object))
        with whole_file(path) as stream:
            np.save(stream, values)
    return np.asarray(np.load(path))
