"""Distances between inputs: the space in which they are taken, and the nearest rows of a split there.

Features that go together (temperature and felt temperature, the units of an encoder) leave a combination that no row
has close to rows in plain distance. In units of the rows' own covariance it is far: directions in which rows vary
little count as much as others. Neighbours are found by a tree where inputs have few features, among all pairs
elsewhere, and in long splits among a sample.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.spatial import cKDTree
from sklearn.covariance import ledoit_wolf
from sklearn.neighbors import NearestNeighbors

from congruence.kernels.arrays import Array
from congruence.kernels.threads import available_threads

TREE_FEATURES = 8
"""A tree looks at nearly every row in more dimensions than this."""

MOST_ROWS = {TREE_FEATURES: 2**15, 64: 2**13, 2**31: 2**12}
"""By the number of features at most: rows that inputs are compared with, so that 10,000 inputs take about a second."""


@dataclass(frozen=True)
class Whitening:
    """x -> (x - mean) W with W W' the inverse of a covariance, shrunk towards a multiple of the identity by as much as
    its rows are too few to know it (Ledoit and Wolf 2004).

    Attributes:
        mean: (d,).
        matrix: W, (d, d).
    """

    mean: Array = field(repr=False)
    matrix: Array = field(repr=False)

    @classmethod
    def of(cls, rows: Array) -> Whitening:
        """By the covariance of ``rows``, (n, d)."""
        scale = np.std(rows, axis=0, dtype=np.float64)
        scale[~(scale > 0.0)] = 1.0
        covariance = ledoit_wolf(np.asarray(rows, dtype=np.float64) / scale)[0]
        variances, directions = np.linalg.eigh(covariance)
        floor = np.finfo(rows.dtype).eps * max(float(variances[-1]), np.finfo(np.float64).tiny)
        whitened = directions / np.sqrt(np.maximum(variances, floor))
        mean = np.mean(rows, axis=0, dtype=np.float64).astype(rows.dtype)
        return cls(mean, np.asarray(whitened / scale[:, None], dtype=rows.dtype))

    def __call__(self, x: Array) -> Array:
        """``x`` (m, d) in this space, (m, d)."""
        return np.asarray((x - self.mean) @ self.matrix, dtype=self.matrix.dtype)

    def shares(self, difference: Array) -> Array:
        """What each feature of a difference (d,) adds to its squared length in this space, (d,)."""
        return np.asarray(difference * (self.matrix @ (difference @ self.matrix)))


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
