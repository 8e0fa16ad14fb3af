"""Logging the reliability of new inputs to MLflow: one run per version, reference split and inputs, written once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelInput, Metric, Run

from congruence.tasks.mlflow.connection import connect, persist
from congruence.tasks.mlflow.identity import COMPLETE, PREFIX, STATE, identity_digest
from congruence.tasks.mlflow.runs import close_run, log_params, open_identified, set_tags
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.mlflow.tables import table_json
from congruence.tasks.report.reliability import REPORT_FILE, SCORES_FILE, headlines
from congruence.tasks.scores.evaluation import SplitSummary
from congruence.tasks.scores.reliability import Reliability

POINTS_FILE, REJECTION_FILE, RISK_FILE = "tables/points.json", "tables/rejection.json", "tables/risk_coverage.json"
_DATASET_DIGEST = 36


def log_reliability(found: Reliability, files: Sequence[Path], settings: TrackingSettings) -> str:
    """Log what was found about new inputs and return the run id; the same inputs under the same version: one run.

    Args:
        found: the reliability.
        files: what ``write_reliability`` wrote; they become artifacts.
        settings: where to log.

    Raises:
        TrackingError: MLflow refuses, or does not answer within ``settings.patience`` seconds.
    """
    client = connect(settings)
    run = persist("opening the run", lambda: _open(client, found, settings), settings)
    run_id = str(run.info.run_id)
    if run.data.tags.get(STATE) == COMPLETE:
        return run_id
    persist("logging parameters", lambda: log_params(client, run, _params(found)), settings)
    tables = {POINTS_FILE: table_json(found.extremes(settings.table_rows))}
    if found.curves:
        tables[REJECTION_FILE] = table_json(found.rejection_table())
    if found.judgement.curves:
        tables[RISK_FILE] = table_json(found.risk_coverage_table())

    def log_files() -> None:
        for path in files:
            client.log_artifact(run_id, str(path), "plots" if path.suffix == ".png" else None)
        for name, text in tables.items():
            client.log_text(run_id, text, name)

    persist("logging scores, report and plots", log_files, settings)
    persist("logging the inputs", lambda: _log_inputs(client, run_id, found), settings)
    when = int(run.info.start_time)
    metrics = [Metric(name, value, when, 0) for name, value in headlines(found).items()]
    persist("logging metrics", lambda: client.log_batch(run_id, metrics=metrics), settings)
    tags = {"mlflow.loggedArtifacts": json.dumps([{"path": path, "type": "table"} for path in tables])}
    persist("tagging the run", lambda: set_tags(client, run_id, tags | {"mlflow.note.content": _note(found)}), settings)
    persist("closing the run", lambda: close_run(client, run_id, COMPLETE), settings)
    return run_id


def _open(client: MlflowClient, found: Reliability, settings: TrackingSettings) -> Run:
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
    identity = identity_digest(tags | {"losses": sorted(found.curves), "rule": str(found.rule)})
    name = f"{found.model.label} on {found.inputs.rows:,} new inputs"
    return open_identified(
        client, settings.scores_experiment_name(found.reference.name), name, identity, tags, settings
    )


def _params(found: Reliability) -> dict[str, str]:
    values = {
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
    return {name: str(value) for name, value in values.items()}


def _log_inputs(client: MlflowClient, run_id: str, found: Reliability) -> None:
    present = client.get_run(run_id).inputs
    if present is None or not present.dataset_inputs:
        parts = ((found.inputs, "scoring"), (found.reference, "reference"))
        client.log_inputs(run_id, [_dataset(split, context) for split, context in parts])
    if found.model.model_id is not None and (present is None or not present.model_inputs):
        client.log_inputs(run_id, models=[LoggedModelInput(found.model.model_id)])


def _dataset(split: SplitSummary, context: str) -> DatasetInput:
    source = json.dumps({"split": split.name, "digest": split.digest})
    profile = json.dumps({"num_rows": split.rows, "valid_rows": split.valid_rows})
    dataset = Dataset(split.name, split.digest[:_DATASET_DIGEST], "congruence_split", source, profile=profile)
    return DatasetInput(dataset, [InputTag("mlflow.data.context", context)])


def _note(found: Reliability) -> str:
    inputs, reference = found.inputs, found.reference
    lines = [
        str(found.judgement),
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
