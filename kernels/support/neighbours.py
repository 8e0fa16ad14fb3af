"""Nearest rows of a split: a tree where inputs have few features, all pairs elsewhere; in long splits, of a sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.spatial import cKDTree
from sklearn.neighbors import NearestNeighbors

from congruence.kernels.arrays import Array
from congruence.kernels.threads import available_threads

TREE_FEATURES = 8
"""A tree looks at nearly every row in more dimensions than this."""

MOST_ROWS = {TREE_FEATURES: 2**15, 64: 2**13, 2**31: 2**12}
"""By the number of features at most: rows that inputs are compared with, so that 10,000 inputs take about a second."""


@dataclass(frozen=True)
class NeighbourIndex:
    """The rows (n, d) that neighbours are looked for among, ready to be asked."""

    rows: Array = field(repr=False)
    searched: cKDTree | NearestNeighbors = field(repr=False)

    @classmethod
    def of(cls, rows: Array) -> NeighbourIndex:
        """The index of ``rows``, (n, d), finite."""
        if rows.shape[1] <= TREE_FEATURES:
            # An unbalanced tree takes repeated rows, of which tables are full, in its stride.
            return cls(rows, cKDTree(rows, balanced_tree=False))
        return cls(rows, NearestNeighbors(algorithm="brute").fit(rows))

    def nearest(self, query: Array, k: int) -> tuple[Array, Array]:
        """Euclidean distances to the ``k`` nearest rows, nearest first, and their numbers, (m, k) each."""
        k = min(k, len(self.rows))
        if not len(query):
            return np.empty((0, k)), np.empty((0, k), dtype=np.intp)
        found: Any
        if isinstance(self.searched, cKDTree):
            found = self.searched.query(query, k=range(1, k + 1), workers=available_threads())
        else:
            found = self.searched.kneighbors(query, n_neighbors=k)
        return np.asarray(found[0], dtype=np.float64), np.asarray(found[1], dtype=np.intp)


def most_rows(features: int) -> int:
    """How many rows to look for neighbours among."""
    return next(rows for most, rows in MOST_ROWS.items() if features <= most)
