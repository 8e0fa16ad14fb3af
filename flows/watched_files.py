"""`congruence watch` of stored predictions: each version's rows of each week (or day, or month), as their labels come.

A period is looked at once it is over and enough of its rows have labels, and again where late labels change it; what
all looks say together is the account, as for models that are asked. Beside it stands whether the inputs changed. Where
a period was looked at, the gate judges all labelled rows, as `congruence evaluate` and `congruence gate` do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from congruence.flows.cli.console import say
from congruence.flows.operations.gate import gate_outcomes
from congruence.flows.watch_report import WatchResult, tell_verdicts
from congruence.kernels.errors import CongruenceError
from congruence.kernels.threads import on_one_core
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.stored import StoredPart, StoredTable
from congruence.tasks.data.stored_parts import write_parts
from congruence.tasks.evaluate.evaluation import evaluate as evaluate_plan
from congruence.tasks.evaluate.executors import LocalExecutor, Observer
from congruence.tasks.evaluate.plan import Plan, VersionOutcome
from congruence.tasks.evaluate.splits import open_planned, with_fitted_encoder
from congruence.tasks.evaluate.stored import as_evaluation, named_versions, open_stored, rows_folder, version_addresses
from congruence.tasks.mlflow.connection import TrackingError, connect, with_retries
from congruence.tasks.models.registry import resolve
from congruence.tasks.monitor.account import FOUND_AGAIN, INPUTS, Account, LoggedLook, read_account
from congruence.tasks.monitor.periods import Period, due_parts, inputs_change
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.files import digest_of, load_record, save_record
from congruence.tasks.scores.metrics.registry import requested_metrics
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import ModelVersion

_ONE_CORE_ROWS = 1000
"""So few rows are evaluated sooner on one core: threads that share matrices so small wait for each other."""

Evaluate = Callable[[EvaluationSettings], list[VersionOutcome]]


def outcomes_of(settings: EvaluationSettings, rows: int, evaluate: Evaluate) -> list[VersionOutcome]:
    """Returns the outcomes of an evaluation: in this process where its splits are as short as ``watch:`` says.

    Args:
        settings: of the evaluation.
        rows: of the longest split.
        evaluate: carries out an evaluation of longer ones.
    """
    if settings.encoder.kind != "identity" or not 0 < rows <= settings.watch.in_process_rows:
        return evaluate(settings)
    with on_one_core() if rows <= _ONE_CORE_ROWS else nullcontext():
        return evaluate_plan(Plan(settings), LocalExecutor, Observer())


def stored_versions(settings: EvaluationSettings) -> tuple[StoredTable, dict[str, ModelVersion]]:
    """Returns the table of an evaluation file's stored predictions, and its versions by their names in it.

    Raises:
        CongruenceError: files or columns that are not there, or ``models`` that name no version of them.
    """
    table = open_stored(settings)
    addresses = version_addresses(settings, list(table.rows_of()))
    wanted = named_versions(settings, addresses) if addresses else []
    return table, {
        name: with_retries(f"looking up {uri}", lambda uri=uri: resolve(uri), settings.tracking)  # type: ignore[misc]
        for name, uri in addresses.items()
        if name in wanted
    }


def look_at_stored(
    settings: EvaluationSettings,
    evaluate: Evaluate,
    *,
    model: str | None = None,
    skipped: Collection[str] = (),
) -> WatchResult:
    """Evaluate the periods of stored predictions that are due, tell what the accounts say then, and apply the gate.

    Args:
        settings: the evaluation file's content; MLflow points where they say.
        evaluate: carries out an evaluation.
        model: the version of this address alone.
        skipped: labels of versions to leave alone.

    Raises:
        TrackingError: MLflow does not answer.
    """
    if "congruence_test" not in requested_metrics(settings.metrics):
        raise SettingsError("metrics: looks over time rest on congruence_test; add it, or leave metrics out")
    result, split = WatchResult(), settings.splits[0]
    try:
        table, found = stored_versions(settings)
        versions = {name: each for name, each in found.items() if model in (None, each.uri)}
        accounts = {each.label: read_account(each, split, settings) for each in versions.values()}
        looked_at = {name: accounts[each.label] for name, each in versions.items() if each.label not in skipped}
        due = due_parts(table, looked_at, settings)
        if due:
            say(table.said())
            _evaluate(settings, table, due, versions, result, evaluate)
            accounts = {each.label: read_account(each, split, settings) for each in versions.values()}
    except TrackingError:
        raise
    except CongruenceError as error:
        result.problems.append(f"split '{split.name}': {error}")
        return result
    made = {outcome.label for outcome in result.outcomes}
    for label, account in accounts.items():
        if label not in made and account.looks:
            result.outcomes.append(VersionOutcome(label, split.name, "found", account.looks[-1].run_id))
    result.accounts = {(label, split.name): account for label, account in accounts.items()}
    tell_verdicts(settings, split, list(versions.values()), accounts, result)
    if due and settings.gate is not None:
        try:
            whole = outcomes_of(settings, int(table.chosen.sum()), evaluate)
            result.outcomes += whole
            result.decisions = gate_outcomes(settings, [each for each in whole if each.label in accounts])
        except CongruenceError as error:  # such as a baseline that has no labelled rows yet
            result.problems.append(f"the gate: {error}")
    return result


def _evaluate(
    settings: EvaluationSettings,
    table: StoredTable,
    due: dict[Period, list[StoredPart]],
    versions: dict[str, ModelVersion],
    result: WatchResult,
    evaluate: Evaluate,
) -> None:
    """The outcomes of periods, all in one evaluation, and whether the inputs of each changed."""
    addresses = {name: version.uri for name, version in versions.items()}
    parts = [part for period in due.values() for part in period]
    splits = write_parts(table, parts, addresses, *rows_folder(settings))
    asked = _with_kept_statistics(as_evaluation(settings, splits).model_copy(update={"gate": None}))
    rows = max(sum(len(own) for own in part.rows.values()) for part in parts)
    outcomes = outcomes_of(asked, rows, evaluate)
    client = connect(settings.tracking)
    for outcome in outcomes:
        if outcome.status == "found":  # its labels are those of an earlier look again, which counts from now on
            now = str(int(1000 * time.time()))
            with_retries(
                "logging a look", partial(client.set_tag, str(outcome.run_id), FOUND_AGAIN, now), settings.tracking
            )
    accounts = {each.label: read_account(each, settings.splits[0], settings) for each in versions.values()}
    names = {version.label: name for name, version in versions.items()}
    for outcome in outcomes:
        account = accounts[outcome.label]
        look = next((each for each in account.looks if each.run_id == outcome.run_id), None)
        if look is not None:
            outcome = replace(outcome, split=f"{outcome.split}, {look.since} to {look.until}")
            own = next(each for each in splits if addresses[names[outcome.label]] in each.stored and _is_of(each, look))
            _look_at_inputs(asked, table, own, look, account, names[outcome.label], addresses)
        result.outcomes.append(outcome)


def _is_of(split: SplitSettings, look: LoggedLook) -> bool:
    return (str(split.since), str(split.until)) == (look.since, look.until)


def _look_at_inputs(
    settings: EvaluationSettings,
    table: StoredTable,
    split: SplitSettings,
    look: LoggedLook,
    account: Account,
    name: str,
    addresses: dict[str, str],
) -> None:
    """Say in the run of a look whether its inputs are like those of the version's first period."""
    first = account.looks[0]
    if first.since == look.since:
        return
    period = Period(*(type(split.since).fromisoformat(day) for day in (first.since, first.until)))  # type: ignore[union-attr]
    rows = table.rows_of(*period.ends).get(name)
    if rows is None:
        return
    parts = table.parts({name: rows}, period.since, period.until)
    (before,) = write_parts(table, parts, addresses, *rows_folder(settings))
    change = inputs_change(settings, open_planned(split, settings), open_planned(before, settings))
    client = connect(settings.tracking)
    with_retries(
        "logging whether inputs changed",
        lambda: client.set_tag(look.run_id, INPUTS, change.sentence),
        settings.tracking,
    )


def _with_kept_statistics(settings: EvaluationSettings) -> EvaluationSettings:
    """The settings with the statistics of features that the first looks had: numbers over time then compare."""
    if not settings.encoder.needs_statistics:
        return settings
    split = settings.splits[0]
    named = digest_of([split.name, split.input, settings.encoder.model_dump(mode="json")])[:16]
    path = settings.home_folder / "looks" / f"statistics-{named}.json"
    kept = load_record(path)
    if kept is None:
        first = min(settings.splits, key=lambda each: str(each.since))
        fitted = with_fitted_encoder(settings.model_copy(update={"splits": [first]})).encoder
        kept = {"mean": fitted.mean, "scale": fitted.scale}
        save_record(path, kept)
    encoder = settings.encoder.model_copy(update={name: tuple(kept[name]) for name in ("mean", "scale")})
    return settings.model_copy(update={"encoder": encoder})
