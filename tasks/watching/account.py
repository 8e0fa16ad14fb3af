"""The account of looks at a version on a split: who tests for ever calls true versions wrong sooner or later.

A look is opened before the version is evaluated: its rows are then taken, and no other look has any of them. It is
closed with what the evaluation found, and takes its place at the end of the account (``kernels.monitoring``), which
says whether the version is still right. The same rows again are the same look, closed once, whoever watches; a look
whose watcher died stays open until another one closes it, or takes it back where its rows are gone.

Looks at one version are opened and closed one at a time, by a claim; nothing depends on the clocks of the watchers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit_scores import pit_scores
from congruence.kernels.monitoring import Look, Monitor, ScoreSums, score_bet
from congruence.tasks.data.digests import combine
from congruence.tasks.mlflow.connection import TrackingError
from congruence.tasks.mlflow.identity import EvaluationIdentity
from congruence.tasks.mlflow.looks import (
    LoggedLook,
    Rows,
    create_look,
    finish_look,
    is_open,
    logged_looks,
    read_rows,
    withdraw_look,
)
from congruence.tasks.mlflow.server_clock import server_time
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.mlflow.version_tags import set_version_tags
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.scores.evaluation import MetricValue, truth_p_value, truth_p_values
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.watching.claims import exclusive
from congruence.tasks.watching.settings import MonitorSettings

log = logging.getLogger(__name__)

VERDICT = "cce_looks"
"""The tag of a version that says in words what all looks at it say."""

_TRIES = 5


@dataclass(frozen=True)
class Account:
    """All looks at one version on one split.

    Attributes:
        closed: in their order.
        open: looks that were opened and not closed yet.
        monitor: what the closed ones say.
    """

    closed: tuple[LoggedLook, ...]
    open: tuple[LoggedLook, ...]
    monitor: Monitor = field(repr=False)

    @property
    def looks(self) -> tuple[LoggedLook, ...]:
        """All of them."""
        return (*self.closed, *self.open)


@dataclass(frozen=True)
class Finding:
    """What the account says after a look.

    Attributes:
        monitor: the account, with the look.
        look: that was closed.
        changed_the_verdict: whether the version was right until then.
    """

    monitor: Monitor
    look: LoggedLook
    changed_the_verdict: bool

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        return self.monitor.sentence()


@dataclass(frozen=True)
class Accounts:
    """The accounts in one MLflow.

    Attributes:
        settings: which.
        folder: keeps copies of the rows of looks.
        monitor: level and run length.
    """

    settings: TrackingSettings
    folder: Path
    monitor: MonitorSettings = field(default_factory=MonitorSettings)

    @classmethod
    def of(cls, settings: EvaluationSettings) -> Accounts:
        """Those of an evaluation file."""
        return cls(settings.tracking, settings.home_folder / "looks", settings.watch.monitor)

    def read(self, model: ModelVersion, split: str) -> Account:
        """The account of a version on a split."""
        return self._account(logged_looks(model, split, self.settings))

    def _account(self, found: Iterable[LoggedLook]) -> Account:
        monitor = Monitor(self.monitor.level, self.monitor.average_run_length)
        looks, closed = list(found), []
        for look in looks:
            if look.found is not None:
                counted = monitor.with_look(look.found)
                if counted is not monitor:  # the same evidence is counted once
                    closed.append(look)
                monitor = counted
        return Account(tuple(closed), tuple(look for look in looks if look.found is None), monitor)

    def unseen(self, account: Account, rows: Rows) -> Array:
        """Which of ``rows`` no look of the account has, closed or open: (rows,) of bool."""
        unseen = np.ones(len(rows), dtype=bool)
        for look in account.looks:
            unseen &= ~np.isin(rows, read_rows(look, self.folder, self.settings))
        return unseen

    def open(self, identity: EvaluationIdentity, rows: Rows, when: str, owner: str) -> LoggedLook | None:
        """Open a look at ``rows``, or find the open one at the same rows; None where a look has seen one of them.

        Args:
            identity: of the evaluation that will close it.
            rows: the identities of its rows.
            when: of its rows, as people call it; by default the time of the server.
            owner: who opens it.

        Raises:
            TrackingError: MLflow does not answer, or other watchers hold the account.
        """
        rows = np.unique(rows)
        evidence = evidence_of(rows)
        for _ in range(_TRIES):
            with self._alone(identity, owner) as stands:
                account = self.read(identity.model, identity.split_name)
                if same := [look for look in account.open if look.evidence == evidence]:
                    return same[0]
                if not self.unseen(account, rows).all():
                    return None
                look = create_look(identity, evidence, rows, when or self._now(), self.settings)
                if stands():
                    return look
                withdraw_look(look, self.settings)  # somebody else may have taken the rows meanwhile
        raise self._too_slow(identity)

    def close(
        self,
        look: LoggedLook,
        identity: EvaluationIdentity,
        metrics: Mapping[str, MetricValue],
        evaluation_run: str,
        owner: str,
        pit: Callable[[], Array | None] = lambda: None,
    ) -> Finding | None:
        """Put what an evaluation found at the end of the account; None where there was no test, or it is closed.

        Args:
            look: that was opened.
            identity: of version and split.
            metrics: of the evaluation.
            evaluation_run: its run.
            owner: who closes it.
            pit: the PIT values of its valid rows, where it has some.

        Raises:
            TrackingError: MLflow does not answer, or other watchers hold the account.
        """
        p_value, tests = truth_p_value(metrics), truth_p_values(metrics)
        if p_value is None:
            withdraw_look(look, self.settings)
            return None
        values, rows, written = pit(), len(read_rows(look, self.folder, self.settings)), False
        for _ in range(_TRIES):
            with self._alone(identity, owner) as stands:
                looks = logged_looks(identity.model, identity.split_name, self.settings)
                others = self._account(one for one in looks if one.run_id != look.run_id)
                now = next((one for one in looks if one.run_id == look.run_id), None)
                if now is None or (now.found is not None and not written):
                    log.warning("%s: its look at %s was ended by another watcher", identity.model.label, look.when)
                    return None
                bet, sums = _bet(others, values)
                monitor = others.monitor.with_look(Look(look.evidence, p_value, look.when, bet, rows, tests))
                number = 1 + max((one.number or 0 for one in others.closed), default=0)
                finish_look(look, number, monitor, sums, evaluation_run, self.settings)
                if stands():
                    said = f"{identity.split_name}: {monitor.sentence()}"
                    set_version_tags(identity.model, {f"{VERDICT}:{identity.split_name}": said}, self.settings)
                    return Finding(monitor, look, monitor.verdict != others.monitor.verdict)
            written = True  # another watcher may have written at the same place: it is put at the end once more
        raise self._too_slow(identity)

    def withdraw(self, look: LoggedLook, identity: EvaluationIdentity, owner: str) -> None:
        """Take back an open look whose rows are gone."""
        with self._alone(identity, owner):
            if is_open(look, self.settings):
                withdraw_look(look, self.settings)

    def _alone(self, identity: EvaluationIdentity, owner: str) -> AbstractContextManager[Callable[[], bool]]:
        lock = replace(
            identity,
            split_name="account of looks",
            split_digest=f"looks on {identity.split_name}",
            protocol_digest="looks",
            metric_list=(),
            settings_digest="",
        )
        return exclusive(lock, owner, self.settings)

    def _now(self) -> str:
        return datetime.fromtimestamp(server_time(self.settings), UTC).strftime("%Y-%m-%d %H:%M")

    @staticmethod
    def _too_slow(identity: EvaluationIdentity) -> TrackingError:
        return TrackingError(
            f"{identity.model.label}: MLflow answers too slowly to count a look at it; it is tried at the next look"
        )


def evidence_of(rows: Rows) -> str:
    """The digest of some rows, whatever their order."""
    return combine([np.unique(rows).astype("<u8").tobytes()])


def _bet(account: Account, pit: Array | None) -> tuple[float | None, ScoreSums | None]:
    """The bet on a look's PIT values by what the looks before showed, and what they show with it."""
    if pit is None or not len(pit):
        return None, None
    before = next((look.sums for look in reversed(account.closed) if look.sums is not None), None)
    made = score_bet(pit_scores(pit), before or ScoreSums())
    return made.log_e, made.sums
