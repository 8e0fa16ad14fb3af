"""One look of a watcher at a split: which versions lack an evaluation on which rows, and what the looks at them say.

On a split of all its rows every version is evaluated once. On one with ``new_rows_only`` a version that no look was
made at is evaluated on all rows, and one in use, again and again, on the rows that no look at it has seen. Each
evaluation on unseen rows is a look, and is put into the account of its version (``tasks.watching.account``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from congruence.flows.evaluation.existing_results import left_out
from congruence.flows.evaluation.in_process import can_be_in_process, evaluate_in_process
from congruence.flows.evaluation.keys import encoder_protocol, evaluation_identity
from congruence.flows.evaluation.pipeline import evaluate
from congruence.flows.evaluation.results import VersionOutcome
from congruence.flows.evaluation.splits import open_planned, with_fitted_encoder
from congruence.kernels.arrays import Array
from congruence.kernels.errors import CongruenceError
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.tasks.comparison.gate import GateDecision
from congruence.tasks.data.chosen_rows import split_of_rows
from congruence.tasks.data.row_identity import kept_identities
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.loading import asking_encoder
from congruence.tasks.mlflow.connection import TrackingError
from congruence.tasks.mlflow.finished import finished_evaluations
from congruence.tasks.mlflow.fitted_rows import fitted_rows
from congruence.tasks.mlflow.identity import EvaluationIdentity, find_by_digest
from congruence.tasks.mlflow.looks import LoggedLook, Rows, open_evaluations, read_rows
from congruence.tasks.mlflow.reading import logged_metrics, logged_pit
from congruence.tasks.mlflow.version_tags import log_failure, read_failure
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.scores.names import requested_metrics
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.watching.account import Accounts, Finding, evidence_of
from congruence.tasks.watching.claims import claim, drop_expired, held, release

_TEST = "congruence_test"


@dataclass
class Tick:
    """What one look at the registry led to.

    Attributes:
        outcomes: the evaluations made now, good or failed.
        decisions: what the gate said of them.
        waiting: evaluations that are missing, but claimed by another watcher or waiting for their next try.
        problems: splits that could not be looked at, and why.
        looks: by label and split, what the account of looks at the version says after a look that was closed now.
        sentences: the same in words, with numbers and a link where a verdict changed.
    """

    outcomes: list[VersionOutcome] = field(default_factory=list)
    decisions: list[GateDecision] = field(default_factory=list)
    waiting: int = 0
    problems: list[str] = field(default_factory=list)
    looks: dict[tuple[str, str], Finding] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[VersionOutcome]:
        """The evaluations that failed."""
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]


def is_in_use(version: ModelVersion, settings: EvaluationSettings) -> bool:
    """Whether a version holds one of the aliases that say so."""
    wanted = settings.watch.in_use
    return any(alias in wanted for alias in version.aliases) if wanted else bool(version.aliases)


def look_at_split(
    settings: EvaluationSettings, split_settings: SplitSettings, versions: list[ModelVersion], owner: str, result: Tick
) -> list[VersionOutcome]:
    """Evaluate what is missing on one split; returns what was found there already.

    Raises:
        CongruenceError: the split or its settings.
        TrackingError: MLflow does not answer.
    """
    settings = with_fitted_encoder(settings)
    split = open_planned(split_settings, settings)
    protocol = encoder_protocol(settings, asking_encoder(settings.encoder))
    judged = left_out(versions, split)[1]
    look = _SplitLook(settings, split, protocol, owner, result)
    return look.at_new_rows(judged) if split_settings.new_rows_only else look.at_all_rows(judged)


@dataclass(frozen=True)
class _Part:
    """Rows of a split on which some versions are evaluated: ``numbers`` of them, all where None."""

    whole: Split
    split: Split
    versions: list[ModelVersion]
    folder: Path
    numbers: Array | None = None

    @cached_property
    def rows(self) -> Rows:
        """Their identities."""
        rows = kept_identities(self.whole, self.folder)
        return rows if self.numbers is None else rows[self.numbers]

    @property
    def when(self) -> str:
        """The dates in the names of their files, from the first row's to the last one's."""
        ends = (0, self.whole.rows - 1) if self.numbers is None else (int(self.numbers[0]), int(self.numbers[-1]))
        dates = sorted({date.isoformat() for row in ends if (date := self.whole.date_of(row)) is not None})
        return " to ".join(dates)


@dataclass
class _SplitLook:
    settings: EvaluationSettings
    split: Split
    protocol: EvaluationProtocol
    owner: str
    result: Tick

    def __post_init__(self) -> None:
        self.accounts = Accounts.of(self.settings)
        self.tests = _TEST in requested_metrics(self.settings.metrics)

    def at_all_rows(self, versions: list[ModelVersion]) -> list[VersionOutcome]:
        part = _Part(self.split, self.split, versions, self.accounts.folder)
        return self._at(part) if versions else []

    def at_new_rows(self, versions: list[ModelVersion]) -> list[VersionOutcome]:
        if not self.tests:
            raise SettingsError(f"metrics: looks at new rows rest on {_TEST}; add it, or leave metrics out")
        wanted: dict[str, tuple[Array, list[ModelVersion]]] = {}
        found = []
        rows = kept_identities(self.split, self.accounts.folder)
        for version in versions:
            chosen = self._unseen(version, rows)
            if chosen is not None:
                wanted.setdefault(evidence_of(rows[chosen]), (chosen, []))[1].append(version)
            elif closed := self.accounts.read(version, self.split.name).closed:
                run = closed[-1].evaluation_run
                found.append(VersionOutcome(version.label, self.split.name, "found", run))
        for evidence, (chosen, some) in wanted.items():
            found += self._at(self._part(evidence, chosen, some))
        return found

    def _unseen(self, version: ModelVersion, rows: Rows) -> Array | None:
        """Which rows are to be looked at; None where there are none, or not enough yet."""
        account = self.accounts.read(version, self.split.name)
        for look in account.open:  # its watcher is at work, or was killed
            if run := self._finished([look.evaluation]).get(look.evaluation):
                self._close(look, version, run)
                return None
            taken = read_rows(look, self.accounts.folder, self.settings.tracking)
            if np.isin(taken, rows).all():
                return np.isin(rows, taken)
            self.accounts.withdraw(look, self._identity(self.split, version), self.owner)
        if account.closed and not is_in_use(version, self.settings):
            return None
        unseen = self.accounts.unseen(account, rows)
        unseen &= ~np.isin(rows, fitted_rows(version, self.accounts.folder, self.settings.tracking))
        return unseen if np.count_nonzero(unseen) >= self.settings.watch.monitor.least_rows else None

    def _part(self, evidence: str, chosen: Array, versions: list[ModelVersion]) -> _Part:
        if chosen.all():
            return _Part(self.split, self.split, versions, self.accounts.folder)
        numbers = np.flatnonzero(chosen)
        path = self.accounts.folder / f"{self.split.digest[:16]}-{evidence}.parquet"
        settings = split_of_rows(self.split, numbers, path, self.split.name)
        return _Part(self.split, open_planned(settings, self.settings), versions, self.accounts.folder, numbers)

    def _at(self, part: _Part) -> list[VersionOutcome]:
        """Evaluate versions on rows, and close their looks; returns what was evaluated on them already."""
        identities = [self._identity(part.split, version) for version in part.versions]
        finished = self._finished(identity.digest for identity in identities)
        known = [identity for identity in identities if identity.digest in finished]
        for identity in self._uncounted(known, part):
            look = self.accounts.open(identity, part.rows, part.when, self.owner)
            if look is not None:
                self._close(look, identity.model, finished[identity.digest])
        missing = [identity for identity in identities if identity.digest not in finished]
        claimed = self._claim(missing)
        self.result.waiting += len(missing) - len(claimed)
        if claimed:
            with held(claimed, self.owner, self.settings.watch.lease, self.settings.tracking):
                self.result.outcomes += self._evaluate_and_count(claimed, part)
        return [
            VersionOutcome(identity.model.label, self.split.name, "found", finished[identity.digest])
            for identity in known
        ]

    def _finished(self, digests: Iterable[str]) -> dict[str, str]:
        """The runs of those evaluations that MLflow holds now, by the digest of their identity."""
        tracking, name = self.settings.tracking, self.split.name
        if not self.split.settings.new_rows_only:
            return {digest: found.run_id for digest, found in finished_evaluations(name, tracking).items()}
        # They grow by one a look, of which few are asked for.
        found = {digest: find_by_digest(digest, name, tracking) for digest in digests}
        return {digest: run for digest, run in found.items() if run is not None}

    def _uncounted(self, known: list[EvaluationIdentity], part: _Part) -> Iterator[EvaluationIdentity]:
        """Of evaluations that are finished those whose look is not closed: its watcher was killed between the two."""
        if part.whole.settings.new_rows_only:
            yield from known  # evaluated by hand, or before a look was opened
            return
        names = {identity.model.name for identity in known} if self.tests else set()
        pending = {digest for name in names for digest in open_evaluations(name, self.settings.tracking)}
        yield from (identity for identity in known if identity.digest in pending)

    def _evaluate_and_count(self, claimed: list[EvaluationIdentity], part: _Part) -> list[VersionOutcome]:
        looks = {
            identity.model.label: self.accounts.open(identity, part.rows, part.when, self.owner)
            for identity in (claimed if self.tests else [])
        }
        if part.whole.settings.new_rows_only:  # of rows that another watcher took meanwhile nothing is left to do
            claimed = [identity for identity in claimed if looks[identity.model.label] is not None]
        outcomes = self._evaluate(part.split, claimed) if claimed else []
        by_label = {identity.model.label: identity for identity in claimed}
        for outcome in outcomes:
            look = looks.get(outcome.label)
            if look is not None and outcome.status in ("evaluated", "found") and outcome.run_id is not None:
                self._close(look, by_label[outcome.label].model, outcome.run_id)
        return outcomes

    def _close(self, look: LoggedLook, version: ModelVersion, run_id: str) -> None:
        tracking, identity = self.settings.tracking, self._identity(self.split, version)
        metrics = logged_metrics(run_id, tracking)
        pit: Callable[[], Array | None] = partial(logged_pit, run_id, tracking)
        if self.split.settings.groups is not None or self.split.settings.time is not None:
            pit = _no_bet  # one row's PIT value says what the next one's will be: a bet row by row would win too often
        finding = self.accounts.close(look, identity, metrics, run_id, self.owner, pit)
        if finding is not None:
            self.result.looks[version.label, self.split.name] = finding

    def _identity(self, split: Split, version: ModelVersion) -> EvaluationIdentity:
        return evaluation_identity(self.settings, split, self.protocol, version)

    def _claim(self, missing: list[EvaluationIdentity]) -> list[EvaluationIdentity]:
        lease, tracking = self.settings.watch.lease, self.settings.tracking
        due = [identity for identity in missing if self._is_due(identity)]
        drop_expired(due, tracking)
        claimed = [identity for identity in due if claim(identity, self.owner, lease, tracking)]
        if not claimed:
            return []
        # Between the first look and the claim another watcher may have finished, or failed.
        finished = self._finished(identity.digest for identity in claimed)
        kept = [each for each in claimed if each.digest not in finished and self._is_due(each)]
        for identity in claimed:
            if identity not in kept:
                release(identity, self.owner, tracking)
        return kept

    def _is_due(self, identity: EvaluationIdentity) -> bool:
        failure, watch = read_failure(identity, self.settings.tracking), self.settings.watch
        return failure is None or time.time() >= failure.next_try(watch.retry_after, watch.retry_at_most)

    def _evaluate(self, split: Split, identities: list[EvaluationIdentity]) -> list[VersionOutcome]:
        """Evaluate versions on one split; failures are counted and shown on the version."""
        labels = ", ".join(identity.model.label for identity in identities)
        uris = [identity.model.uri for identity in identities]
        narrowed = self.settings.model_copy(update={"models": uris, "splits": [split.settings], "gate": None})
        try:
            if can_be_in_process(narrowed, split, self.settings.watch.in_process_rows):
                models = [identity.model for identity in identities]
                outcomes = [evaluate_in_process(narrowed, split, self.protocol, model) for model in models]
            else:
                outcomes = evaluate(narrowed, f"{labels} on {split.name}")
        except TrackingError:
            raise
        except Exception as error:  # a watcher outlives whatever one evaluation may raise
            if len(identities) > 1:
                # One of them may have spoiled it for all: each on its own.
                return [outcome for identity in identities for outcome in self._evaluate(split, [identity])]
            said = str(error) if isinstance(error, CongruenceError) else f"{type(error).__name__}: {error}"
            outcomes = [VersionOutcome(identities[0].model.label, split.name, "failed", error=said)]
        by_label = {identity.model.label: identity for identity in identities}
        for outcome in outcomes:
            if outcome.status == "failed":
                log_failure(by_label[outcome.label], outcome.error or "no reason given", self.settings.tracking)
        return outcomes


def _no_bet() -> None:
    return None
