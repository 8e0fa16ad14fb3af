"""What a Dask worker keeps warm between shards: the encoder, loaded once per process."""

from __future__ import annotations

from functools import lru_cache

from congruence.tasks.embedding import ShardReport, embed_shard
from congruence.tasks.encoders import Encoder, EncoderSettings, load_encoder
from congruence.tasks.settings import StoreSettings
from congruence.tasks.sources import Shard, Split
from congruence.tasks.store import EmbeddingStore


@lru_cache(maxsize=2)
def warm_encoder(settings: str) -> Encoder:
    """The encoder of these settings (as JSON), loaded at most once in this process."""
    return load_encoder(EncoderSettings.model_validate_json(settings))


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
    )


def embed_shards(
    split: Split, shards: list[Shard], encoder: EncoderSettings, store_uri: str, store: StoreSettings, threads: int
) -> list[ShardReport]:
    """Embed some shards of ``split`` in this process; shards that the store holds are skipped.

    Args:
        split: the split.
        shards: the shards to embed.
        encoder: its settings; the weights are loaded once per process.
        store_uri: where embeddings are kept.
        store: how.
        threads: threads that read and decode.
    """
    warm = warm_encoder(encoder.model_dump_json(exclude_unset=True))
    opened = open_store(store_uri, store, split, warm)
    return [embed_shard(split, shard, warm, opened, batch_size=warm.batch_size, threads=threads) for shard in shards]
