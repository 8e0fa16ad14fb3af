"""`congruence watch`: evaluate registry versions that lack an evaluation, without anyone's hand.

A tick lists the versions to watch, leaves out those evaluated under the current split, protocol and settings, those
that failed and wait for their next try, and those that another watcher has claimed, and evaluates the rest. Nothing is
remembered between ticks: all of it is in MLflow, so any number of watchers may run, stop and start again.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from congruence.flows.cli.progress import console
from congruence.flows.evaluation.existing_results import left_out
from congruence.flows.evaluation.keys import encoder_protocol, evaluation_identity
from congruence.flows.evaluation.pipeline import evaluate
from congruence.flows.evaluation.results import VersionOutcome
from congruence.flows.evaluation.splits import open_planned, with_fitted_encoder
from congruence.flows.evaluation.tracking import use_tracking
from congruence.flows.operations.gate import gate_outcomes
from congruence.kernels.errors import CongruenceError
from congruence.tasks.comparison import GateDecision
from congruence.tasks.data import SplitSettings
from congruence.tasks.encoders.loading import asking_encoder
from congruence.tasks.mlflow import (
    EvaluationIdentity,
    TrackingError,
    finished_identities,
    log_failure,
    logged_metrics,
    read_failure,
)
from congruence.tasks.mlflow.connection import persist
from congruence.tasks.models.registry import ModelVersion, matching_versions
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.scores.names import requested_metrics
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.watching import (
    claim,
    close_look,
    drop_expired,
    held,
    is_due,
    is_open,
    new_owner,
    open_look,
    release,
)
from congruence.tasks.watching.notification import notify


@dataclass
class Tick:
    """What one look at the registry led to.

    Attributes:
        outcomes: the evaluations made now, good or failed.
        decisions: what the gate said of them.
        waiting: evaluations that are missing, but claimed by another watcher or waiting for their next try.
        problems: splits that could not be looked at, and why.
        looks: by label and split, what the account of looks at the version says.
    """

    outcomes: list[VersionOutcome] = field(default_factory=list)
    decisions: list[GateDecision] = field(default_factory=list)
    waiting: int = 0
    problems: list[str] = field(default_factory=list)
    looks: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def failed(self) -> list[VersionOutcome]:
        """The evaluations that failed."""
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]


def tick(settings: EvaluationSettings, *, owner: str | None = None, model: str | None = None) -> Tick:
    """Look once, and evaluate what is missing.

    Args:
        settings: the evaluation file's content; its ``watch:`` says which versions.
        owner: name under which versions are claimed; a new one by default.
        model: look at this version alone (``models:/name/3``), if it is one of the watched.

    Raises:
        SettingsError: nothing says which models to watch.
        TrackingError: MLflow does not answer.
    """
    use_tracking(settings)
    owner = owner or new_owner()
    versions = [version for version in watched_versions(settings) if model in (None, version.uri)]
    result = Tick()
    if not versions:
        return result
    known: list[VersionOutcome] = []
    for split in settings.splits:
        try:
            known += _tick_split(settings, split, versions, owner, result)
        except TrackingError:
            raise
        except CongruenceError as error:  # this split's data or settings: the other splits go on
            result.problems.append(f"split '{split.name}': {error}")
    for outcome in result.failed:
        notify(settings.notify, f"congruence: {outcome.label} on {outcome.split} failed", str(outcome.error))
    try:
        result.decisions = _judge(settings, versions, result.outcomes, known)
    except CongruenceError as error:  # judged at the next look: what was evaluated is logged
        result.problems.append(f"the gate: {error}")
    return result


def _judge(
    settings: EvaluationSettings,
    versions: list[ModelVersion],
    outcomes: list[VersionOutcome],
    known: list[VersionOutcome],
) -> list[GateDecision]:
    """Apply the gate to what was evaluated now, and to what was evaluated on every split and never judged."""
    found = Counter(outcome.label for outcome in known)
    unjudged = {
        version.label
        for version in versions
        if "cce_gate" not in version.tags and found[version.label] == len(settings.splits)
    }
    labels = unjudged | {outcome.label for outcome in outcomes if outcome.status == "evaluated"}
    return gate_outcomes(settings, [item for item in [*outcomes, *known] if item.label in labels])


def watched_versions(settings: EvaluationSettings) -> list[ModelVersion]:
    """The registry versions that ``watch:`` names.

    Raises:
        SettingsError: nothing says which models to watch.
        TrackingError: MLflow does not answer.
    """
    watched = settings.watch
    patterns = watched.models or settings.models
    if not patterns:
        raise SettingsError('watch.models: none given; name models to watch, for example models: ["angle-*"]')
    return persist(
        "listing model versions",
        lambda: matching_versions(patterns, aliases=watched.aliases, tags=watched.tags),
        settings.tracking,
    )


def _tick_split(
    settings: EvaluationSettings, split_settings: SplitSettings, versions: list[ModelVersion], owner: str, result: Tick
) -> list[VersionOutcome]:
    """Evaluate what is missing on one split; returns what was found there already."""
    settings = with_fitted_encoder(settings)
    split = open_planned(split_settings, settings)
    protocol = encoder_protocol(settings, asking_encoder(settings.encoder))
    judged = left_out(versions, split)[1]
    identities = [evaluation_identity(settings, split, protocol, version) for version in judged]
    finished = finished_identities(split.name, settings.tracking)
    for identity in identities:
        if identity.digest in finished and is_open(identity):  # its watcher was killed between the run and the account
            metrics = logged_metrics(finished[identity.digest], settings.tracking)
            close_look(identity, metrics, settings.tracking)
    missing = [identity for identity in identities if identity.digest not in finished]
    claimed = _claim(settings, missing, owner)
    result.waiting += len(missing) - len(claimed)
    if claimed:
        with held(claimed, owner, settings.watch.lease, settings.tracking):
            result.outcomes += _looked(settings, split_settings, claimed, owner, result)
    return [
        VersionOutcome(identity.model.label, split.name, "found", finished[identity.digest])
        for identity in identities
        if identity.digest in finished
    ]


def _looked(
    settings: EvaluationSettings,
    split: SplitSettings,
    claimed: list[EvaluationIdentity],
    owner: str,
    result: Tick,
) -> list[VersionOutcome]:
    """Evaluate versions, each at the level that its account has for a further look."""
    counted = "congruence_test" in requested_metrics(settings.metrics)
    for identity in claimed if counted else []:
        open_look(identity, owner, settings.tracking)
    outcomes = _evaluate(settings, split, claimed)
    by_label = {outcome.label: outcome for outcome in outcomes if outcome.status in ("evaluated", "found")}
    for identity in claimed if counted else []:
        outcome = by_label.get(identity.model.label)
        said = None if outcome is None else close_look(identity, outcome.metrics, settings.tracking)
        if said is not None:
            result.looks[identity.model.label, identity.split_name] = said
    return outcomes


def _claim(settings: EvaluationSettings, missing: list[EvaluationIdentity], owner: str) -> list[EvaluationIdentity]:
    now, tracking, lease = time.time(), settings.tracking, settings.watch.lease
    due = [identity for identity in missing if is_due(read_failure(identity, tracking), settings.watch, now=now)]
    drop_expired(due, tracking)
    claimed = [identity for identity in due if claim(identity, owner, lease, tracking)]
    if not claimed:
        return []
    # Between the first look and the claim another watcher may have finished, or failed.
    finished = finished_identities(claimed[0].split_name, tracking)
    kept = [
        identity
        for identity in claimed
        if identity.digest not in finished and is_due(read_failure(identity, tracking), settings.watch, now=time.time())
    ]
    for identity in claimed:
        if identity not in kept:
            release(identity, owner, tracking)
    return kept


def _evaluate(
    settings: EvaluationSettings, split: SplitSettings, identities: list[EvaluationIdentity]
) -> list[VersionOutcome]:
    """Evaluate versions on one split; failures are counted and shown on the version."""
    labels = ", ".join(identity.model.label for identity in identities)
    uris = [identity.model.uri for identity in identities]
    narrowed = settings.model_copy(update={"models": uris, "splits": [split], "gate": None})
    try:
        outcomes = evaluate(narrowed, f"{labels} on {split.name}")
    except TrackingError:
        raise
    except Exception as error:  # a watcher outlives whatever one evaluation may raise
        if len(identities) > 1:
            # One of them may have spoiled it for all: each on its own.
            return [outcome for identity in identities for outcome in _evaluate(settings, split, [identity])]
        said = str(error) if isinstance(error, CongruenceError) else f"{type(error).__name__}: {error}"
        outcomes = [VersionOutcome(identities[0].model.label, split.name, "failed", error=said)]
    by_label = {identity.model.label: identity for identity in identities}
    for outcome in outcomes:
        if outcome.status == "failed":
            log_failure(by_label[outcome.label], outcome.error or "no reason given", settings.tracking)
    return outcomes


def watch(
    settings: EvaluationSettings,
    *,
    every: float | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Tick until ``stop`` is set; an MLflow that does not answer is waited for.

    Args:
        settings: the evaluation file's content.
        every: seconds between the starts of two ticks; by default ``watch.every``.
        stop: ends the watch after the tick that runs.

    Raises:
        SettingsError: nothing says which models to watch.
    """
    pause, stop, owner = every or settings.watch.every, stop or threading.Event(), new_owner()
    said: list[str] = []
    console.print(f"watching, one look every {pause:.0f} s; Ctrl-C or SIGTERM stops at once, finished work is saved")
    while not stop.is_set():
        started = time.monotonic()
        try:
            result = tick(settings, owner=owner)
            printed = report(result)
            said, problems = result.problems, [problem for problem in result.problems if problem not in said]
            for problem in problems:
                notify(settings.notify, "congruence: a split cannot be evaluated", problem)
            if printed:
                console.print(f"watching; next look in {pause:.0f} s")
        except TrackingError as error:
            console.print(f"{error}\nstill watching: next try in {pause:.0f} s", soft_wrap=True)
        stop.wait(max(0.0, pause - (time.monotonic() - started)))


def report(result: Tick, *, alone: bool = False) -> bool:
    """Print what a tick did, if anything; whether there was something.

    Args:
        result: of the tick.
        alone: it is the only one, so that nothing to do is said, too.
    """
    for outcome in result.outcomes:
        mean = outcome.metrics.get("cce_mean")
        what = str(outcome.error) if outcome.status == "failed" else f"CCE {mean}" if mean is not None else ""
        console.print(f"{outcome.status} {outcome.label} on {outcome.split}: {what}", soft_wrap=True)
        if (look := result.looks.get((outcome.label, outcome.split))) is not None:
            console.print(f"  {look}", soft_wrap=True)
    for decision in result.decisions:
        said = "; ".join([*decision.reasons, *decision.notes])
        console.print(f"gate {decision.outcome} {decision.candidate.label}: {said}", soft_wrap=True)
    for problem in result.problems:
        console.print(f"problem with {problem}", soft_wrap=True)
    if alone and not (result.outcomes or result.decisions or result.problems):
        rest = f"; {result.waiting} claimed by another watcher or waiting for the next try" if result.waiting else ""
        console.print(
            f"nothing to evaluate: the versions that are watched have their evaluations{rest}", soft_wrap=True
        )
    return bool(result.outcomes or result.problems)
