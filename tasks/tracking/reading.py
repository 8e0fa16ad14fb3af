"""Reading logged evaluations back, for comparison."""

from __future__ import annotations

import tempfile
from pathlib import Path

import mlflow.artifacts
import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from congruence.tasks.comparison import ComparedVersion
from congruence.tasks.evaluation import Metric, SplitSummary
from congruence.tasks.registry import ModelVersion, resolve
from congruence.tasks.tracking.connection import TrackingError, connect, persist
from congruence.tasks.tracking.identity import COMPLETE, PREFIX, STATE
from congruence.tasks.tracking.settings import TrackingSettings

SCORES_FILE = "scores/scores.parquet"
SECONDS = "seconds_"  # no slash: MLflow would draw the group before all other metrics


def logged_versions(
    split: str, settings: TrackingSettings, *, model: str | None = None, protocol_digest: str | None = None
) -> list[ComparedVersion]:
    """The latest complete evaluation of every version on ``split``, oldest version first, with all of its scores.

    Args:
        model: of this registered model alone.
        protocol_digest: under this protocol alone; by default under the one of the latest evaluation of the split.

    Raises:
        TrackingError: MLflow does not answer, or nothing was evaluated on this split.
    """
    client = connect(settings)
    runs = persist("looking for evaluations", lambda: complete_runs(client, split, settings), settings)
    tags = [run.data.tags for run in runs]
    if model is not None:
        tags = [item for item in tags if item[PREFIX + "model"] == model]
    if tags and protocol_digest is None:
        protocol_digest = tags[0][PREFIX + "protocol_digest"]
    kept = {
        run.data.tags[PREFIX + "model_uri"]: run
        for run in reversed(runs)
        if run.data.tags[PREFIX + "protocol_digest"] == protocol_digest
        and model in (None, run.data.tags[PREFIX + "model"])
    }
    if not kept:
        raise TrackingError(
            f"split '{split}': no complete evaluation"
            + (f" of {model}" if model else "")
            + f" in experiment {settings.experiment_name(split)}; run `congruence evaluate` first"
        )
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
        metrics=_metrics(run),
        scores=persist("reading the scores", lambda: _scores(run_id, settings), settings),
        run_id=run_id,
    )


def logged_metrics(run_id: str, settings: TrackingSettings) -> dict[str, Metric]:
    """The metrics of a logged evaluation with their intervals, without its scores.

    Raises:
        TrackingError: MLflow does not answer.
    """
    client = connect(settings)
    return _metrics(persist("reading the run", lambda: client.get_run(run_id), settings))


def gate_baseline(
    candidate: ComparedVersion, alias_or_version: str | None, settings: TrackingSettings
) -> ComparedVersion | None:
    """The logged evaluation of the version that ``candidate`` would replace; None where there is no such version yet.

    Raises:
        RegistryError: a version number that does not exist.
        TrackingError: the version exists, but has no evaluation under the candidate's split and protocol.
    """
    version = baseline_version(candidate.model.name, alias_or_version, settings)
    if version is None:
        return None
    wanted = version.uri
    client = connect(settings)
    runs = persist("looking for evaluations", lambda: complete_runs(client, candidate.split.name, settings), settings)
    for run in runs:
        tags = run.data.tags
        if (
            tags[PREFIX + "model_uri"] == wanted
            and tags[PREFIX + "split_digest"] == candidate.split.digest
            and tags[PREFIX + "protocol_digest"] == candidate.protocol_digest
        ):
            return read_version(str(run.info.run_id), settings)
    raise TrackingError(
        f"{wanted}: the gate's baseline has no evaluation on split '{candidate.split.name}' under protocol "
        f"{candidate.protocol_digest}; evaluate it too"
    )


def baseline_version(name: str, alias_or_version: str | None, settings: TrackingSettings) -> ModelVersion | None:
    """The version of the registered model ``name`` that a gate compares with; None where the alias is on no version.

    Raises:
        RegistryError: a version number that does not exist.
        TrackingError: MLflow does not answer.
    """
    if alias_or_version is None:
        return None
    if alias_or_version.isdigit():
        return resolve(f"models:/{name}/{alias_or_version}")
    model = persist("reading the aliases", lambda: connect(settings).get_registered_model(name), settings)
    if alias_or_version not in model.aliases:
        return None
    return resolve(f"models:/{name}/{model.aliases[alias_or_version]}")


def complete_runs(client: MlflowClient, split: str, settings: TrackingSettings) -> list[Run]:
    """Complete evaluations on a split, latest first."""
    experiment = client.get_experiment_by_name(settings.experiment_name(split))
    if experiment is None:
        return []
    runs: list[Run] = []
    token: str | None = None
    while True:
        page = client.search_runs(
            [experiment.experiment_id],
            filter_string=f"tags.`{STATE}` = '{COMPLETE}' and tags.`{PREFIX}kind` = 'evaluation'",
            run_view_type=ViewType.ACTIVE_ONLY,
            order_by=["attributes.start_time DESC"],
            page_token=token,
        )
        runs.extend(page)
        token = page.token
        if not token:
            return runs


def _scores(run_id: str, settings: TrackingSettings) -> pd.DataFrame:
    with tempfile.TemporaryDirectory(prefix="congruence-") as folder:
        path = mlflow.artifacts.download_artifacts(
            run_id=run_id, artifact_path=SCORES_FILE, dst_path=folder, tracking_uri=settings.uri
        )
        return pd.read_parquet(Path(path))


def _metrics(run: Run) -> dict[str, Metric]:
    values = run.data.metrics
    return {
        name: Metric(value, values.get(f"{name}_low"), values.get(f"{name}_high"))
        for name, value in values.items()
        if "/" not in name and not name.startswith(SECONDS) and not _is_bound(name, values)
    }


def _is_bound(name: str, names: object) -> bool:
    stem, _, side = name.rpartition("_")
    return side in ("low", "high") and stem in names  # type: ignore[operator]


def _version_order(run: Run) -> tuple[str, int, str]:
    version = run.data.tags[PREFIX + "version"]
    return run.data.tags[PREFIX + "model"], int(version) if version.isdigit() else 0, str(run.info.run_id)
