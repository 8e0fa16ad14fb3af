"""What a Dask worker does with shards: it embeds them by the encoder and the store that its process keeps warm."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from distributed import Client, get_worker

from congruence.kernels.threads import usable_cores
from congruence.tasks.data.shards import Shard
from congruence.tasks.data.split import Split
from congruence.tasks.embeddings.shard import ShardReport, embed_each
from congruence.tasks.encoders.base import Encoder
from congruence.tasks.encoders.loading import warm_encoder
from congruence.tasks.encoders.settings import EncoderSettings
from congruence.tasks.runtime.files import digest_of
from congruence.tasks.settings.evaluation import StoreSettings
from congruence.tasks.store.embeddings import EmbeddingStore, open_store_cached
from congruence.tasks.store.layout import StoreAddress, store_header

logger = logging.getLogger(__name__)


def encoder_key(encoder: Encoder, settings: StoreSettings) -> str:
    """The part of a store that holds embeddings by this encoder."""
    return digest_of(store_header(encoder.id, encoder.preprocessing_digest, encoder.dimension, settings.dtype))


def open_store(uri: str, settings: StoreSettings, split: Split, encoder: Encoder) -> EmbeddingStore:
    """The store at ``uri`` of this split's embeddings by this encoder."""
    return EmbeddingStore.open(
        uri,
        split=split,
        encoder_id=encoder.id,
        preprocessing_digest=encoder.preprocessing_digest,
        dimension=encoder.dimension,
        dtype=settings.dtype,
        storage_options=settings.storage_options,
        describe={"split": split.name, "key": split.key_column, "targets": split.settings.target_columns},
    )


def decode_threads(client: Client) -> dict[str, int]:
    """Returns the decode threads of each worker of a cluster, by its address.

    They are the usable cores of its host over its workers there, so that those of all workers fill the cores and no
    more. The threads of a Dask worker say nothing about this: it has one, lest a solver's BLAS be in its own way.
    """
    workers = client.scheduler_info(n_workers=-1)["workers"]
    hosts = {address: str(worker["host"]) for address, worker in workers.items()}
    beside = Counter(hosts.values())
    cores: dict[str, int] = client.run(usable_cores, on_error="ignore")
    return {address: max(1, cores[address] // beside[hosts[address]]) for address in hosts if address in cores}


def own_threads(threads: Mapping[str, int]) -> int:
    """Returns what `decode_threads` says of the worker that asks; where it says nothing, all cores it may use."""
    if not threads:
        return usable_cores()
    return threads.get(str(get_worker().address)) or usable_cores()


def settle_batch_size(encoder: Encoder, store: EmbeddingStore) -> str | None:
    """Give ``encoder`` the batch size that ``store`` holds, measured now where it holds none.

    Returns:
        What was measured, as a line for people; None where nothing was.
    """
    if not encoder.searches_batch_size:
        return None
    size, line = store.batch_size(encoder.device_kind), None
    if size is None:
        found = encoder.search_batch_size()
        size = store.settle_batch_size(encoder.device_kind, found.batch_size)
        line = str(found) if size == found.batch_size else f"{found}; but another worker settled on {size} before"
        logger.info("%s on %s: %s", encoder.id, encoder.device_kind, line)
    encoder.use_batch_size(size)
    return line


def find_batch_size(split: Split, encoder: EncoderSettings, store: StoreAddress) -> str | None:
    """Settle the batch size of the store in this process; see settle_batch_size."""
    return settle_batch_size(warm_encoder(encoder), open_store_cached(store, split))


def embed_shards(
    split: Split, shards: list[Shard], encoder: EncoderSettings, store: StoreAddress, threads: Mapping[str, int]
) -> list[ShardReport]:
    """Embed some shards of ``split`` in this process; shards that the store holds are skipped.

    Weights are loaded and the store is opened once per process. ``threads`` is what `decode_threads` says of workers.
    """
    warm = warm_encoder(encoder)
    opened = open_store_cached(store, split)
    settle_batch_size(warm, opened)
    return embed_each(split, shards, warm, opened, threads=own_threads(threads))
