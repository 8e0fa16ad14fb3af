"""`congruence gate`: may an evaluated version replace the one in use? Passes or fails with reasons.

A version passes if it passes on every split of the evaluation file. All candidates are judged against the baseline as
it stands at the start; an alias, where the settings say to set one, moves to the newest version that passed, once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console

from congruence.flows.evaluate import VersionOutcome
from congruence.tasks.comparison import ComparedVersion, GateCheck, GateDecision, GateSettings, apply_gate
from congruence.tasks.errors import SettingsError
from congruence.tasks.registry import select
from congruence.tasks.settings import EvaluationSettings
from congruence.tasks.tracking import (
    baseline_version,
    comparable_versions,
    gate_baseline,
    log_decision,
    place_of,
    read_version,
    set_alias,
)


@dataclass(frozen=True)
class Candidate:
    """One version's evaluations by split, and why there is none on the other splits."""

    splits: Mapping[str, ComparedVersion]
    errors: Mapping[str, str] = field(default_factory=dict)


def gate(settings: EvaluationSettings, *, protocol_digest: str | None = None) -> list[GateDecision]:
    """Judge the versions that ``settings.models`` name by their latest evaluations that compare with the baseline's.

    Raises:
        SettingsError: no ``gate:`` or no models.
        InvalidInputError: the gate names a metric that was not measured.
        TrackingError: a version, or the baseline, has no evaluation on one of the splits.
    """
    gate_settings = require_gate(settings)
    versions = {version.uri: version for pattern in settings.models for version in select(pattern)}
    if not versions:
        raise SettingsError("models: none given; name one, for example --model models:/digit-angle/1")
    candidates = []
    for version in versions.values():
        baseline = baseline_version(version.name, gate_settings.baseline, settings.tracking)
        beside = [version, *([baseline] if baseline is not None else [])]
        splits = {
            split.name: comparable_versions(split.name, beside, settings.tracking, protocol_digest=protocol_digest)[0]
            for split in settings.splits
        }
        candidates.append(Candidate(splits))
    return _decide_all(candidates, gate_settings, settings)


def gate_outcomes(
    settings: EvaluationSettings, outcomes: Sequence[VersionOutcome], unjudged: Collection[str] = ()
) -> list[GateDecision]:
    """Judge the versions that a run has just evaluated; those whose evaluations were all found have been judged before.

    ``unjudged`` are labels of versions to judge all the same, found or not. A version that could not be evaluated on
    one of the splits fails. Without a ``gate:`` nothing is judged.

    Raises:
        InvalidInputError: the gate names a metric that was not measured.
        TrackingError: the baseline has no evaluation that compares.
    """
    if settings.gate is None:
        return []
    candidates: list[Candidate] = []
    fresh = [item.label for item in outcomes if item.status == "evaluated" or item.label in unjudged]
    for label in dict.fromkeys(fresh):
        own = [outcome for outcome in outcomes if outcome.label == label]
        runs = {outcome.split: outcome.run_id for outcome in own if outcome.run_id is not None}
        splits = {split: read_version(run_id, settings.tracking) for split, run_id in runs.items()}
        errors = {outcome.split: outcome.error or "no reason given" for outcome in own if outcome.status == "failed"}
        if splits:
            candidates.append(Candidate(splits, errors))
    return _decide_all(candidates, settings.gate, settings)


def require_gate(settings: EvaluationSettings) -> GateSettings:
    """The evaluation file's gate."""
    if settings.gate is None:
        raise SettingsError(
            "gate: the evaluation file has none; add one, for example\n"
            "gate:\n  maximum: {cce_mean: 0.05}\n  baseline: champion"
        )
    return settings.gate


def _decide_all(
    candidates: list[Candidate], gate_settings: GateSettings, settings: EvaluationSettings
) -> list[GateDecision]:
    decisions = []
    for decision in [_decide(candidate, gate_settings, settings) for candidate in candidates]:
        run_id = log_decision(decision, settings.tracking)
        decisions.append(replace(decision, place=place_of(run_id, settings.tracking)))
    for decision in newest_passed(decisions):
        if gate_settings.set_alias is not None:
            set_alias(decision.candidate.model, gate_settings.set_alias, settings.tracking)
    return decisions


def newest_passed(decisions: Sequence[GateDecision]) -> list[GateDecision]:
    """Of each registered model the decision on the newest version that passed: the one to which an alias moves."""
    newest: dict[str, GateDecision] = {}
    for decision in sorted(decisions, key=lambda item: int(item.candidate.model.version or 0)):
        if decision.passed and decision.candidate.model.version:
            newest[decision.candidate.model.name] = decision
    return list(newest.values())


def _decide(candidate: Candidate, gate_settings: GateSettings, settings: EvaluationSettings) -> GateDecision:
    parts = {}
    for split, version in candidate.splits.items():
        baseline = gate_baseline(version, gate_settings.baseline, settings.tracking)
        parts[split] = apply_gate(version, baseline, gate_settings, seed=settings.seed)
    first = next(iter(parts.values()))
    if len(parts) == 1 and not candidate.errors:
        return first
    checks = [_on_split(check, split) for split, part in parts.items() for check in part.checks]
    checks += [
        GateCheck(f"evaluated on {split}", False, f"not evaluated on {split}: {error}", split=split)
        for split, error in candidate.errors.items()
    ]
    return replace(first, checks=tuple(checks))


def _on_split(check: GateCheck, split: str) -> GateCheck:
    return replace(check, rule=f"{check.rule} on {split}", reason=f"on {split}, {check.reason}")


def print_decisions(decisions: list[GateDecision], gate_settings: GateSettings) -> None:
    """Print what the gate says of each version, and why."""
    out = Console(highlight=False)
    for decision in decisions:
        word = "[green]passed[/green]" if decision.passed else "[red]failed[/red]"
        out.print(f"gate {word}: {decision.candidate.label}", soft_wrap=True)
        for reason in decision.reasons:
            out.print(f"  {reason}", soft_wrap=True, markup=False)
        if decision.place is not None:
            out.print(f"  all rules: {decision.place}", soft_wrap=True, markup=False)
    if gate_settings.set_alias is not None:
        for decision in newest_passed(decisions):
            out.print(f"alias {gate_settings.set_alias} is now on {decision.candidate.label}")
