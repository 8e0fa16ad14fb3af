"""The looks of a watch: at stored predictions as they come in, and what is said of all looks."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from prefect.settings import PREFECT_API_URL

from congruence.flows.cli.console import say
from congruence.flows.operations.gate import gate_outcomes
from congruence.flows.receiver import post_event
from congruence.kernels.errors import CongruenceError
from congruence.kernels.monitoring.evidence import Monitor
from congruence.kernels.threads import on_one_core
from congruence.tasks.comparison.gate import GateDecision
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import open_split
from congruence.tasks.data.stored import StoredPart, StoredTable
from congruence.tasks.evaluate.evaluation import evaluate as evaluate_plan
from congruence.tasks.evaluate.executors import LocalExecutor, Observer
from congruence.tasks.evaluate.plan import Plan, VersionOutcome, with_fitted_encoder
from congruence.tasks.evaluate.stored import (
    as_evaluation,
    named_versions,
    open_stored,
    rows_folder,
    version_addresses,
    write_parts,
)
from congruence.tasks.mlflow.connection import (
    BEST,
    LOOKS,
    TrackingError,
    run_place,
    set_version_tags,
    tag_run,
    with_retries,
)
from congruence.tasks.mlflow.identity import FOUND_AGAIN, INPUTS, dates_in_words
from congruence.tasks.models.registry import resolve
from congruence.tasks.monitor.account import Account, best_over, log_over_time, read_account, read_accounts
from congruence.tasks.monitor.periods import Period, due_parts, inputs_change
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.files import digest_of, load_record, save_record
from congruence.tasks.scores.metrics.registry import requested_metrics
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import ModelVersion

log = logging.getLogger(__name__)
VERDICT_EVENT = "congruence.version.verdict"
_ONE_CORE_ROWS = 1000
"""So few rows are evaluated sooner on one core: threads that share matrices so small wait for each other."""

Evaluate = Callable[[EvaluationSettings], list[VersionOutcome]]


@dataclass
class WatchResult:
    """One pass over the registry: by what it goes, and what it led to.

    ``evaluate`` carries out an evaluation of more rows than are evaluated in this process. ``decisions`` are the gate's
    on versions that were not judged before, ``problems`` splits that could not be evaluated, and why; ``accounts`` are
    those of the watched versions on splits with ``new_dates_only``, by label and split, and ``sentences`` what is new
    in them, with numbers and a link where a verdict changed. ``notes`` are what else a person should know, which a
    watch that goes on says once.
    """

    settings: EvaluationSettings = field(repr=False)
    evaluate: Evaluate = field(repr=False)
    outcomes: list[VersionOutcome] = field(default_factory=list)
    decisions: list[GateDecision] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    accounts: dict[tuple[str, str], Account] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def made(self) -> list[VersionOutcome]:
        """The evaluations that were made now, good or failed."""
        return [outcome for outcome in self.outcomes if outcome.status in ("evaluated", "failed")]

    @property
    def failed(self) -> list[VersionOutcome]:
        """The evaluations that failed."""
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]

    def evaluated(self, settings: EvaluationSettings, rows: int) -> list[VersionOutcome]:
        """The outcomes of an evaluation: in this process where the longest split is as short as ``watch:`` says."""
        if settings.encoder.kind != "identity" or not 0 < rows <= settings.watch.in_process_rows:
            return self.evaluate(settings)
        with on_one_core() if rows <= _ONE_CORE_ROWS else nullcontext():
            return evaluate_plan(Plan(settings), LocalExecutor, Observer())

    def found(self, split: str, accounts: Mapping[str, Account], labels: Iterable[str]) -> None:
        """Count the last look at each of some versions among the outcomes: nothing new was due."""
        for label in labels:
            if looks := accounts[label].looks:
                self.outcomes.append(VersionOutcome(label, split, "found", looks[-1].run_id))

    @contextmanager
    def noting(self, what: str, *passed_on: type[Exception]) -> Iterator[None]:
        """What is raised inside is a problem with ``what``, and the pass goes on; errors to be ``passed_on`` end it."""
        try:
            yield
        except passed_on:
            raise
        except Exception as error:
            said = str(error)
            if not isinstance(error, CongruenceError):
                log.exception("an evaluation ended")
                said = f"{type(error).__name__}: {error}"
            self.problems.append(f"{what}: {said}")


def tell_verdicts(
    result: WatchResult, split: SplitSettings, watched: Sequence[ModelVersion], accounts: Mapping[str, Account]
) -> None:
    """Tell what accounts say that their versions' tags do not say yet: page, event and, at last, the tag.

    A version that is not registered has no tags: of it is said what a look of this pass led to. Of the versions of one
    registered model that share looks it is said which may still be the best.
    """
    settings, made = result.settings, {outcome.label for outcome in result.made}
    result.accounts |= {(label, split.name): account for label, account in accounts.items()}
    for version in watched:
        account, tag = accounts[version.label], LOOKS + split.name
        said, before = f"{split.name}: {account.monitor.sentence()}", version.tags.get(tag)
        is_known = said == before if version.version else version.label not in made
        if not account.looks or is_known:
            continue
        page = page_over_time(version, settings)
        pages = {
            (other.label, each.name): accounts[other.label] if each is split else read_account(other, each, settings)
            for other in watched
            for each in settings.splits
            if page_over_time(other, settings) == page and (each.new_dates_only or settings.is_of_stored_predictions)
        }
        log_over_time(page, pages, settings.tracking)
        sentence = f"{version.label} on {said}"
        if account.looks[-1].inputs:
            sentence = f"{sentence}. {account.looks[-1].inputs.rstrip('.')}"
        if account.monitor.verdict != "right so far" and (before is None or ": right so far" in before):
            link = run_place(settings.tracking, account.looks[-1].experiment, account.looks[-1].run_id)
            _emit_verdict(version, split.name, account, link)
            sentence = f"{sentence}. {_numbers(account.monitor)} Its look: {link}"
        result.sentences.append(sentence)
        if version.version:
            set_version_tags(version, {tag: said}, settings.tracking)
    for name in dict.fromkeys(version.name for version in watched):
        best = best_over([version for version in watched if version.name == name], accounts, settings)
        if best is None:
            continue
        for each in best.versions:
            if each.label not in best.inside and not each.model.tags.get(BEST + split.name, "").startswith("not "):
                result.sentences.append(f"on {split.name}, {best.said(each.label)}")
        best.mark(settings.tracking)


def page_over_time(version: ModelVersion, settings: EvaluationSettings) -> str:
    """Returns the name of the page over time that a version is on: its model's; of stored predictions one for all."""
    if settings.predictions is not None and settings.is_of_stored_predictions:
        return settings.predictions.model or settings.splits[0].name
    return version.name


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
        f"enough). One of the two suffices. p of this look: {monitor.looks[-1].p_value:.2g}."
    )


def _size(logarithm: float) -> str:
    if logarithm < math.log(10.0):
        return f"{math.exp(logarithm):.2g}"
    return f"{math.exp(logarithm):,.0f}" if logarithm < math.log(1e9) else f"10^{logarithm / math.log(10.0):.0f}"


def report(result: WatchResult, known: list[str] | None = None) -> bool:
    """Print what a pass did, if anything, and return whether there was something.

    ``known`` are problems and notes that the pass before had already; None where it is the first or only one, so that
    nothing to do is said, too.
    """
    for outcome in result.made:
        account = result.accounts.get((outcome.label, outcome.split))
        look = next((each for each in account.looks if each.run_id == outcome.run_id), None) if account else None
        when = f", {dates_in_words(look.split.period)}" if look else ""
        said = f"{outcome.label} on {outcome.split}{when}: {outcome.verdict}"
        say(f"{outcome.status} {outcome.why_not if outcome.status == 'failed' else said}")
    for sentence in result.sentences:
        say(sentence)
    for decision in result.decisions:
        reasons = "; ".join([*decision.reasons, *decision.notes])
        say(f"gate {decision.outcome} {decision.candidate.label}: {reasons}")
    for problem in result.problems:
        if problem not in (known or []):
            say(f"problem with {problem}")
    news = [note for note in result.notes if note not in (known or [])]
    for note in news:
        say(note)
    done = bool(result.made or result.sentences or result.decisions or result.problems)
    if known is None and not done:
        watched = result.settings.watch
        few = f", or fewer than {watched.monitor.least_rows:,} new rows (watch: monitor: least_rows)"
        why = f"the versions that are watched have their evaluations{few if result.accounts else ''}"
        if not result.outcomes and not result.accounts:
            named = ", ".join(watched.models or result.settings.models)
            why = f"no version is registered that is watched ({named})"
        say(f"nothing to evaluate: {why}")
    return bool(result.made or result.sentences or news or set(result.problems) - set(known or []))


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


def require_test(settings: EvaluationSettings) -> None:
    """Raise SettingsError where the metrics lack the test that looks over time rest on."""
    if "congruence_test" not in requested_metrics(settings.metrics):
        raise SettingsError("metrics: looks over time rest on congruence_test; add it, or leave metrics out")


def look_at_stored(result: WatchResult, *, model: str | None = None, skipped: Collection[str] = ()) -> None:
    """Evaluate the periods of stored predictions that are due, tell what the accounts say then, and apply the gate.

    The pass takes what is found; see ``check_once``.

    Raises:
        TrackingError: MLflow does not answer.
    """
    settings = result.settings
    split = settings.splits[0]
    require_test(settings)
    with result.noting(f"split '{split.name}'", TrackingError):
        table, found = stored_versions(settings)
        versions = {name: each for name, each in found.items() if model in (None, each.uri)}
        accounts = read_accounts(versions.values(), split, settings)
        looked_at = {name: accounts[each.label] for name, each in versions.items() if each.label not in skipped}
        due = due_parts(table, looked_at, settings)
        if due:
            say(table.said())
            accounts = _evaluate(result, table, [part for parts in due.values() for part in parts], versions)
    if result.problems:
        return
    made = {outcome.label for outcome in result.outcomes}
    result.found(split.name, accounts, [label for label in accounts if label not in made])
    tell_verdicts(result, split, list(versions.values()), accounts)
    if due and settings.gate is not None:
        with result.noting("the gate"):  # such as a baseline that has no labelled rows yet
            whole = result.evaluated(settings, int(table.chosen.sum()))
            result.outcomes += whole
            result.decisions = gate_outcomes(settings, [each for each in whole if each.label in accounts])


def _evaluate(
    result: WatchResult, table: StoredTable, parts: Sequence[StoredPart], versions: Mapping[str, ModelVersion]
) -> dict[str, Account]:
    """Evaluate periods, all in one evaluation, say whether the inputs of each changed, and return the accounts then."""
    settings = result.settings
    addresses = {name: version.uri for name, version in versions.items()}
    splits = write_parts(table, parts, addresses, *rows_folder(settings))
    asked = _with_kept_statistics(as_evaluation(settings, splits).model_copy(update={"gate": None}))
    outcomes = result.evaluated(asked, max(sum(len(own) for own in part.rows.values()) for part in parts))
    for outcome in outcomes:
        if outcome.status == "found":  # its labels are those of an earlier look again, which counts from now on
            when = str(int(1000 * time.time()))
            tag_run("logging a look", str(outcome.run_id), FOUND_AGAIN, when, settings.tracking)
    names = {version.label: name for name, version in versions.items()}
    accounts, says_more = read_accounts(versions.values(), settings.splits[0], settings), False
    for outcome in outcomes:
        looks, name = accounts[outcome.label].looks, names[outcome.label]
        look = next((each for each in looks if each.run_id == outcome.run_id), None)
        if look is None:
            result.outcomes.append(outcome)
            continue
        result.outcomes.append(replace(outcome, split=f"{outcome.split}, {look.split.since} to {look.split.until}"))
        first, now = (Period.of(each.split.period) for each in (looks[0], look))
        before = table.rows_of(*first.ends).get(name)
        if first.since != now.since and before is not None:
            (earlier,) = write_parts(
                table, table.parts({name: before}, first.since, first.until), addresses, *rows_folder(settings)
            )
            dates = [each for each in splits if (each.since, each.until) == (now.since, now.until)]
            own = next(each for each in dates if addresses[name] in each.stored)
            said = inputs_change(asked, *(open_split(each, settings.plans_folder) for each in (own, earlier)))
            tag_run("logging whether inputs changed", look.run_id, INPUTS, said, settings.tracking)
            says_more = True
    return read_accounts(versions.values(), settings.splits[0], settings) if says_more else accounts


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
