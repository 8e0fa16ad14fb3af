"""The rows of a short split with their embeddings and predictions in memory: no store, no workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.tasks.data.split import Shard, Split
from congruence.tasks.embeddings.addresses import StoreAddress
from congruence.tasks.models.evaluated_rows import EvaluatedRows


@dataclass(frozen=True)
class MemoryStore:
    """Embeddings as a store gives them: (rows, d), NaN where a row has none."""

    values: Array
    invalid: Mapping[int, str]

    @property
    def dimension(self) -> int:
        """d."""
        return int(self.values.shape[1])

    def valid(self) -> Array:
        """Which rows have an embedding, (rows,)."""
        valid = np.ones(len(self.values), dtype=bool)
        valid[list(self.invalid)] = False
        return valid

    def reasons(self) -> dict[int, str]:
        """Why a row has none."""
        return dict(self.invalid)

    def read(self, rows: slice = slice(None)) -> Array:
        """The embeddings of some rows."""
        return self.values[rows]


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
