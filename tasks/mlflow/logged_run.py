"""Logging a run that is written once: parameters, files, tables, metrics and a note; each step may be repeated."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelInput, Metric, Run

from congruence.tasks.mlflow.connection import connect, with_retries
from congruence.tasks.mlflow.identity import COMPLETE, STATE, identity_digest
from congruence.tasks.mlflow.runs import close_run, log_metrics, log_params, open_identified, set_tags
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.runtime.masking import mask_text
from congruence.tasks.scores.evaluation import SplitSummary

DATASET_DIGEST = 36
"""Characters of a digest that MLflow takes."""


@dataclass(frozen=True)
class RunContent:
    """What a run holds.

    Attributes:
        params: by name.
        metrics: by name.
        tables: by path, in the form that MLflow's page renders (``table_json``); the page offers them.
        note: in Markdown; the page shows it first.
        files: with the folder that each goes to, None for none.
        splits: with what each is used for.
        model_id: of the logged model that it is about.
    """

    params: Mapping[str, object]
    metrics: Mapping[str, float]
    tables: Mapping[str, str]
    note: str
    files: Sequence[tuple[Path, str | None]] = ()
    splits: Sequence[tuple[SplitSummary, str]] = field(default=())
    model_id: str | None = None


def log_once(
    experiment: str,
    name: str,
    identity: Mapping[str, Any],
    tags: Mapping[str, str],
    content: Callable[[Path], RunContent],
    settings: TrackingSettings,
) -> Run:
    """The run of that identity in an experiment, written the first time and left as it is from then on.

    Args:
        experiment: its name.
        name: of the run.
        identity: what makes two runs the same one.
        tags: that it is opened with.
        content: what it holds, made if it is to be written, with a folder for its files.
        settings: where to log.
    """
    client, digest = connect(settings), identity_digest(identity)
    run = with_retries(
        "opening the run", lambda: open_identified(client, experiment, name, digest, tags, settings), settings
    )
    if run.data.tags.get(STATE) != COMPLETE:
        with tempfile.TemporaryDirectory(prefix="congruence-") as folder:
            _write(client, run, content(Path(folder)), settings)
    return run


def _write(client: MlflowClient, run: Run, content: RunContent, settings: TrackingSettings) -> None:
    """Write the content of an open run and close it."""
    run_id = str(run.info.run_id)
    with_retries("logging parameters", lambda: log_params(client, run, content.params), settings)

    def log_files() -> None:
        for path, folder in content.files:
            client.log_artifact(run_id, str(path), folder)
        for name, text in content.tables.items():
            client.log_text(run_id, text, name)

    with_retries("logging tables and report", log_files, settings)
    with_retries("logging the inputs", lambda: log_inputs(client, run_id, content.splits, content.model_id), settings)
    when = int(run.info.start_time)
    metrics = [Metric(name, float(value), when, 0) for name, value in content.metrics.items()]
    with_retries("logging metrics", lambda: log_metrics(client, run_id, metrics), settings)
    tags = {"mlflow.loggedArtifacts": json.dumps([{"path": path, "type": "table"} for path in content.tables])}
    tags["mlflow.note.content"] = mask_text(content.note)
    with_retries("tagging the run", lambda: set_tags(client, run_id, tags), settings)
    with_retries("closing the run", lambda: close_run(client, run_id, COMPLETE), settings)


def log_inputs(
    client: MlflowClient, run_id: str, splits: Sequence[tuple[SplitSummary, str]], model_id: str | None
) -> None:
    """Name the splits that a run used, with what for, and its model, unless it names some already."""
    present = client.get_run(run_id).inputs
    if splits and (present is None or not present.dataset_inputs):
        client.log_inputs(run_id, [_dataset(split, context) for split, context in splits])
    if model_id is not None and (present is None or not present.model_inputs):
        client.log_inputs(run_id, models=[LoggedModelInput(model_id)])


def _dataset(split: SplitSummary, context: str) -> DatasetInput:
    source = json.dumps({"split": split.name, "digest": split.digest})
    profile = json.dumps({"num_rows": split.rows, "valid_rows": split.valid_rows})
    dataset = Dataset(split.name, split.digest[:DATASET_DIGEST], "congruence_split", source, profile=profile)
    return DatasetInput(dataset, [InputTag("mlflow.data.context", context)])
