"""`congruence watch`: evaluate registry versions that lack an evaluation, without anyone's hand.

A tick lists the versions to watch, leaves out those evaluated under the current split, protocol and settings, those
that failed and wait for their next try, and those that another watcher has claimed, and evaluates the rest; versions in
use are looked at again on new rows (``looking``). Nothing is remembered between ticks: all of it is in MLflow, so any
number of watchers may run, stop and start again.
"""

from __future__ import annotations

import threading
import time
from collections import Counter

from congruence.flows.cli.console import console
from congruence.flows.evaluation.results import VersionOutcome
from congruence.flows.evaluation.tracking import use_tracking
from congruence.flows.operations.gate import gate_outcomes
from congruence.flows.scheduling.findings import announce
from congruence.flows.scheduling.looking import Tick, look_at_split
from congruence.kernels.errors import CongruenceError
from congruence.tasks.comparison.gate import GateDecision
from congruence.tasks.mlflow.connection import TrackingError, with_retries
from congruence.tasks.models.registry import ModelVersion, matching_versions
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.watching.claims import new_owner
from congruence.tasks.watching.notification import notify


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
            known += look_at_split(settings, split, versions, owner, result)
        except TrackingError:
            raise
        except CongruenceError as error:  # this split's data or settings: the other splits go on
            result.problems.append(f"split '{split.name}': {error}")
    for outcome in result.failed:
        notify(settings.notify, f"congruence: {outcome.label} on {outcome.split} failed", str(outcome.error))
    result.sentences = announce(result.looks, settings)
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


def watched_patterns(settings: EvaluationSettings) -> list[str]:
    """The names of the models that ``watch:`` names.

    Raises:
        SettingsError: nothing says which models to watch.
    """
    patterns = settings.watch.models or settings.models
    if not patterns:
        raise SettingsError('watch.models: none given; name models to watch, for example models: ["angle-*"]')
    return patterns


def watched_versions(settings: EvaluationSettings) -> list[ModelVersion]:
    """The registry versions that ``watch:`` names (``watched_patterns``)."""
    patterns, watched = watched_patterns(settings), settings.watch
    return with_retries(
        "listing model versions",
        lambda: matching_versions(patterns, aliases=watched.aliases, tags=watched.tags),
        settings.tracking,
    )


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
    first = True
    console.print(f"watching, one look every {pause:.0f} s; Ctrl-C or SIGTERM stops at once, finished work is saved")
    while not stop.is_set():
        started = time.monotonic()
        try:
            result = tick(settings, owner=owner)
            printed = report(result, alone=first)
            said, problems = result.problems, [problem for problem in result.problems if problem not in said]
            for problem in problems:
                notify(settings.notify, "congruence: a split cannot be evaluated", problem)
            if printed or first:
                console.print(f"watching; next look in {pause:.0f} s")
            first = False
        except TrackingError as error:
            console.print(f"{error}\nstill watching: next try in {pause:.0f} s", soft_wrap=True)
        stop.wait(max(0.0, pause - (time.monotonic() - started)))


def report(result: Tick, *, alone: bool = False) -> bool:
    """Print what a tick did, if anything; whether there was something.

    Args:
        result: of the tick.
        alone: it is the first or only one, so that nothing to do is said, too.
    """
    for outcome in result.outcomes:
        mean = outcome.metrics.get("cce_mean")
        what = str(outcome.error) if outcome.status == "failed" else f"CCE {mean}" if mean is not None else ""
        console.print(f"{outcome.status} {outcome.label} on {outcome.split}: {what}", soft_wrap=True)
    for sentence in result.sentences:
        console.print(sentence, soft_wrap=True)
    for decision in result.decisions:
        said = "; ".join([*decision.reasons, *decision.notes])
        console.print(f"gate {decision.outcome} {decision.candidate.label}: {said}", soft_wrap=True)
    for problem in result.problems:
        console.print(f"problem with {problem}", soft_wrap=True)
    if alone and not (result.outcomes or result.looks or result.decisions or result.problems):
        rest = f"; {result.waiting} claimed by another watcher or waiting for the next try" if result.waiting else ""
        console.print(
            f"nothing to evaluate: the versions that are watched have their evaluations{rest}", soft_wrap=True
        )
    return bool(result.outcomes or result.looks or result.problems)
