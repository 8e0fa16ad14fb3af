"""Logging a gate's decision to MLflow: a run with the table of reasons, and tags that lead to it from the version."""

from __future__ import annotations

from congruence.tasks.comparison.gate import OUTCOMES, UNCOMPARED, GateCheck, GateDecision
from congruence.tasks.mlflow.identity import GATE_PROTOCOL, PREFIX
from congruence.tasks.mlflow.links import run_place
from congruence.tasks.mlflow.logged_run import RunContent, log_once
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.mlflow.tables import table_json
from congruence.tasks.mlflow.version_tags import set_version_tags
from congruence.tasks.runtime.masking import mask_text
from congruence.tasks.scores.meanings import probability

GATE_FILE = "gate.json"


def log_decision(decision: GateDecision, settings: TrackingSettings) -> str:
    """Log a decision and return its run id; the same decision is logged once.

    The version's tags ``cce_gate``, ``cce_gate_reasons``, ``cce_gate_protocol`` and ``cce_gate_run`` say it, by which
    protocol's numbers it was, and lead to the run.
    """
    model, baseline = decision.candidate.model, decision.baseline
    identity = {
        "model": model.uri,
        "baseline": baseline.model.uri if baseline else None,
        "settings": decision.settings.model_dump(mode="json"),
        "checks": [vars(check) for check in decision.checks],
    }
    opened = {
        PREFIX + "kind": "gate",
        PREFIX + "model": model.name,
        PREFIX + "version": model.version,
        "cce_gate": decision.outcome,
    }
    experiment, name = settings.gate_experiment_name(model.name), f"{model.label} {decision.outcome}"
    run = log_once(experiment, name, identity, opened, lambda _: _content(decision), settings)
    run_id = str(run.info.run_id)
    held = len(decision.checks)
    reasons = (
        ["its rule holds" if held == 1 else f"all {held} rules hold", *unusual(decision)]
        if decision.passed
        else decision.reasons
    )
    tags = {
        "cce_gate": decision.outcome,
        "cce_gate_reasons": mask_text("; ".join([*reasons, *decision.notes]))[:2000],
        GATE_PROTOCOL: decision.candidate.protocol_digest,
        "cce_gate_run": run_place(settings, str(run.info.experiment_id), run_id),
    }
    if model.version:
        set_version_tags(model, tags, settings)
    return run_id


def _content(decision: GateDecision) -> RunContent:
    candidate, baseline, rules = decision.candidate, decision.baseline, decision.settings
    params = {
        "model": candidate.model.name,
        "version": candidate.model.version,
        "baseline": baseline.label if baseline else "none",
        "protocol_digest": candidate.protocol_digest,
        "splits": ", ".join(dict.fromkeys(check.split for check in decision.checks if check.split)),
        **{f"gate.{name}": value for name, value in rules.model_dump(mode="json").items()},
    }
    outcomes = [check.outcome for check in decision.checks]
    counts = {f"rules_{outcome}": float(outcomes.count(outcome)) for outcome in OUTCOMES}
    tables = {GATE_FILE: table_json(decision.table())}
    return RunContent(params, counts, tables, note(decision), model_id=candidate.model.model_id)


def note(decision: GateDecision) -> str:
    """The decision as people read it, in Markdown: a line, then one row per rule, the failed ones first."""
    against = f" against **{decision.baseline.label}**" if decision.baseline else ", with no version to compare with"
    lines = [
        f"The gate on **{decision.candidate.label}**{against}: **{decision.outcome}**.",
        "",
        "| | rule | split | value | limit | baseline | difference [95 % interval] | p |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(check) for check in decision.sorted_checks]
    return "\n".join([*lines, "", *(f"- {reason}" for reason in [*decision.reasons, *decision.notes])])


def unusual(decision: GateDecision) -> list[str]:
    """The rules that pass because there was nothing to compare, which people must not read as a comparison."""
    return [check.reason for check in decision.checks if check.rule in UNCOMPARED]


def _row(check: GateCheck) -> str:
    difference = "-"
    if check.difference is not None and check.low is not None and check.high is not None:
        difference = f"{check.difference:+.3g} [{check.low:+.3g}, {check.high:+.3g}]"
    numbers = ["-" if item is None else f"{item:.4g}" for item in (check.value, check.limit, check.baseline)]
    word = "passed" if check.passed else f"**{check.outcome}**"
    cells = [word, check.rule, check.split or "-", *numbers, difference, probability(check.p_value)]
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"
