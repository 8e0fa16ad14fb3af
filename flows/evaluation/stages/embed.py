"""embed: every shard of a split that the store lacks, by tasks on the workers."""

from __future__ import annotations

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from congruence.flows.cli.console import say
from congruence.flows.cli.progress import stage
from congruence.flows.evaluation.batching import MAX_TASKS, groups_of_shards, in_groups
from congruence.flows.evaluation.stages.failures import may_pass
from congruence.flows.evaluation.stages.waiting import as_completed, flow_client, tasks_at_once
from congruence.tasks.dask.gpus import LOOKED_AT_KINDS
from congruence.tasks.data.split import Shard, Split
from congruence.tasks.embeddings.addresses import StoreAddress
from congruence.tasks.embeddings.decoding import decode_threads
from congruence.tasks.embeddings.invalid_rows import require_few_invalid
from congruence.tasks.embeddings.shard import ShardReport
from congruence.tasks.embeddings.standardisation import require_features
from congruence.tasks.embeddings.worker import embed_shards, find_batch_size
from congruence.tasks.encoders.features import FeatureEncoder
from congruence.tasks.encoders.loading import asking_encoder
from congruence.tasks.encoders.settings import EncoderSettings
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.settings.evaluation import EvaluationSettings

TASKS_PER_CARD = 8
"""Shards of one task follow each other without a pause; a card idles between two tasks."""


@task(
    name="embed",
    task_run_name="embed {split.name} shards {first}-{last}",
    retries=3,
    retry_delay_seconds=[1, 5, 20],
    retry_condition_fn=may_pass,
    cache_policy=NO_CACHE,
    tags=["congruence-embed"],
)
def embed_task(
    split: Split,
    shards: list[Shard],
    first: int,  # noqa: ARG001 - part of the run's name
    last: int,  # noqa: ARG001
    encoder: EncoderSettings,
    store: StoreAddress,
    threads: dict[str, int],
) -> list[ShardReport]:
    """Embed some shards; finished ones are skipped, so a retry or a second run costs nothing."""
    return embed_shards(split, shards, encoder, store, threads)


@task(
    name="find batch size",
    task_run_name="find batch size for {split.name}",
    retries=1,
    cache_policy=NO_CACHE,
    tags=["congruence-embed"],
)
def find_batch_size_task(split: Split, encoder: EncoderSettings, store: StoreAddress) -> str | None:
    """Measure, on one worker that does nothing else, how many rows to embed at a time, unless the store knows."""
    return find_batch_size(split, encoder, store)


def _workers_may_search(settings: EvaluationSettings) -> bool:
    """Whether a worker may have a card that this process does not use, and so a batch size to measure."""
    encoder = settings.encoder
    return (
        settings.cluster.kind in LOOKED_AT_KINDS
        and encoder.kind in ("open_clip", "open_clip_text", "timm")
        and encoder.given_batch_size is None
    )


def _groups(settings: EvaluationSettings, pending: list[Shard], workers: int) -> list[list[Shard]]:
    """The shards of each task."""
    if settings.cluster.kind in LOOKED_AT_KINDS:
        return in_groups(pending, min(TASKS_PER_CARD * workers, MAX_TASKS))
    if settings.encoder.kind == "identity":
        return groups_of_shards(pending, tasks_at_once())
    return in_groups(pending)  # a shard of images takes minutes


def embed(settings: EvaluationSettings, rows: EvaluatedRows) -> None:
    """Embed the pending shards of ``rows`` on the workers of the flow that is running.

    Raises:
        TooManyInvalidRowsError: more rows than ``max_invalid`` allows have no embedding.
        SplitError: tabular features of another number than the encoder's.
    """
    split, store = rows.split, rows.store
    encoder = asking_encoder(settings.encoder)
    if isinstance(encoder, FeatureEncoder):
        require_features(split, encoder.features, settings.statistics_split.name)
    pending = store.pending()
    get_run_logger().info("%s: %d of %d shards to embed", split.name, len(pending), len(split.shards))
    threads = decode_threads(flow_client())
    groups = _groups(settings, pending, len(threads))
    at_once = tasks_at_once() * sum(shard.rows for shard in groups[0]) if groups else 1
    found = split.rows - sum(shard.rows for shard in pending)
    with stage(f"embedding {split.name}", split.rows, found=found, at_once=at_once) as advance:
        if pending and (encoder.searches_batch_size or _workers_may_search(settings)):
            finding = find_batch_size_task.submit(split, settings.encoder, rows.address).result()
            if finding is not None:
                get_run_logger().info("%s: %s", split.name, finding)
                say(f"embedding {split.name}: {finding}")
        while pending:
            futures = [
                embed_task.submit(
                    split, group, group[0].index, group[-1].index, settings.encoder, rows.address, threads
                )
                for group in groups
            ]
            for future in as_completed(futures):
                advance(sum(report.rows for report in future.result()))
            pending = store.pending()  # with all markers there they are read: damaged ones are done again
            groups = _groups(settings, pending, len(threads))
    left_out = require_few_invalid(store.reasons(), split, settings.max_invalid, settings.home_folder / "invalid-rows")
    if left_out is not None:
        say(left_out)
    store.sweep()
