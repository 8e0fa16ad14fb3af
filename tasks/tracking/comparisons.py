"""Logging a comparison and a gate's decision to MLflow."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from urllib.parse import quote

from mlflow import MlflowClient
from mlflow.entities import Metric, Run, ViewType

from congruence.tasks.comparison import Comparison, GateDecision
from congruence.tasks.masking import mask_text
from congruence.tasks.plots import png, versions_figure
from congruence.tasks.report.comparison import comparison_report
from congruence.tasks.tracking.connection import connect, experiment_id, persist
from congruence.tasks.tracking.identity import COMPLETE, IDENTITY, OPEN, PREFIX, STATE
from congruence.tasks.tracking.runs import SOURCE, close_run, log_params, set_tags
from congruence.tasks.tracking.settings import TrackingSettings
from congruence.tasks.tracking.tables import table_json
from congruence.tasks.tracking.version_tags import set_alias

COMPARISON_FILE = "comparison.html"


def log_comparison(comparison: Comparison, settings: TrackingSettings) -> str:
    """Log a comparison beside the split's evaluations and return its run id; the same comparison is logged once.

    Raises:
        TrackingError: MLflow refuses or does not answer.
    """
    client = connect(settings)
    run = persist("opening the run", lambda: _find_or_create(client, comparison, settings), settings)
    run_id = str(run.info.run_id)
    if run.data.tags.get(STATE) == COMPLETE:
        return run_id
    params = {
        "split": comparison.split.name,
        "split_digest": comparison.split.digest,
        "protocol_digest": comparison.baseline.protocol_digest,
        "baseline": comparison.baseline.label,
        "resamples": str(comparison.resamples),
        "seed": str(comparison.seed),
    }
    persist("logging parameters", lambda: log_params(client, run, params), settings)
    with tempfile.TemporaryDirectory(prefix="congruence-") as folder:
        tables = write_comparison(comparison, Path(folder))
        persist("logging tables and report", lambda: client.log_artifacts(run_id, folder), settings)
    when = int(run.info.start_time)
    metrics = [
        Metric(f"{_metric_name(label)}/{name}{suffix}", value, when, 0)
        for label, pair in comparison.pairs.items()
        for name, item in pair.differences.items()
        for suffix, value in (("_difference", item.difference), ("_p_value", item.p_value))
    ]
    persist("logging metrics", lambda: client.log_batch(run_id, metrics=metrics[:1000]), settings)
    tags = {"mlflow.loggedArtifacts": json.dumps([{"path": path, "type": "table"} for path in tables])}
    persist("tagging the run", lambda: set_tags(client, run_id, tags), settings)
    persist("closing the run", lambda: close_run(client, run_id, COMPLETE), settings)
    return run_id


def write_comparison(comparison: Comparison, folder: Path) -> list[str]:
    """Write report, tables and plot of a comparison under ``folder``; returns the names of the small tables."""
    figure = png(versions_figure({version.label: version.metrics for version in comparison.versions}))
    (folder / "versions.png").write_bytes(figure)
    (folder / COMPARISON_FILE).write_text(comparison_report(comparison, {"versions": figure}))
    tables = {"versions.json": comparison.table()}
    for label, pair in list(comparison.pairs.items())[:20]:
        tables[f"{_metric_name(label)}-differences.json"] = pair.table()
        tables[f"{_metric_name(label)}-points.json"] = pair.largest
    for name, table in tables.items():
        (folder / name).write_text(table_json(table))
    return list(tables)


def log_decision(decision: GateDecision, settings: TrackingSettings, *, alias: str | None = None) -> None:
    """Write a gate's decision on the candidate's version, and move ``alias`` to it if told to and it passed.

    Raises:
        TrackingError: MLflow refuses or does not answer.
    """
    client, model = connect(settings), decision.candidate.model
    tags = {
        "cce_gate": "passed" if decision.passed else "failed",
        "cce_gate_reasons": mask_text("; ".join(decision.reasons))[:2000],
    }

    def tag() -> None:
        for key, value in tags.items():
            client.set_model_version_tag(model.name, model.version, key, value)

    if not model.version:
        return
    persist(f"tagging {model.label}", tag, settings)
    if alias is not None and decision.passed:
        set_alias(model, alias, settings)


def compare_runs_link(base: str, experiment: str, run_ids: list[str]) -> str:
    """The address of MLflow's page that compares runs of one experiment."""
    runs, experiments = quote(json.dumps(run_ids)), quote(json.dumps([experiment]))
    return f"{base.rstrip('/')}/#/compare-runs?runs={runs}&experiments={experiments}"


def compare_versions_link(base: str, name: str, run_ids: dict[str, str]) -> str:
    """The address of MLflow's page that compares versions, reading the given run of each version."""
    return (
        f"{base.rstrip('/')}/#/compare-model-versions?name={quote(json.dumps(name))}&runs={quote(json.dumps(run_ids))}"
    )


def _find_or_create(client: MlflowClient, comparison: Comparison, settings: TrackingSettings) -> Run:
    experiment = experiment_id(client, settings.comparison_experiment_name(comparison.split.name), settings)
    identity = _identity(comparison)
    found = client.search_runs([experiment], f"tags.`{IDENTITY}` = '{identity}'", ViewType.ACTIVE_ONLY)
    if found:
        return min(found, key=lambda run: (run.info.start_time, run.info.run_id))
    return client.create_run(
        experiment,
        run_name=f"{len(comparison.versions)} versions on {comparison.split.name}, against {comparison.baseline.label}",
        tags={
            **SOURCE,
            PREFIX + "kind": "comparison",
            PREFIX + "split": comparison.split.name,
            PREFIX + "split_digest": comparison.split.digest,
            PREFIX + "protocol_digest": comparison.baseline.protocol_digest,
            IDENTITY: identity,
            STATE: OPEN,
        },
    )


def _identity(comparison: Comparison) -> str:
    parts = {
        "versions": sorted(version.run_id or version.model.uri for version in comparison.versions),
        "baseline": comparison.baseline.label,
        "split": comparison.split.digest,
        "protocol": comparison.baseline.protocol_digest,
        "resamples": comparison.resamples,
        "seed": comparison.seed,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _metric_name(label: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in label)
