"""`congruence watch`: a loop around `evaluate` for the versions of a registry, and looks at those in use on new dates.

A pass evaluates what MLflow lacks and finds the rest, as `congruence evaluate` does. On a split with ``new_dates_only``
a version that is new is evaluated on all dates of the window, and one in use again on the dates after its last look,
once there are enough rows; what all looks say together is the account (``tasks.monitor``). A pass remembers nothing:
what was evaluated is in MLflow, and what people were told of it stands on the version.
"""

from __future__ import annotations

import fcntl
import logging
import math
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import date

import numpy as np
from prefect.settings import PREFECT_API_URL

from congruence.flows.cli.console import say
from congruence.flows.operations.gate import gate_outcomes
from congruence.flows.prefect.session import run_evaluation
from congruence.flows.receiver import post_event
from congruence.kernels.errors import CongruenceError
from congruence.kernels.monitoring import Monitor
from congruence.kernels.streams import hashed_keys
from congruence.kernels.threads import on_one_core
from congruence.tasks.comparison.gate import GateDecision
from congruence.tasks.data.chosen_rows import split_of_rows
from congruence.tasks.data.digests import combine
from congruence.tasks.data.opening import dates_of
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.evaluate.evaluation import evaluate as evaluate_plan
from congruence.tasks.evaluate.executors import LocalExecutor
from congruence.tasks.evaluate.observer import Observer
from congruence.tasks.evaluate.plan import Plan, VersionOutcome
from congruence.tasks.evaluate.splits import open_planned, use_tracking, with_fitted_encoder
from congruence.tasks.mlflow.connection import TrackingError, with_retries
from congruence.tasks.mlflow.pages import place_of
from congruence.tasks.mlflow.version_tags import log_failure, set_version_tags
from congruence.tasks.models.registry import matching_versions
from congruence.tasks.models.version import ModelVersion
from congruence.tasks.monitor.account import Account, counted_keys, read_account
from congruence.tasks.monitor.page import log_over_time
from congruence.tasks.recalibration.rows import FITTED_UNTIL
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.scores.metrics.registry import requested_metrics
from congruence.tasks.settings.evaluation import EvaluationSettings

log = logging.getLogger(__name__)
VERDICT_EVENT = "congruence.version.verdict"
VERDICT = "cce_looks"
"""The tag of a version that says in words what all looks at it on a split say; the split's name follows."""

_ONE_CORE_ROWS = 1000
"""So few rows are evaluated sooner on one core: threads that share matrices so small wait for each other."""

Evaluate = Callable[[EvaluationSettings], list[VersionOutcome]]


@dataclass
class WatchResult:
    """What one pass over the registry led to.

    Attributes:
        outcomes: of every version on every split, found, evaluated or failed.
        decisions: what the gate said of those that were not judged before.
        problems: splits that could not be evaluated, and why.
        accounts: of the watched versions on splits with ``new_dates_only``, by label and split.
        sentences: what is new in them, with numbers and a link where a verdict changed.
    """

    outcomes: list[VersionOutcome] = field(default_factory=list)
    decisions: list[GateDecision] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    accounts: dict[tuple[str, str], Account] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)

    @property
    def made(self) -> list[VersionOutcome]:
        """The evaluations that were made now, good or failed."""
        return [outcome for outcome in self.outcomes if outcome.status in ("evaluated", "failed")]

    @property
    def failed(self) -> list[VersionOutcome]:
        """The evaluations that failed."""
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]


def check_once(
    settings: EvaluationSettings,
    *,
    model: str | None = None,
    skipped: Collection[str] = (),
    evaluate: Evaluate = run_evaluation,
) -> WatchResult:
    """Evaluate what the watched versions lack, look at those in use, and apply the gate.

    Args:
        settings: the evaluation file's content; its ``watch:`` says which versions.
        model: this version alone (``models:/name/3``), if it is one of the watched.
        skipped: labels of versions to leave alone.
        evaluate: carries out an evaluation.

    Returns:
        What was found and done; what one split or version raised is in it.

    Raises:
        SettingsError: nothing says which models to watch.
        TrackingError: MLflow does not answer.
    """
    use_tracking(settings)
    watched = watched_versions(settings)
    chosen = [version for version in watched if model in (None, version.uri) and version.label not in skipped]
    result = WatchResult()
    for split in settings.splits if chosen else []:
        try:
            if split.new_dates_only:
                _look(settings, split, watched, chosen, result, evaluate)
            else:
                result.outcomes += _evaluated(settings, split, chosen, evaluate)
        except TrackingError:
            raise
        except Exception as error:  # the other splits go on, and so does the watch
            result.problems.append(f"split '{split.name}': {_said(error)}")
    by_label = {version.label: version for version in chosen}
    for outcome in result.failed:
        log_failure(by_label[outcome.label], outcome.split, str(outcome.error), settings.tracking)
    try:
        result.decisions = _judge(settings, chosen, result)
    except CongruenceError as error:  # such as a baseline that was not evaluated: judged at a later pass
        result.problems.append(f"the gate: {error}")
    return result


def watched_versions(settings: EvaluationSettings) -> list[ModelVersion]:
    """Returns the registry versions that ``watch:`` names.

    Raises:
        SettingsError: nothing says which models to watch.
        TrackingError: MLflow does not answer.
    """
    patterns, watched = watched_patterns(settings), settings.watch
    return with_retries(
        "listing model versions",
        lambda: matching_versions(patterns, aliases=watched.aliases, tags=watched.tags),
        settings.tracking,
    )


def watched_patterns(settings: EvaluationSettings) -> list[str]:
    """Returns the names of the models that ``watch:`` names.

    Raises:
        SettingsError: nothing says which models to watch.
    """
    patterns = settings.watch.models or settings.models
    if not patterns:
        raise SettingsError('watch.models: none given; name models to watch, for example models: ["angle-*"]')
    return patterns


def _evaluated(
    settings: EvaluationSettings, split: SplitSettings, versions: list[ModelVersion], evaluate: Evaluate
) -> list[VersionOutcome]:
    """The outcomes of versions on one split, or on a part of it, to which its own statistics are then fitted."""
    alone = {"splits": [split]}
    fits_itself = settings.statistics_split.name == split.name
    fitted = with_fitted_encoder(settings.model_copy(update=alone) if fits_itself else settings)
    uris = [version.uri for version in versions]
    narrowed = fitted.model_copy(update={**alone, "models": uris, "gate": None})
    rows = settings.watch.in_process_rows and open_planned(split, narrowed).rows
    if narrowed.encoder.kind != "identity" or not 0 < rows <= settings.watch.in_process_rows:
        return evaluate(narrowed)
    with on_one_core() if rows <= _ONE_CORE_ROWS else nullcontext():
        return evaluate_plan(Plan(narrowed), LocalExecutor, Observer())


def _look(
    settings: EvaluationSettings,
    split: SplitSettings,
    watched: list[ModelVersion],
    chosen: list[ModelVersion],
    result: WatchResult,
    evaluate: Evaluate,
) -> None:
    """Evaluate versions on the dates that no look at them has seen, and tell what their accounts say then."""
    if "congruence_test" not in requested_metrics(settings.metrics):
        raise SettingsError("metrics: looks at new dates rest on congruence_test; add it, or leave metrics out")
    dates = dates_of(split)
    accounts = {version.label: read_account(version, split, settings) for version in watched}
    wanted: dict[str, tuple[SplitSettings, list[ModelVersion]]] = {}
    for version in chosen:
        account = accounts[version.label]
        if part := _due_part(version, account, dates, split, settings):
            wanted.setdefault(part.model_dump_json(), (part, []))[1].append(version)
        elif account.looks:
            run_id = account.looks[-1].run_id
            result.outcomes.append(VersionOutcome(version.label, split.name, "found", run_id))
    for part, versions in wanted.values():
        result.outcomes += _evaluated(settings, part, versions, evaluate)
        accounts |= {version.label: read_account(version, split, settings) for version in versions}
    result.accounts |= {(label, split.name): account for label, account in accounts.items()}
    _tell(settings, split, watched, accounts, result)


def _due_part(
    version: ModelVersion, account: Account, dates: list[date], split: SplitSettings, settings: EvaluationSettings
) -> SplitSettings | None:
    """The part of a split that a version is to be looked at on; None where nothing is due, or too few rows are.

    Rows whose keys a look of the account has counted are left out.
    """
    if account.looks and not is_in_use(version, settings):
        return None
    after = max(account.until, version.tags.get(FITTED_UNTIL, ""))
    due = [day for day in dates if day.isoformat() > after]
    if not due:
        return None
    part = split.model_copy(update={"since": due[0], "until": due[-1], "last": None, "new_dates_only": False})
    opened = open_planned(part, settings)
    fresh = np.ones(opened.rows, dtype=bool)
    if split.key is not None and account.looks:
        fresh = ~np.isin(hashed_keys(opened.keys_of(opened.shards)), counted_keys(account, settings))
    if np.count_nonzero(fresh) < settings.watch.monitor.least_rows:
        return None
    if fresh.all():
        return part
    say(
        f"{version.label} on {split.name}: {np.count_nonzero(~fresh):,} of {opened.rows:,} new rows have keys that an "
        "earlier look has counted; they are left out"
    )
    rows = np.flatnonzero(fresh)
    path = settings.home_folder / "looks" / f"{combine([opened.digest.encode(), rows.tobytes()])}.parquet"
    return split_of_rows(opened, rows, path, split.name)


def is_in_use(version: ModelVersion, settings: EvaluationSettings) -> bool:
    """Whether a version holds one of the aliases that say so."""
    wanted = settings.watch.in_use
    return any(alias in wanted for alias in version.aliases) if wanted else bool(version.aliases)


def _tell(
    settings: EvaluationSettings,
    split: SplitSettings,
    watched: list[ModelVersion],
    accounts: Mapping[str, Account],
    result: WatchResult,
) -> None:
    """Tell what accounts say that their versions' tags do not say yet: page, event and, at last, the tag."""
    for version in watched:
        account, tag = accounts[version.label], f"{VERDICT}:{split.name}"
        said, told = f"{split.name}: {account.monitor.sentence()}", version.tags.get(tag)
        if not account.looks or said == told:
            continue
        pages = {
            (other.label, each.name): accounts[other.label] if each is split else read_account(other, each, settings)
            for other in watched
            for each in settings.splits
            if other.name == version.name and each.new_dates_only
        }
        log_over_time(version.name, pages, settings.tracking)
        sentence = f"{version.label} on {said}"
        if account.monitor.verdict != "right so far" and (told is None or ": right so far" in told):
            link = place_of(account.looks[-1].run_id, settings.tracking)
            _emit_verdict(version, split.name, account, link)
            sentence = f"{sentence}. {_numbers(account.monitor)} Its look: {link}"
        result.sentences.append(sentence)
        set_version_tags(version, {tag: said}, settings.tracking)


def _emit_verdict(version: ModelVersion, split: str, account: Account, link: str) -> None:
    """Post the event of a changed verdict to Prefect, where this process has a server; what goes wrong is logged."""
    if not PREFECT_API_URL.value():
        return
    monitor, look = account.monitor, account.looks[-1]
    payload = {
        "model": version.uri,
        "split": split,
        "verdict": monitor.verdict,
        "sentence": monitor.sentence(),
        "log_evidence": float(monitor.evidence[-1]),
        "log_change": float(monitor.detector[-1]),
        "p_value": monitor.looks[-1].p_value,
        "link": link,
    }
    try:
        event = uuid.uuid5(uuid.NAMESPACE_URL, f"verdict of {look.run_id}")
        post_event(VERDICT_EVENT, version.name, version.version, payload, event)
    except Exception as error:  # whatever Prefect's client raises: the tag of the version has the verdict
        log.warning("no Prefect event for %s: %s", version.label, error)


def _numbers(monitor: Monitor) -> str:
    return (
        f"Evidence that it is wrong: {_size(float(monitor.evidence[-1]))} ({1.0 / monitor.level:,.0f} is enough). "
        f"Evidence that it changed: {_size(float(monitor.detector[-1]))} ({monitor.average_run_length:,.0f} is "
        f"enough). p of this look: {monitor.looks[-1].p_value:.2g}."
    )


def _size(logarithm: float) -> str:
    if logarithm < math.log(10.0):
        return f"{math.exp(logarithm):.2g}"
    return f"{math.exp(logarithm):,.0f}" if logarithm < math.log(1e9) else f"10^{logarithm / math.log(10.0):.0f}"


def _judge(settings: EvaluationSettings, versions: list[ModelVersion], result: WatchResult) -> list[GateDecision]:
    """Apply the gate to what was evaluated now, and to what was found on every split and never judged."""
    found = Counter(outcome.label for outcome in result.outcomes if outcome.status == "found")
    labels = {outcome.label for outcome in result.outcomes if outcome.status == "evaluated"}
    labels |= {
        version.label
        for version in versions
        if "cce_gate" not in version.tags and found[version.label] == len(settings.splits)
    }
    return gate_outcomes(settings, [outcome for outcome in result.outcomes if outcome.label in labels])


def _said(error: Exception) -> str:
    if isinstance(error, CongruenceError):
        return str(error)
    log.exception("an evaluation ended")
    return f"{type(error).__name__}: {error}"


def watch(settings: EvaluationSettings, *, every: float | None = None, stop: threading.Event | None = None) -> None:
    """Check again and again until ``stop`` is set; an MLflow that does not answer is waited for.

    A version that failed is left alone for ``watch.retry_after``.

    Args:
        settings: the evaluation file's content.
        every: seconds between the starts of two passes; by default ``watch.every``.
        stop: ends the watch after the pass that runs.

    Raises:
        SettingsError: nothing says which models to watch, or another watch runs in the home folder.
    """
    pause, stop, waiting = every or settings.watch.every, stop or threading.Event(), dict[str, float]()
    known: list[str] | None = None
    with only_watch(settings):
        say(f"watching, one pass every {pause:.0f} s; Ctrl-C or SIGTERM stops at once, finished work is saved")
        while not stop.is_set():
            started = time.monotonic()
            try:
                result = check_once(settings, skipped=[label for label, at in waiting.items() if started < at])
            except TrackingError as error:
                say(f"{error}\nstill watching: next try in {pause:.0f} s")
            else:
                waiting |= {item.label: time.monotonic() + settings.watch.retry_after for item in result.failed}
                if report(result, known) or known is None:
                    say(f"watching; next pass in {pause:.0f} s")
                known = result.problems
            stop.wait(max(0.0, pause - (time.monotonic() - started)))


@contextmanager
def only_watch(settings: EvaluationSettings) -> Iterator[None]:
    """No other `congruence watch` runs in the home folder meanwhile.

    Raises:
        SettingsError: one does.
    """
    path = settings.home_folder / "watch.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SettingsError(
                f"home: another `congruence watch` runs in {settings.home_folder}; stop it, or give this one another "
                "folder with --home"
            ) from error
        yield


def report(result: WatchResult, known: list[str] | None = None) -> bool:
    """Print what a pass did, if anything, and return whether there was something.

    Args:
        result: of the pass.
        known: problems that the pass before had already; None where it is the first or only one, so that nothing to
            do is said, too.
    """
    for outcome in result.made:
        mean = outcome.metrics.get("cce_mean")
        what = str(outcome.error) if outcome.status == "failed" else f"CCE {mean}" if mean is not None else ""
        say(f"{outcome.status} {outcome.label} on {outcome.split}: {what}")
    for sentence in result.sentences:
        say(sentence)
    for decision in result.decisions:
        reasons = "; ".join([*decision.reasons, *decision.notes])
        say(f"gate {decision.outcome} {decision.candidate.label}: {reasons}")
    for problem in result.problems:
        if problem not in (known or []):
            say(f"problem with {problem}")
    done = bool(result.made or result.sentences or result.decisions or result.problems)
    if known is None and not done:
        say("nothing to evaluate: the versions that are watched have their evaluations")
    return bool(result.made or result.sentences or set(result.problems) - set(known or []))
