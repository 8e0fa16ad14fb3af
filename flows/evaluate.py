"""The main flow: embed a split once, then evaluate registry versions on it and log what was found to MLflow.

Plan shards -> embed each into its region of the store (Prefect tasks on Dask) -> predict -> solve once for all versions
-> score -> log. Every step keeps what it finished, so a run after a crash continues and ends with the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
from distributed import Client
from prefect import flow, get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.futures import as_completed
from prefect_dask.task_runners import DaskTaskRunner

from congruence.flows.environment import tracking_uri
from congruence.flows.progress import console, stage
from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import CongruenceError
from congruence.kernels.protocols import Protocol
from congruence.tasks.clusters import dask_client, scheduler_address
from congruence.tasks.contract import PredictiveModel, check_contract, load_predictive_model
from congruence.tasks.embedding import ShardReport, require_few_invalid
from congruence.tasks.embedding_worker import embed_shards, open_store, warm_encoder
from congruence.tasks.encoders import Encoder, EncoderSettings
from congruence.tasks.errors import SettingsError
from congruence.tasks.evaluation import Evaluation, Metric
from congruence.tasks.measurement import Measurement, embedding_map, measure, on_cluster
from congruence.tasks.metric_names import requested_metrics
from congruence.tasks.predictions import predict_split
from congruence.tasks.registry import ModelVersion, select
from congruence.tasks.scoring import score_version
from congruence.tasks.settings import EvaluationSettings, StoreSettings
from congruence.tasks.sources import Shard, Split, SplitSettings, open_split
from congruence.tasks.store import EmbeddingStore
from congruence.tasks.tracking import EvaluationIdentity, find_evaluation, log_evaluation, logged_metrics

MAX_EMBEDDING_TASKS = 200
CONTRACT_ROWS = 8
EXPECTED_COLUMNS = 110  # per version: features of one RBF at the papers' bandwidth, and the noise floor's probes


@dataclass(frozen=True)
class VersionOutcome:
    """What became of one version on one split: ``evaluated`` now, ``found`` finished earlier, or ``failed``."""

    label: str
    split: str
    status: str
    run_id: str | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)
    error: str | None = None


@task(
    name="embed",
    task_run_name="embed {split.name} shards {first}-{last}",
    retries=3,
    retry_delay_seconds=[1, 5, 20],
    cache_policy=NO_CACHE,
    tags=["congruence-embed"],
)
def embed_task(
    split: Split,
    shards: list[Shard],
    first: int,  # noqa: ARG001 - part of the run's name
    last: int,  # noqa: ARG001
    encoder: EncoderSettings,
    store_uri: str,
    store: StoreSettings,
    threads: int,
) -> list[ShardReport]:
    """Embed some shards; finished ones are skipped, so a retry or a second run costs nothing."""
    return embed_shards(split, shards, encoder, store_uri, store, threads)


@task(name="predict", task_run_name="predict {label} on {split.name}", retries=1, cache_policy=NO_CACHE)
def predict_task(model: PredictiveModel, label: str, split: Split, valid: Array, folder: Path) -> Distribution:  # noqa: ARG001
    """Predictive distributions of the valid rows by one version, shard by shard."""
    return predict_split(model, split, valid, folder)


@task(name="solve", task_run_name="solve {split_name} for all versions", cache_policy=NO_CACHE)
def solve_task(
    split_name: str,
    settings: EvaluationSettings,
    protocol: Protocol,
    embeddings: Array,
    targets: Array,
    versions: dict[str, Distribution],
    client: Client,
) -> Measurement:
    """Prepare the Gram system of the split once on the cluster and solve it for every version."""
    folder = settings.home_folder / "solves"
    folder.mkdir(parents=True, exist_ok=True)
    place = on_cluster(
        client,
        settings.solver,
        EXPECTED_COLUMNS * len(versions),
        folder,
        lambda line: console.print(f"solving {split_name}: {line}", soft_wrap=True),
        gpu=settings.cluster.kind == "cuda",
    )
    return measure(settings, protocol, embeddings, targets, versions, prepare_inputs=place)


@task(
    name="log",
    task_run_name="log {label} on {evaluation.split.name}",
    retries=1,  # an MLflow that does not answer is asked again for tracking.patience seconds within one try
    cache_policy=NO_CACHE,
)
def log_task(label: str, evaluation: Evaluation, settings: EvaluationSettings) -> str:  # noqa: ARG001
    """Write one evaluation to MLflow; finding it there already, finish or keep it."""
    return log_evaluation(evaluation, settings.tracking)


@flow(name="evaluate", flow_run_name="evaluate {models_label}", validate_parameters=True)
def evaluate(settings: EvaluationSettings, models_label: str = "registry versions") -> list[VersionOutcome]:  # noqa: ARG001
    """Evaluate the versions that ``settings`` name on each of its splits.

    Args:
        settings: the evaluation file's content.
        models_label: names the run in Prefect's UI.

    Raises:
        CongruenceError: settings, data or models that cannot be evaluated, found before the long work where possible.
    """
    use_tracking(settings)
    versions = [version for pattern in settings.models for version in select(pattern)]
    if not versions:
        raise SettingsError("models: none given; name one, for example --model models:/digit-angle/1")
    outcomes: list[VersionOutcome] = []
    for split in settings.splits:
        outcomes += evaluate_split(settings, split, list({version.uri: version for version in versions}.values()))
    return outcomes


def use_tracking(settings: EvaluationSettings) -> None:
    """Point MLflow at the settings' tracking server, else at the environment's, else at the home folder."""
    mlflow.set_tracking_uri(settings.tracking.uri or tracking_uri(settings.home_folder))
    if settings.tracking.registry_uri:
        mlflow.set_registry_uri(settings.tracking.registry_uri)


def evaluate_split(
    settings: EvaluationSettings, split_settings: SplitSettings, versions: list[ModelVersion]
) -> list[VersionOutcome]:
    """Evaluate ``versions`` on one split; those whose evaluation MLflow already holds are only reported."""
    split = open_split(split_settings, settings.home_folder / "plans")
    encoder = warm_encoder(settings.encoder.model_dump_json(exclude_unset=True))
    protocol = encoder_protocol(settings, encoder)
    outcomes, missing = _found(settings, split, protocol, versions)
    if not missing:
        return outcomes
    models, failures = _load(settings, split, missing)
    outcomes += failures
    if models:
        outcomes += _evaluate_models(settings, split, encoder, protocol, models)
    _table_artifact(split, outcomes)
    return outcomes


def encoder_protocol(settings: EvaluationSettings, encoder: Encoder) -> Protocol:
    """The settings' protocol with its encoder, without which its numbers do not compare."""
    return replace(settings.protocol.protocol(), encoder=f"{encoder.id} {encoder.preprocessing_digest}")


def _found(
    settings: EvaluationSettings, split: Split, protocol: Protocol, versions: list[ModelVersion]
) -> tuple[list[VersionOutcome], list[ModelVersion]]:
    outcomes: list[VersionOutcome] = []
    missing: list[ModelVersion] = []
    metrics = requested_metrics(settings.metrics)
    for version in versions:
        identity = EvaluationIdentity(version, split.name, split.digest, protocol.digest, metrics)
        run_id = find_evaluation(identity, settings.tracking)
        if run_id is None:
            missing.append(version)
        else:
            metrics_found = logged_metrics(run_id, settings.tracking)
            outcomes.append(VersionOutcome(version.label, split.name, "found", run_id, metrics_found))
    return outcomes, missing


def _load(
    settings: EvaluationSettings, split: Split, versions: list[ModelVersion]
) -> tuple[dict[str, PredictiveModel], list[VersionOutcome]]:
    """Load each version and try its contract on a few rows, before hours are spent on embeddings."""
    first = split.shards[0]
    frame = split.frame(first, split.settings.model_input_columns)
    usable = frame.notna().all(axis=1).to_numpy()
    rows = np.flatnonzero(usable)[:CONTRACT_ROWS]
    models, failures = {}, []
    for version in versions:
        try:
            model = load_predictive_model(version.uri, settings.predictions)
            check_contract(model, frame.iloc[rows], split.targets(first)[rows])
            models[version.label] = model
        except CongruenceError as error:
            failures.append(VersionOutcome(version.label, split.name, "failed", error=str(error)))
    return models, failures


def _evaluate_models(
    settings: EvaluationSettings, split: Split, encoder: Encoder, protocol: Protocol, models: dict[str, PredictiveModel]
) -> list[VersionOutcome]:
    store_uri = settings.store.uri or str(settings.home_folder / "embeddings")
    store = open_store(store_uri, settings.store, split, encoder)
    predictions_folder = settings.home_folder / "predictions" / split.digest[:16]
    with dask_client(settings.cluster) as client:
        runner: Any = DaskTaskRunner(address=scheduler_address(client))
        inner = embed_and_predict.with_options(task_runner=runner, flow_run_name=f"embed and predict {split.name}")
        predictive, failures = inner(settings, split, store, store_uri, models, predictions_folder, _threads(client))
        if not predictive:
            return failures
        valid = store.valid()
        embeddings = store.read()[valid]
        targets = np.concatenate([split.targets(shard) for shard in split.shards])[valid]
        measurement = solve_task(split.name, settings, protocol, embeddings, targets, predictive, client)
    picture = embedding_map(embeddings, valid)
    outcomes = failures
    with stage(f"logging {split.name}", len(predictive), "versions") as advance:
        for label, distribution in predictive.items():
            evaluation = score_version(
                settings, split, store, encoder, models[label].identity, distribution, targets, measurement, picture
            )
            run_id = log_task(label, evaluation, settings)
            outcomes.append(VersionOutcome(label, split.name, "evaluated", run_id, evaluation.metrics))
            advance(1)
    return outcomes


def _threads(client: Client) -> int:
    """Decode threads per worker process: an even share of the machine's cores."""
    counts: dict[str, int] = client.ncores()
    return max(1, round(sum(counts.values()) / max(1, len(counts))))


@flow(name="embed-and-predict", validate_parameters=False)
def embed_and_predict(
    settings: EvaluationSettings,
    split: Split,
    store: EmbeddingStore,
    store_uri: str,
    models: dict[str, PredictiveModel],
    folder: Path,
    threads: int,
) -> tuple[dict[str, Distribution], list[VersionOutcome]]:
    """The part of an evaluation that runs on Dask workers: embeddings of pending shards, then predictions."""
    pending = store.pending()
    get_run_logger().info("%s: %d of %d shards to embed", split.name, len(pending), len(split.shards))
    with stage(f"embedding {split.name}", split.rows) as advance:
        advance(split.rows - sum(shard.rows for shard in pending))
        size = max(1, -(-len(pending) // MAX_EMBEDDING_TASKS))
        groups = [pending[start : start + size] for start in range(0, len(pending), size)]
        futures = [
            embed_task.submit(
                split, group, group[0].index, group[-1].index, settings.encoder, store_uri, settings.store, threads
            )
            for group in groups
        ]
        for future in as_completed(futures):
            advance(sum(report.rows for report in future.result()))
    require_few_invalid(store.reasons(), split, settings.max_invalid)
    return _predict(split, store, models, folder)


def _predict(
    split: Split, store: EmbeddingStore, models: dict[str, PredictiveModel], folder: Path
) -> tuple[dict[str, Distribution], list[VersionOutcome]]:
    valid = store.valid()
    predictive: dict[str, Distribution] = {}
    failures: list[VersionOutcome] = []
    with stage(f"predicting {split.name}", len(models), "versions") as advance:
        for label, model in models.items():
            try:
                predictive[label] = predict_task(model, label, split, valid, folder / _file_name(model.identity))
            except CongruenceError as error:
                failures.append(VersionOutcome(label, split.name, "failed", error=str(error)))
            advance(1)
    return predictive, failures


def _file_name(version: ModelVersion) -> str:
    return (version.model_id or version.label).replace("/", "-")


def _table_artifact(split: Split, outcomes: list[VersionOutcome]) -> None:
    rows: list[dict[str, Any]] = [
        {"version": outcome.label, "status": outcome.status}
        | {name: str(metric) for name, metric in outcome.metrics.items() if name in HEADLINES}
        | ({"error": outcome.error} if outcome.error else {})
        for outcome in outcomes
    ]
    create_table_artifact(table=rows, key="congruence-versions", description=f"Versions on split {split.name}")


HEADLINES = ("cce_mean", "cce_noise_floor", "cce_excess", "nll_mean", "crps_mean", "ece", "mae")
