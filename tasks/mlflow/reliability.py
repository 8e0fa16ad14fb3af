"""Logging the reliability of new inputs to MLflow: one run per version, reference split and inputs, written once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from congruence.tasks.mlflow.identity import PREFIX
from congruence.tasks.mlflow.runs import RunContent, log_once
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.mlflow.tables import table_json
from congruence.tasks.report.reliability import REPORT_FILE, SCORES_FILE, headlines
from congruence.tasks.scores.reliability import Reliability
from congruence.tasks.sentences.inputs import withholding_sentence

POINTS_FILE, REJECTION_FILE, RISK_FILE = "tables/points.json", "tables/rejection.json", "tables/risk_coverage.json"


def log_reliability(found: Reliability, files: Sequence[Path], settings: TrackingSettings) -> str:
    """Log what was found about new inputs and return the run id; the same inputs under the same version: one run.

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
    run = log_once(settings.new_inputs, name, identity, tags, lambda _: _content(found, files, settings), settings)
    return str(run.info.run_id)


def _content(found: Reliability, files: Sequence[Path], settings: TrackingSettings) -> RunContent:
    tables = {POINTS_FILE: table_json(found.extremes(settings.table_rows))}
    if found.curves:
        tables[REJECTION_FILE] = table_json(found.rejection_table())
    if found.judgement.curves:
        tables[RISK_FILE] = table_json(found.risk_coverage_table())
    return RunContent(
        _params(found),
        headlines(found),
        tables,
        _note(found),
        files=[(path, "plots" if path.suffix == ".png" else None) for path in files],
        splits=[(found.inputs, "scoring"), (found.reference, "reference")],
        model_id=found.model.model_id,
    )


def _params(found: Reliability) -> dict[str, object]:
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


def _note(found: Reliability) -> str:
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
