"""Reading logged evaluations back, for comparison."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import mlflow.artifacts
import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Run

from congruence.tasks.comparison import ComparedVersion
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.scores.evaluation import Metric, SplitSummary
from congruence.tasks.tracking.conditions import Conditions
from congruence.tasks.tracking.connection import TrackingError, connect, persist
from congruence.tasks.tracking.finished import SLICES, complete_runs, run_metrics
from congruence.tasks.tracking.identity import COMPLETE, PREFIX, STATE
from congruence.tasks.tracking.settings import TrackingSettings

SCORES_FILE = "scores/scores.parquet"
INFLUENCE_FILE = "scores/influence.parquet"
NOISE_FILE = "scores/influence_noise.parquet"


def logged_versions(
    split: str, settings: TrackingSettings, *, model: str | None = None, conditions: Conditions | None = None
) -> list[ComparedVersion]:
    """The latest complete evaluation of every version on ``split``, oldest version first, with all of its scores.

    Args:
        split: the split's name.
        settings: where evaluations are logged.
        model: of this registered model alone.
        conditions: under these alone. The content of the split and the protocol are those of the latest evaluation of
            the split, where the conditions leave them open.

    Raises:
        TrackingError: MLflow does not answer, or nothing was evaluated on this split under these conditions.
    """
    client, wanted = connect(settings), conditions or Conditions()
    runs = persist("looking for evaluations", lambda: complete_runs(client, split, settings), settings)
    admitted = [run for run in runs if wanted.admit(run.data.tags) and model in (None, run.data.tags[PREFIX + "model"])]
    if not admitted:
        raise TrackingError(
            f"split '{split}': no complete evaluation"
            + (f" of {model}" if model else "")
            + (" as asked" if runs and conditions is not None else "")
            + f" in experiment {settings.experiment_name(split)}; run `congruence evaluate` first"
        )
    latest = replace(Conditions.of(admitted[0].data.tags), settings_digest=None)
    kept = {run.data.tags[PREFIX + "model_uri"]: run for run in reversed(admitted) if latest.admit(run.data.tags)}
    return [read_version(str(run.info.run_id), settings) for run in sorted(kept.values(), key=_version_order)]


def read_version(run_id: str, settings: TrackingSettings) -> ComparedVersion:
    """The logged evaluation in a run, with the scores of all rows.

    Raises:
        TrackingError: MLflow does not answer, or the run holds no complete evaluation.
    """
    client = connect(settings)
    run = persist("reading the run", lambda: client.get_run(run_id), settings)
    tags, params = run.data.tags, run.data.params
    if tags.get(STATE) != COMPLETE or tags.get(PREFIX + "kind") != "evaluation":
        raise TrackingError(f"run {run_id}: holds no complete evaluation; run `congruence evaluate` on its version")
    influence, noise = persist("reading the influence", lambda: _influence(client, run_id, settings), settings)
    return ComparedVersion(
        model=ModelVersion(
            name=tags[PREFIX + "model"],
            version=tags[PREFIX + "version"],
            uri=tags[PREFIX + "model_uri"],
            model_id=tags[PREFIX + "model_id"] or None,
        ),
        split=SplitSummary(
            name=tags[PREFIX + "split"],
            digest=tags[PREFIX + "split_digest"],
            rows=int(params["rows"]),
            valid_rows=int(params["valid_rows"]),
        ),
        protocol_name=params["protocol"],
        protocol_digest=tags[PREFIX + "protocol_digest"],
        metrics=run_metrics(run),
        scores=persist("reading the scores", lambda: _table(run_id, SCORES_FILE, settings), settings),
        run_id=run_id,
        settings_digest=tags.get(PREFIX + "settings_digest", ""),
        influence=influence,
        influence_noise=None if noise is None else noise["noise"].to_numpy(),
        slices=tuple(json.loads(tags.get(SLICES, "[]"))),
    )


def logged_metrics(run_id: str, settings: TrackingSettings) -> dict[str, Metric]:
    """The metrics of a logged evaluation with their intervals, without its scores.

    Raises:
        TrackingError: MLflow does not answer.
    """
    client = connect(settings)
    return run_metrics(persist("reading the run", lambda: client.get_run(run_id), settings))


def _influence(client: MlflowClient, run_id: str, settings: TrackingSettings) -> list[pd.DataFrame | None]:
    """The influence of the reference rows and its noise; None for what an evaluation of before does not hold."""
    present = {item.path for item in client.list_artifacts(run_id, INFLUENCE_FILE.partition("/")[0])}
    return [_table(run_id, file, settings) if file in present else None for file in (INFLUENCE_FILE, NOISE_FILE)]


def _table(run_id: str, file: str, settings: TrackingSettings) -> pd.DataFrame:
    with tempfile.TemporaryDirectory(prefix="congruence-") as folder:
        path = mlflow.artifacts.download_artifacts(
            run_id=run_id, artifact_path=file, dst_path=folder, tracking_uri=settings.uri
        )
        return pd.read_parquet(Path(path))


def _version_order(run: Run) -> tuple[str, int, str]:
    version = run.data.tags[PREFIX + "version"]
    return run.data.tags[PREFIX + "model"], int(version) if version.isdigit() else 0, str(run.info.run_id)
