"""Which shards of a store of embeddings cannot be read."""

from __future__ import annotations

from congruence.tasks.embeddings.store import EmbeddingStore, StoreError


def broken_shards(store: EmbeddingStore) -> list[int]:
    """Their numbers."""
    found = []
    for shard in store._shards:
        try:
            store.read(slice(shard.start, shard.stop))
        except StoreError:
            found.append(shard.index)
    return found
