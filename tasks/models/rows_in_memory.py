"""The rows of a short split with their embeddings and predictions in memory: no store, no workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from congruence.kernels.distributions import Distribution
from congruence.tasks.data.split import Shard, Split
from congruence.tasks.embeddings.addresses import StoreAddress
from congruence.tasks.embeddings.memory_store import MemoryStore
from congruence.tasks.models.evaluated_rows import EvaluatedRows


class RowsInMemory(EvaluatedRows):
    """As ``EvaluatedRows``, of what this process holds; ``laws`` are what versions predict for the valid rows."""

    def __init__(self, split: Split, store: MemoryStore, laws: Mapping[str, Distribution]) -> None:
        super().__init__(split, StoreAddress("memory", {}, "", store.dimension))
        object.__setattr__(self, "_held", store)
        object.__setattr__(self, "_laws", laws)

    @property
    def store(self) -> Any:
        """The embeddings."""
        return self._held  # type: ignore[attr-defined]

    def _predictive(self, version: str, shards: Sequence[Shard]) -> Distribution:
        law: Distribution = self._laws[version]  # type: ignore[attr-defined]
        first = int(self.valid[: shards[0].start].sum())
        return law[first : first + int(self.valid[shards[0].start : shards[-1].stop].sum())]
