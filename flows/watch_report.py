"""What one pass of a watch found, and what people are told of it: lines, tags, pages, events of changed verdicts."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from prefect.settings import PREFECT_API_URL

from congruence.flows.cli.console import say
from congruence.flows.receiver import post_event
from congruence.kernels.monitoring.evidence import Monitor
from congruence.tasks.comparison.gate import GateDecision
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.evaluate.plan import VersionOutcome
from congruence.tasks.mlflow.pages import BEST, place_of, set_version_tags
from congruence.tasks.monitor.account import Account, best_over, read_account
from congruence.tasks.monitor.page import log_over_time
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import ModelVersion

log = logging.getLogger(__name__)
VERDICT_EVENT = "congruence.version.verdict"
VERDICT = "cce_looks"
"""The tag of a version that says in words what all looks at it on a split say; the split's name follows."""


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


def tell_verdicts(
    settings: EvaluationSettings,
    split: SplitSettings,
    watched: list[ModelVersion],
    accounts: Mapping[str, Account],
    result: WatchResult,
) -> None:
    """Tell what accounts say that their versions' tags do not say yet: page, event and, at last, the tag.

    A version that is not registered has no tags: of it is told what a look of this pass led to. Of the versions of one
    registered model that share looks it is told which may still be the best.
    """
    made = {outcome.label for outcome in result.made}
    for version in watched:
        account, tag = accounts[version.label], f"{VERDICT}:{split.name}"
        said, told = f"{split.name}: {account.monitor.sentence()}", version.tags.get(tag)
        is_known = said == told if version.version else version.label not in made
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
        if account.monitor.verdict != "right so far" and (told is None or ": right so far" in told):
            link = place_of(account.looks[-1].run_id, settings.tracking)
            _emit_verdict(version, split.name, account, link)
            sentence = f"{sentence}. {_numbers(account.monitor)} Its look: {link}"
        result.sentences.append(sentence)
        if version.version:
            set_version_tags(version, {tag: said}, settings.tracking)
    for name in dict.fromkeys(version.name for version in watched):
        best = best_over([version for version in watched if version.name == name], accounts, settings)
        if best is None:
            continue
        for label, (version, _) in best.runs.items():
            if label not in best.inside and not version.tags.get(BEST + split.name, "").startswith("not "):
                result.sentences.append(f"{best.said(label)} on {split.name}")
        best.mark(split.name, settings.tracking)


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
        f"enough). p of this look: {monitor.looks[-1].p_value:.2g}."
    )


def _size(logarithm: float) -> str:
    if logarithm < math.log(10.0):
        return f"{math.exp(logarithm):.2g}"
    return f"{math.exp(logarithm):,.0f}" if logarithm < math.log(1e9) else f"10^{logarithm / math.log(10.0):.0f}"


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
