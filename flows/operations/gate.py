"""`congruence gate`: versions judged by the rules of an evaluation file, and what GitHub Actions shows of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from rich.text import Text

from congruence.flows.cli.console import print_line, results
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.comparison.gate import MARKS, GateDecision, apply_gate, may_be_best, not_changed, worst
from congruence.tasks.comparison.gate_settings import GateSettings
from congruence.tasks.comparison.versions import best_of
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.evaluate.plan import VersionOutcome, requested_versions, split_conditions
from congruence.tasks.evaluate.stored import opened
from congruence.tasks.mlflow.comparisons import log_decision
from congruence.tasks.mlflow.connection import TrackingError, alias_holder, set_alias, use_tracking, with_retries
from congruence.tasks.mlflow.identity import finished_evaluations
from congruence.tasks.mlflow.reading import comparable_versions, gate_baseline, with_rows, with_tags
from congruence.tasks.models.registry import baseline_version, resolve
from congruence.tasks.monitor.account import MayBeBest, best_on_split, read_account
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.evaluation import EvaluationSettings

SUMMARY = "GITHUB_STEP_SUMMARY"
_LEVELS = {"failed": "error", "undecided": "warning", "passed": "notice"}


def summary(decisions: Sequence[GateDecision], outcomes: Iterable[VersionOutcome] = ()) -> str:
    """The decisions in GitHub's Markdown: each version's rules, the failed ones first."""
    missing = [item for item in outcomes if item.status == "failed"]
    whole = "failed" if missing else worst(decision.outcome for decision in decisions)
    parts = [f"## Gate: {MARKS[whole]}" if decisions or missing else "## Gate: no version was judged"]
    parts += [f"{MARKS['failed']}: no evaluation of {item.why_not}" for item in missing]
    for decision in decisions:
        parts.append(decision.markdown())
        if decision.place is not None:
            parts.append(f"In MLflow: {decision.place}")
    return "\n\n".join(parts) + "\n"


def show(decisions: Sequence[GateDecision], form: str, file: Path, outcomes: Sequence[VersionOutcome] = ()) -> None:
    """Print what the gate says of each version, and why; for GitHub as annotations and the summary of the step."""
    if form != "github":
        print_decisions(decisions)
        return
    for item in outcomes:
        if item.status == "failed":
            title = f"not evaluated: {item.label} on {item.split}"
            print(annotation("error", title, item.error or "no reason given", file), flush=True)
    for decision in decisions:
        title = f"gate {decision.outcome}: {decision.candidate.label}"
        lines = "\n".join([*decision.reasons, *decision.notes])
        print(annotation(_LEVELS[decision.outcome], title, lines, file), flush=True)
    text = summary(decisions, outcomes)
    if target := os.environ.get(SUMMARY):
        with Path(target).open("a", encoding="utf-8") as written:
            written.write(text)
    else:
        print(text, flush=True)


def annotation(level: str, title: str, message: str, file: Path) -> str:
    """``::error file=...,line=...,title=...::message`` at the ``gate:`` of an evaluation file.

    Source: GitHub Docs, "Workflow commands for GitHub Actions"; what would end a part of the line is escaped.
    """
    root, path = Path(os.environ.get("GITHUB_WORKSPACE", ".")).resolve(), file.resolve()
    shown = path.relative_to(root) if path.is_relative_to(root) else file  # in the repository, where GitHub looks
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    line = next((number for number, text in enumerate(lines, 1) if text.startswith("gate:")), 1)
    properties = {"file": str(shown), "line": str(line), "title": title}
    written = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in properties.items())
    return f"::{level} {written}::{_escaped(message)}"


def _escaped(text: str, separators: str = "") -> str:
    for character in "%\r\n" + separators:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


@dataclass(frozen=True)
class Candidate:
    """One version's evaluations by split, and why there is none on the other splits."""

    splits: Mapping[str, ComparedVersion]
    errors: Mapping[str, str] = field(default_factory=dict)


def gate(settings: EvaluationSettings, *, protocol_digest: str | None = None) -> list[GateDecision]:
    """Judge the versions that ``settings.models`` name by their evaluations under these settings, or another protocol.

    MLflow must point where the settings say.

    Raises:
        SettingsError: no ``gate:`` or no models.
        InvalidInputError: the gate names a metric that was not measured.
        RegistryError: there is no such version, or no such baseline.
        TrackingError: a version, or the baseline, has no evaluation on one of the splits under these settings.
    """
    settings = opened(settings)
    if settings.gate is None:
        raise SettingsError(
            "gate: the evaluation file has none; add one, for example\n"
            "gate:\n  maximum: {cce_mean: 0.05}\n  baseline: champion"
        )
    versions = requested_versions(settings)
    require_baselines(settings)
    judge = _Judge(settings, settings.gate)
    found: dict[str, dict[str, ComparedVersion]] = {version.uri: {} for version in versions}
    for split, wanted in split_conditions(settings, protocol_digest=protocol_digest):
        judged = [each for each in versions if not split.stored or each.uri in split.stored]
        judged = [each for each in judged if not each.has_seen(wanted.split_digest or "")]
        if not judged:
            continue
        finished = judge.finished(split.name)
        logged = comparable_versions(split.name, judged, finished, settings.tracking, conditions=wanted)
        for version, evaluation in zip(judged, logged, strict=True):
            found[version.uri][split.name] = evaluation
    return judge.decide([Candidate(splits) for splits in found.values() if splits])


def gate_outcomes(settings: EvaluationSettings, outcomes: Sequence[VersionOutcome]) -> list[GateDecision]:
    """Judge the versions of a run, whether they were evaluated by it or found: a gate that failed stays failed.

    A version that could not be evaluated on one of the splits fails; one that could be on none is not judged. Without
    a ``gate:`` nothing is judged.

    Raises:
        InvalidInputError: the gate names a metric that was not measured.
        RegistryError: there is no such baseline.
        TrackingError: the baseline has no evaluation that compares.
    """
    if settings.gate is None:
        return []
    settings = opened(settings)
    assert settings.gate is not None
    judge, tracking, candidates = _Judge(settings, settings.gate), settings.tracking, list[Candidate]()
    logged = {each.run_id: each for name in {outcome.split for outcome in outcomes} for each in judge.finished(name)}
    now = cache(lambda uri: with_retries(f"looking up {uri}", lambda: resolve(uri), tracking))
    for label in dict.fromkeys(item.label for item in outcomes):
        own = [outcome for outcome in outcomes if outcome.label == label]
        runs = {outcome.split: logged[outcome.run_id] for outcome in own if outcome.run_id is not None}
        # With the tags that the registry has of the version now, of which its run does not know.
        splits = {split: with_tags(with_rows(run, tracking), now(run.model.uri)) for split, run in runs.items()}
        errors = {outcome.split: outcome.error or "no reason given" for outcome in own if outcome.status == "failed"}
        if splits:
            candidates.append(Candidate(splits, errors))
    return judge.decide(candidates)


def require_baselines(settings: EvaluationSettings) -> None:
    """Look the gate's baseline up for every model that ``settings`` name, so that a wrong one is said before the work.

    Raises:
        RegistryError: there is no such model, or no such baseline.
        TrackingError: MLflow does not answer.
    """
    if settings.gate is None or settings.is_of_stored_predictions:  # whose versions are known once they are read
        return
    use_tracking(settings.for_workers().tracking)
    for name in {version.name for version in requested_versions(settings)}:
        baseline_version(name, settings.gate.baseline, settings.tracking, first_version=settings.gate.first_version)


class _Judge:
    """Judges versions; what all of them need of MLflow it asks for once: by split, by registered model, by both."""

    def __init__(self, settings: EvaluationSettings, rules: GateSettings) -> None:
        self.settings, self.rules = settings, rules
        self.finished = cache(partial(finished_evaluations, settings.tracking))
        self.baseline = cache(
            lambda name: baseline_version(name, rules.baseline, settings.tracking, first_version=rules.first_version)
        )
        self.sets: dict[tuple[str, str], MayBeBest | None] = {}

    def decide(self, candidates: Sequence[Candidate]) -> list[GateDecision]:
        """The decisions, which are logged."""
        settings, alias = self.settings, self.rules.set_alias
        decisions = [self._decided(candidate) for candidate in candidates]
        decisions = _with_the_best_named(candidates, decisions, settings)
        for number, decision in enumerate(decisions):
            decisions[number] = replace(decision, place=log_decision(decision, settings.tracking).place)
        return decisions if alias is None else _with_alias_moved(decisions, alias, settings)

    def _decided(self, candidate: Candidate) -> GateDecision:
        settings, rules, parts = self.settings, self.rules, {}
        stored = [version for version in candidate.splits.values() if version.is_stored]
        alone = [version for version in stored if not self._is_of_common_rows(version)]
        # A version's predictions were stored, and on none of its splits is the baseline evaluated.
        apart = len(alone) == len(candidate.splits)
        for split, version in candidate.splits.items():
            part, own = settings.split_named(split, "splits"), rules
            # No two versions are looked at on the same new dates; stored ones are compared where both have rows.
            if part.new_dates_only or (version in alone and not apart):
                own = rules.without_baseline()
            baseline = None if own.baseline is None else self._evaluated_baseline(version, version.is_stored and apart)
            if baseline is not None:
                baseline = with_rows(baseline, settings.tracking)
            decided = apply_gate(version, baseline, own, seed=settings.seed)
            checks = list(decided.checks)
            if rules.not_changed and (not version.is_stored or split == settings.splits[0].name):
                checks.append(not_changed(read_account(version.model, part, settings).monitor, split))
            recalibrated = any(check.if_recalibrated for check in checks)
            waits = [f"{version.label} passes only once it is recalibrated"] if recalibrated else []
            if rules.may_be_best or (rules.may_be_best is None and rules.set_alias is not None):
                inside, said = self._in_the_set(version, part)
                if rules.may_be_best:
                    checks.append(may_be_best(version.label, split, inside, said))
                elif inside is False:
                    waits.append(said)
            parts[split] = replace(decided, checks=tuple(checks), no_alias="; ".join(waits))
            for read in (version, baseline):
                if read is not None:
                    read.release()
        first_split = next(iter(parts))
        parts[first_split] = parts[first_split].noted(*corrected_on(candidate))
        return GateDecision.over_splits(parts, candidate.errors)

    def _evaluated_baseline(self, version: ComparedVersion, on_other_rows: bool = False) -> ComparedVersion | None:
        """The evaluation that a version is compared with; None where nobody holds the baseline's alias yet."""
        baseline = self.baseline(version.model.name)
        if baseline is None:
            return None
        return gate_baseline(version, baseline, self.finished(version.split.name), on_other_rows=on_other_rows)

    def _is_of_common_rows(self, version: ComparedVersion) -> bool:
        """Whether the baseline was evaluated on the same rows."""
        try:
            self._evaluated_baseline(version)
        except TrackingError:
            return False
        return True

    def _in_the_set(self, version: ComparedVersion, split: SplitSettings) -> tuple[bool | None, str]:
        """Whether a version may be the best of its registered model on a split, None where nobody knows; in words."""
        key = version.model.name, split.name
        if key not in self.sets:
            self.sets[key] = best_on_split(version, split, self.finished(split.name), self.settings)
            if (found := self.sets[key]) is not None:
                found.mark(self.settings.tracking)
        best = self.sets[key]
        return (None, "") if best is None else (best.holds(version.label), best.said(version.label))


def _with_the_best_named(
    candidates: Sequence[Candidate], decisions: Sequence[GateDecision], settings: EvaluationSettings
) -> list[GateDecision]:
    """The decisions, with which of several that passed is the best of its registered model, and why."""
    found = list(decisions)
    passed: dict[str, list[int]] = {}
    for number, item in enumerate(decisions):
        if item.passed and not item.no_alias and item.candidate.model.version:
            passed.setdefault(item.candidate.model.name, []).append(number)
    for numbers in passed.values():
        numbers.sort(key=lambda number: int(decisions[number].candidate.model.version))
        rules = decisions[numbers[0]].settings
        best, why = best_of([candidates[number].splits for number in numbers], rules, seed=settings.seed)
        label = decisions[numbers[best]].candidate.label
        notes = [f"of {len(numbers)} versions that passed the best is {label}: {why}"] if len(numbers) > 1 else []
        for place, number in enumerate(numbers):
            found[number] = found[number].noted(*notes, is_best=place == best)
    return found


def _with_alias_moved(
    decisions: Sequence[GateDecision], alias: str, settings: EvaluationSettings
) -> list[GateDecision]:
    """The decisions, with a note on those that are about the alias.

    It never moves back: a version that passed before, found by a later run, must not replace the newer one; unless
    the newer one is the baseline, which it was then compared with, or passed in the same run and is not the best.
    """
    passed = {decision.candidate.label for decision in decisions if decision.passed}
    found = []
    for decision in decisions:
        model, notes = decision.candidate.model, []
        if decision.passed and decision.no_alias:
            notes = [f"alias {alias} does not move here: {decision.no_alias}"]
        elif decision.is_best:
            beaten = passed | ({decision.baseline.label} if decision.baseline is not None else set())
            numbers = {label.removeprefix(f"{model.name}/") for label in beaten if label != model.label}
            holder = alias_holder(model.name, alias, settings.tracking)
            if holder is not None and holder not in numbers and int(holder) > int(model.version):
                notes = [f"alias {alias} stays on {model.name}/{holder}, which is newer"]
            else:
                notes = [f"alias {alias} is now on {model.label}"]
                if holder != model.version:
                    set_alias(model, alias, settings.tracking)
        found.append(decision.noted(*notes))
    return found


def corrected_on(candidate: Candidate) -> list[str]:
    """What to know of a version that was corrected on labelled rows: where they are among the rows of a split."""
    version = next(iter(candidate.splits.values())).model
    rows = version.tags.get("recalibrated_on")
    if rows is None:
        return []
    seen = [name for name, item in candidate.splits.items() if version.has_seen(item.split.digest)]
    if seen:
        return [
            f"{version.label} was corrected on {rows}, rows of {', '.join(seen)} on which it is judged here: its "
            "numbers flatter it; judge it on rows that it has not seen"
        ]
    return [f"{version.label} was corrected on {rows}; a split that holds these rows flatters it"]


_COLOURS = {"passed": "green", "failed": "red", "undecided": "yellow"}


def print_decisions(decisions: Sequence[GateDecision]) -> None:
    """Print what the gate says of each version, and why."""
    for decision in decisions:
        colour = _COLOURS[decision.outcome]
        said = Text.assemble("gate ", (decision.outcome, colour), f": {decision.candidate.label}")
        results().print(said, soft_wrap=True)
        for line in [*decision.reasons, *decision.notes]:
            print_line(f"  {line}")
        if decision.place is not None:
            print_line(f"  all rules: {decision.place}")
