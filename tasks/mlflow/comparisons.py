"""Runs of comparisons, of the gate's decisions and of new inputs: each logged once, found again by what it is of."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from congruence.tasks.comparison.differences import CCE, SQUARED_CCE
from congruence.tasks.comparison.gate import OUTCOMES, UNCOMPARED, GateDecision
from congruence.tasks.comparison.versions import Comparison
from congruence.tasks.mlflow.connection import set_version_tags
from congruence.tasks.mlflow.identity import GATE_PROTOCOL, PREFIX
from congruence.tasks.mlflow.runs import LoggedRun, RunContent, log_once, table_json, write_texts
from congruence.tasks.report.comparison import REPORT_FILE, SCORES_FILE, headlines, sentences_of, summary_of, the_best
from congruence.tasks.runtime.errors import mask_text
from congruence.tasks.scores.reliability import Reliability
from congruence.tasks.sentences.calibration import probability
from congruence.tasks.sentences.inputs import withholding_sentence
from congruence.tasks.settings.sections import TrackingSettings

COMPARISON_FILE = "comparison.html"


def log_comparison(comparison: Comparison, settings: TrackingSettings) -> LoggedRun:
    """Log a comparison beside the split's evaluations; the same comparison is logged once."""
    split, baseline = comparison.split, comparison.baseline
    known = {"split": split.name, "split_digest": split.digest, "protocol_digest": baseline.protocol_digest}
    done = {"baseline": baseline.label, "resamples": comparison.resamples, "seed": comparison.seed}
    identity = {
        "versions": sorted(version.run_id or version.model.uri for version in comparison.versions),
        "split": split.digest,
        "protocol": baseline.protocol_digest,
        "method": "CCE by the influence of the reference rows; parts of CRPS and NLL",
        **done,
    }
    tags = {PREFIX + name: value for name, value in {"kind": "comparison", **known}.items()}
    name = f"{len(comparison.versions)} versions on {split.name}, against {baseline.label}"
    content = partial(_compared, comparison, {**known, **done})
    return log_once(settings.comparisons, name, identity, tags, content, settings)


def _compared(comparison: Comparison, params: Mapping[str, object], folder: Path) -> RunContent:
    metrics = {
        f"{_metric_name(label)}/{name}{suffix}": value
        for label, pair in comparison.pairs.items()
        for name, item in pair.differences.items()
        for suffix, value in (
            ("_difference", item.difference),
            ("_difference_low", item.low),
            ("_difference_high", item.high),
            ("_p_value", item.p_value),
        )
        if value is not None
    }
    # Loaded here: Matplotlib and scikit-learn are of no use to a comparison that is refused.
    from congruence.tasks.plots.comparison import versions_figure
    from congruence.tasks.plots.style import png
    from congruence.tasks.report.comparison import comparison_report

    figure = png(versions_figure({version.label: version.metrics for version in comparison.versions}))
    (folder / "versions.png").write_bytes(figure)
    (folder / COMPARISON_FILE).write_text(comparison_report(comparison))
    tables = {"versions.json": comparison.table()}
    for label, pair in list(comparison.pairs.items())[:20]:
        tables[f"{_metric_name(label)}-differences.json"] = pair.table()
        tables[f"{_metric_name(label)}-points.json"] = pair.largest
        if pair.won is not None:
            tables[f"{_metric_name(label)}-parts.json"] = pair.won.table()
    write_texts(folder, {name: table_json(table) for name, table in tables.items()})
    return RunContent(params, metrics, tables, _note(comparison))


def _note(comparison: Comparison) -> str:
    baseline = comparison.baseline
    lines = [
        f"**{summary_of(comparison)}** {the_best(comparison)}",
        "",
        f"{len(comparison.versions)} versions on **{comparison.split.name}** (protocol `{baseline.protocol_digest}`), "
        f"each against **{baseline.label}** on the same points. Read `{COMPARISON_FILE}` first.",
        "",
        "| version | mean CCE | difference [95 % interval] | difference of squared CCE [95 % interval] | p |",
        "|---|---|---|---|---|",
    ]
    for version in comparison.versions:
        mean = version.metrics.get(CCE)
        found = comparison.pairs[version.label].differences if version is not baseline else {}
        squared = found.get(SQUARED_CCE)
        cells = [f"{mean.value:.4g}" if mean else "-", found.get(CCE, "-"), squared or "-"]
        cells.append("-" if squared is None else probability(squared.p_value))
        lines.append(f"| {' | '.join(map(str, [version.label, *cells]))} |")
    said = [*sentences_of(comparison).values(), *comparison.notes]
    return "\n".join([*lines, "", *(f"- {each}" for each in said)])


def _metric_name(label: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in label)


GATE_FILE = "gate.json"


def log_decision(decision: GateDecision, settings: TrackingSettings) -> LoggedRun:
    """Log a decision; the same decision is logged once.

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
    name = f"{model.label} {decision.outcome}"
    run = log_once(settings.comparisons, name, identity, opened, partial(_decided, decision), settings)
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
        "cce_gate_run": run.place,
    }
    if model.version:
        set_version_tags(model, tags, settings)
    return run


def _decided(decision: GateDecision, folder: Path) -> RunContent:
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
    write_texts(folder, {GATE_FILE: table_json(decision.table())})
    return RunContent(params, counts, [GATE_FILE], decision.markdown(), model_id=candidate.model.model_id)


def unusual(decision: GateDecision) -> list[str]:
    """The rules that pass because there was nothing to compare, which people must not read as a comparison."""
    return [check.reason for check in decision.checks if check.rule in UNCOMPARED]


POINTS_FILE, REJECTION_FILE, RISK_FILE = "tables/points.json", "tables/rejection.json", "tables/risk_coverage.json"


def log_reliability(found: Reliability, files: Sequence[Path], settings: TrackingSettings) -> LoggedRun:
    """Log what was found about new inputs; the same inputs under the same version: one run.

    The files that ``write_reliability`` wrote become artifacts.
    """
    tags = {
        PREFIX + "kind": "scores",
        PREFIX + "model": found.model.name,
        PREFIX + "version": found.model.version,
        PREFIX + "model_uri": found.model.uri,
        PREFIX + "split": found.reference.name,
        PREFIX + "split_digest": found.reference.digest,
        PREFIX + "inputs_digest": found.inputs.digest,
        PREFIX + "protocol_digest": found.protocol.digest,
    }
    # Labels that were added to the inputs change what is logged, and the digest of the inputs does not say so.
    identity = tags | {"losses": sorted(found.curves), "rule": str(found.rule)}
    name = f"{found.model.label} on {found.inputs.rows:,} new inputs"
    content = partial(_reliability_content, found, files, settings)
    return log_once(settings.new_inputs, name, identity, tags, content, settings)


def _reliability_content(
    found: Reliability, files: Sequence[Path], settings: TrackingSettings, folder: Path
) -> RunContent:
    (folder / "plots").mkdir()
    for path in files:
        shutil.copy(path, folder / "plots" if path.suffix == ".png" else folder)
    tables = {POINTS_FILE: table_json(found.extremes(settings.table_rows))}
    if found.curves:
        tables[REJECTION_FILE] = table_json(found.rejection_table())
    if found.judgement.curves:
        tables[RISK_FILE] = table_json(found.risk_coverage_table())
    write_texts(folder, tables)
    return RunContent(
        _reliability_params(found),
        headlines(found),
        tables,
        _reliability_note(found),
        splits=[(found.inputs, "scoring"), (found.reference, "reference")],
        model_id=found.model.model_id,
    )


def _reliability_params(found: Reliability) -> dict[str, object]:
    return {
        "model": found.model.name,
        "version": found.model.version,
        "reference": found.reference.name,
        "reference_digest": found.reference.digest,
        "reference_rows": found.reference.valid_rows,
        "inputs_digest": found.inputs.digest,
        "inputs_rows": found.inputs.rows,
        "inputs_valid_rows": found.inputs.valid_rows,
        "labelled": "yes" if found.curves else "no",
        "protocol": found.protocol.name,
        "protocol_digest": found.protocol.digest,
        "rule": found.rule,
    }


def _reliability_note(found: Reliability) -> str:
    inputs, reference = found.inputs, found.reference
    lines = [
        withholding_sentence(found.judgement),
        "",
        f"**{found.model.label}** on {inputs.valid_rows:,} of {inputs.rows:,} new inputs, judged by the "
        f"{reference.valid_rows:,} labelled rows of **{reference.name}** (protocol `{found.protocol.digest}`). "
        f"**{found.withheld:,}** should be withheld, **{found.unusual:,}** are unusual ({found.rule}).",
        "",
        *(f"- {name}: {value:.4g}" for name, value in headlines(found).items()),
        "",
        f"Read `{REPORT_FILE}` first; every input is in `{SCORES_FILE}`, the extremes in `{POINTS_FILE}`.",
    ]
    return "\n".join(lines)
