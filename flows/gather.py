"""What an evaluation gathers on Dask workers: the embeddings of a split, and each version's predictions on it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import numpy as np
from distributed import Client
from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from prefect.futures import PrefectFuture
from prefect_dask.task_runners import DaskTaskRunner

from congruence.flows.own_errors import log_own_errors_as_messages
from congruence.flows.progress import say, stage
from congruence.flows.splits import open_planned as open_planned
from congruence.flows.splits import with_fitted_encoder as with_fitted_encoder
from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import CongruenceError
from congruence.tasks.clusters import Workers, scheduler_address
from congruence.tasks.contract import PredictiveModel
from congruence.tasks.embeddings.shard import ShardReport, require_few_invalid
from congruence.tasks.embeddings.standardisation import require_features
from congruence.tasks.embeddings.store import EmbeddingStore
from congruence.tasks.embeddings.worker import embed_shards, find_batch_size, open_store, warm_encoder
from congruence.tasks.encoders import Encoder, EncoderSettings
from congruence.tasks.models.predictions import predict_split
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.settings.digest import contract_digest
from congruence.tasks.settings.evaluation import EvaluationSettings, StoreSettings
from congruence.tasks.sources import Shard, Split

MAX_EMBEDDING_TASKS = 200
_LOOK_SECONDS = 5.0

log_own_errors_as_messages()


@dataclass(frozen=True)
class SplitData:
    """A split with its embeddings and each version's predictions, valid rows only.

    Attributes:
        store: of the embeddings; knows why a row is invalid.
        valid: which rows of the split are valid, (rows,).
        embeddings: (v, d), as the encoder gave them.
        targets: (v,) or (v, q).
        predictive: the predictive distributions of the valid rows by version.
        failures: why a version has none.
    """

    store: EmbeddingStore = field(repr=False)
    valid: Array = field(repr=False)
    embeddings: Array = field(repr=False)
    targets: Array = field(repr=False)
    predictive: dict[str, Distribution] = field(repr=False)
    failures: dict[str, str] = field(default_factory=dict)


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


@task(
    name="find batch size",
    task_run_name="find batch size for {split.name}",
    retries=1,
    cache_policy=NO_CACHE,
    tags=["congruence-embed"],
)
def find_batch_size_task(split: Split, encoder: EncoderSettings, store_uri: str, store: StoreSettings) -> str | None:
    """Measure, on one worker that does nothing else, how many rows to embed at a time, unless the store knows."""
    return find_batch_size(split, encoder, store_uri, store)


@task(name="predict", task_run_name="predict {label} on {split.name}", retries=1, cache_policy=NO_CACHE)
def predict_task(model: PredictiveModel, label: str, split: Split, valid: Array, folder: Path) -> Distribution:  # noqa: ARG001
    """Predictive distributions of the valid rows by one version, shard by shard."""
    return predict_split(model, split, valid, folder)


def gather(
    settings: EvaluationSettings, split: Split, encoder: Encoder, models: dict[str, PredictiveModel], client: Client
) -> SplitData:
    """Embed what is pending, predict what is missing, and read both.

    Raises:
        TooManyInvalidRowsError: more rows than ``max_invalid`` allows have no embedding.
        SplitError: tabular features of another number than the encoder's.
    """
    if settings.encoder.kind == "identity":
        require_features(split, encoder.dimension, settings.statistics_split.name)
    store_uri = settings.store.uri or str(settings.home_folder / "embeddings")
    store = open_store(store_uri, settings.store, split, encoder)
    folder = _predictions_folder(settings, split)
    runner: Any = DaskTaskRunner(address=scheduler_address(client))
    inner = embed_and_predict.with_options(task_runner=runner, flow_run_name=f"embed and predict {split.name}")
    predictive, failures = inner(settings, split, store, store_uri, models, folder, _threads(client))
    store.sweep()
    valid = store.valid()
    targets = np.concatenate([split.targets(shard) for shard in split.shards])
    return SplitData(store, valid, store.read()[valid], targets[valid], predictive, failures)


def forget_predictions(settings: EvaluationSettings, split: Split, models: dict[str, PredictiveModel]) -> None:
    """Remove the kept predictions of some versions on a split, so that the models are asked again."""
    for model in models.values():
        shutil.rmtree(_predictions_folder(settings, split) / _file_name(model.identity), ignore_errors=True)


def _predictions_folder(settings: EvaluationSettings, split: Split) -> Path:
    """Where predictions are kept: they are of what the models were given and of how their output was read."""
    contract = contract_digest(settings.predictions, split.settings)
    return settings.home_folder / "predictions" / f"{split.digest[:16]}-{contract}"


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
) -> tuple[dict[str, Distribution], dict[str, str]]:
    """The part of an evaluation that runs on Dask workers: embeddings of pending shards, then predictions."""
    pending = store.pending()
    get_run_logger().info("%s: %d of %d shards to embed", split.name, len(pending), len(split.shards))
    found = split.rows - sum(shard.rows for shard in pending)
    with stage(f"embedding {split.name}", split.rows, found=found) as advance:
        if pending and warm_encoder(settings.encoder.model_dump_json(exclude_unset=True)).searches_batch_size:
            finding = find_batch_size_task.submit(split, settings.encoder, store_uri, settings.store).result()
            if finding is not None:
                get_run_logger().info("%s: %s", split.name, finding)
                say(f"embedding {split.name}: {finding}")
        size = max(1, -(-len(pending) // MAX_EMBEDDING_TASKS))
        groups = [pending[start : start + size] for start in range(0, len(pending), size)]
        futures = [
            embed_task.submit(
                split, group, group[0].index, group[-1].index, settings.encoder, store_uri, settings.store, threads
            )
            for group in groups
        ]
        for reports in _as_completed(futures):
            advance(sum(report.rows for report in reports))
    require_few_invalid(store.reasons(), split, settings.max_invalid)
    return _predict(split, store.valid(), models, folder)


def _as_completed(futures: list[PrefectFuture[Any]]) -> Iterator[Any]:
    """The results of this flow's tasks as they come, as long as there are workers to give them."""
    context = FlowRunContext.get()
    assert context is not None
    assert isinstance(context.task_runner, DaskTaskRunner)
    workers = Workers(context.task_runner.client, say)
    done: Queue[PrefectFuture[Any]] = Queue()
    for future in futures:
        future.add_done_callback(done.put)
    waiting = len(futures)
    while waiting:
        try:
            future = done.get(timeout=_LOOK_SECONDS)
        except Empty:
            workers.require()
            continue
        waiting -= 1
        yield future.result()


def _predict(
    split: Split, valid: Array, models: dict[str, PredictiveModel], folder: Path
) -> tuple[dict[str, Distribution], dict[str, str]]:
    predictive: dict[str, Distribution] = {}
    failures: dict[str, str] = {}
    with stage(f"predicting {split.name}", len(models), "versions") as advance:
        for label, model in models.items():
            try:
                predictive[label] = predict_task(model, label, split, valid, folder / _file_name(model.identity))
            except CongruenceError as error:
                failures[label] = str(error)
            advance(1)
    return predictive, failures


def _file_name(version: ModelVersion) -> str:
    return (version.model_id or version.label).replace("/", "-")
