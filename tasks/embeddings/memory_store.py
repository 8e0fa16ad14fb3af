"""The embeddings of a short split in this process's memory, given and taken as by a store on disk."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from congruence.kernels.arrays import Array
from congruence.tasks.data.split import Shard


class MemoryStore:
    """As an ``EmbeddingStore`` of which nothing is kept: (rows, dimension), NaN where a row has no embedding."""

    def __init__(self, rows: int, dimension: int) -> None:
        self.dimension = dimension
        self._values = np.full((rows, dimension), np.nan, dtype=np.float32)
        self._invalid: dict[int, str] = {}

    def is_done(self, shard: Shard) -> bool:  # noqa: ARG002
        """See ``EmbeddingStore``: nothing is."""
        return False

    def write(self, shard: Shard, embeddings: npt.ArrayLike, reasons: Mapping[int, str], _: int | None = None) -> None:
        """See ``EmbeddingStore``."""
        self._values[shard.start : shard.stop] = embeddings
        self._invalid |= {shard.start + row: reason for row, reason in reasons.items()}

    def valid(self) -> Array:
        """Which rows have an embedding, (rows,)."""
        valid = np.ones(len(self._values), dtype=bool)
        valid[list(self._invalid)] = False
        return valid

    def reasons(self, rows: slice | None = None) -> dict[int, str]:  # noqa: ARG002
        """Why a row has none, by row of the split."""
        return dict(self._invalid)

    def read(self, rows: slice = slice(None)) -> Array:
        """The embeddings of some rows."""
        return self._values[rows]
