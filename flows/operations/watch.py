"""`congruence watch`: a loop around `evaluate` for the versions of a registry, and looks at those in use on new dates.

A pass evaluates what MLflow lacks and finds the rest, as `congruence evaluate` does. On a split with ``new_dates_only``
a version that is new is evaluated on all dates of the window, and one in use again on the dates after its last look,
once there are enough rows; what all looks say together is the account (``tasks.monitor``). A pass remembers nothing:
what was evaluated is in MLflow, and what was said of it stands on the version.
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import date

import numpy as np

from congruence.flows.cli.console import say
from congruence.flows.cli.session import run_evaluation
from congruence.flows.operations.gate import gate_outcomes
from congruence.flows.operations.looks import (
    Evaluate,
    WatchResult,
    look_at_stored,
    report,
    require_test,
    stored_versions,
    tell_verdicts,
)
from congruence.kernels.rng import hashed_keys
from congruence.tasks.comparison.gate import GateDecision
from congruence.tasks.data.inputs import combine
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import open_split
from congruence.tasks.data.usable import dates_of, split_of_rows
from congruence.tasks.evaluate.plan import with_fitted_encoder
from congruence.tasks.mlflow.connection import TrackingError, use_tracking, with_retries
from congruence.tasks.mlflow.identity import dates_in_words
from congruence.tasks.mlflow.runs import log_failure
from congruence.tasks.models.registry import matching_versions
from congruence.tasks.monitor.account import Account, kept, read_accounts
from congruence.tasks.monitor.periods import Period
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import FITTED_UNTIL, ModelVersion


def check_once(
    settings: EvaluationSettings,
    *,
    model: str | None = None,
    skipped: Collection[str] = (),
    evaluate: Evaluate = run_evaluation,
) -> WatchResult:
    """Evaluate what the watched versions lack, look at those in use, and apply the gate.

    Of the watched versions ``model`` alone, where one is given (``models:/name/3``), and none whose labels are to be
    ``skipped``. What one split or version raised is in what is returned.

    Raises:
        SettingsError: nothing says which models to watch.
        TrackingError: MLflow does not answer.
    """
    use_tracking(settings.for_workers().tracking)
    result = WatchResult(settings, evaluate)
    if settings.is_of_stored_predictions:
        look_at_stored(result, model=model, skipped=skipped)
        return result
    watched = watched_versions(settings)
    chosen = [version for version in watched if model in (None, version.uri) and version.label not in skipped]
    for split in settings.splits if chosen else []:
        with result.noting(f"split '{split.name}'", TrackingError):  # the other splits go on, and so does the watch
            if split.new_dates_only:
                _look(result, split, watched, chosen)
            else:
                _evaluate(result, split, chosen)
    by_label = {version.label: version for version in chosen}
    for outcome in result.failed:
        log_failure(by_label[outcome.label], outcome.split, str(outcome.error), settings.tracking)
    with result.noting("the gate"):  # such as a baseline that was not evaluated: judged at a later pass
        result.decisions = _judge(result, chosen)
    return result


def watched_versions(settings: EvaluationSettings) -> list[ModelVersion]:
    """Returns the registry versions that ``watch:`` names.

    Raises:
        SettingsError: nothing says which models to watch.
        TrackingError: MLflow does not answer.
    """
    if settings.is_of_stored_predictions:
        return list(stored_versions(settings)[1].values())
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
    if not patterns and not settings.is_of_stored_predictions:
        raise SettingsError('watch.models: none given; name models to watch, for example models: ["angle-*"]')
    return patterns


def _evaluate(result: WatchResult, split: SplitSettings, versions: list[ModelVersion]) -> None:
    """Evaluate versions on one split, or on a part of it, to which its own statistics are then fitted."""
    settings, alone = result.settings, {"splits": [split]}
    fits_itself = settings.statistics_split.name == split.name
    fitted = with_fitted_encoder(settings.model_copy(update=alone) if fits_itself else settings)
    uris = [version.uri for version in versions]
    narrowed = fitted.model_copy(update={**alone, "models": uris, "gate": None})
    rows = settings.watch.in_process_rows and open_split(split, narrowed.plans_folder).rows
    result.outcomes += result.evaluated(narrowed, rows)


def _look(result: WatchResult, split: SplitSettings, watched: list[ModelVersion], chosen: list[ModelVersion]) -> None:
    """Evaluate versions on the dates that no look at them has seen, and tell what their accounts say then."""
    settings = result.settings
    require_test(settings)
    dates = dates_of(split)
    accounts = read_accounts(watched, split, settings)
    wanted: dict[str, tuple[SplitSettings, list[ModelVersion]]] = {}
    for version in chosen:
        if part := _due_part(result, version, accounts[version.label], dates, split):
            wanted.setdefault(part.model_dump_json(), (part, []))[1].append(version)
        else:
            result.found(split.name, accounts, [version.label])
    for part, versions in wanted.values():
        _evaluate(result, part, versions)
        accounts |= read_accounts(versions, split, settings)
    tell_verdicts(result, split, watched, accounts)


def _due_part(
    result: WatchResult, version: ModelVersion, account: Account, dates: list[date], split: SplitSettings
) -> SplitSettings | None:
    """The part of a split that a version is to be looked at on; None where nothing is due, or too few rows are.

    Rows whose keys a look of the account has counted are left out. Dates that came after a look at later ones are not
    looked at, which is noted.
    """
    settings = result.settings
    held = set(version.aliases)  # by which a version is in use
    if account.looks and not (held & set(settings.watch.in_use) if settings.watch.in_use else held):
        return None
    fitted = version.tags.get(FITTED_UNTIL, "")
    after = max(account.until, fitted)
    due = [day for day in dates if day.isoformat() > after]
    result.notes += [f"{version.label} on {split.name}: {each}" for each in _late(account, dates, fitted)]
    if not due:
        return None
    part = split.model_copy(update={"since": due[0], "until": due[-1], "last": None, "new_dates_only": False})
    opened = open_split(part, settings.plans_folder)
    fresh = np.ones(opened.rows, dtype=bool)
    if split.key is not None and account.looks:
        counted = np.concatenate([kept(look, "keys", settings) for look in account.looks])
        fresh = ~np.isin(hashed_keys(opened.keys()), counted)
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


def _late(account: Account, dates: list[date], fitted: str) -> Iterator[str]:
    """The dates that came after a look at later ones, or among those of a look: no look will count them."""
    seen = [Period.of(look.split.period) for look in account.looks]
    between = [day for day in dates if fitted < day.isoformat() <= account.until]
    if late := [day for day in between if not any(each.since <= day <= each.until for each in seen)]:
        others = f" and {len(late) - 1} more date{'s' if len(late) > 2 else ''}" if late[1:] else ""
        after = dates_in_words(str(next(each for each in seen if each.since > late[0])))
        yield (
            f"{late[0]}{others} came after the look at {after}, and the watch looks at later dates alone; "
            "`congruence evaluate` with since: and until: of the split counts them"
        )
    for look, period in zip(account.looks, seen, strict=True):
        more = sum(period.since <= day <= period.until for day in dates) - look.split.dates
        if look.split.dates and more > 0:
            some, them = ("1 date", "it") if more == 1 else (f"{more} dates", "them")
            yield f"{some} of {dates_in_words(str(period))} came after the look at these, which does not count {them}"


def _judge(result: WatchResult, versions: list[ModelVersion]) -> list[GateDecision]:
    """Apply the gate to what was evaluated now, and to what was found on every split and never judged."""
    settings = result.settings
    found = Counter(outcome.label for outcome in result.outcomes if outcome.status == "found")
    labels = {outcome.label for outcome in result.outcomes if outcome.status == "evaluated"}
    labels |= {
        version.label
        for version in versions
        if "cce_gate" not in version.tags and found[version.label] == len(settings.splits)
    }
    return gate_outcomes(settings, [outcome for outcome in result.outcomes if outcome.label in labels])


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
                known = result.problems + result.notes
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
