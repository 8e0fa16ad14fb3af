"""Features on nodes, for kernels without a spectral rule and for vector targets: pivoted Cholesky."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.mean_embeddings.base import FeatureError, FeatureMap
from congruence.kernels.streams import stream

MAX_RANK = 1024
_FRESH_DRAWS = 8
_CHUNK_ROWS = 8192


@dataclass(frozen=True)
class NodeFeatures(FeatureMap):
    """psi(y) = L^-1 k(T, y) with K_TT = L L' on nodes T (r,) or (r, q): exact wherever k(., y) lies in their span."""

    kernel: Kernel
    nodes: Array
    factor: Array = field(repr=False)
    error: float

    @property
    def rank(self) -> int:
        return len(self.nodes)

    def __call__(self, y: Any) -> Array:
        return self._whiten(self.kernel(np.asarray(y, dtype=np.float64), self.nodes))

    def expectation(self, distribution: Distribution) -> Array:
        """See FeatureMap: E k(t_j, Y) by the family's closed form or quadrature."""
        return self._whiten(distribution.kernel_expectation(self.kernel, self.nodes))

    def missed(self, y: Array, distribution: Distribution) -> FeatureError:
        """See FeatureMap: k(t, t) - |psi(t)|^2 at the targets, and at fresh draws of the models."""
        draws = distribution.sample(_FRESH_DRAWS, seed=stream(0, "fresh draws"))
        of_draws = self.power(draws.reshape(-1, *y.shape[1:])).reshape(draws.shape[:2])
        return FeatureError((np.sqrt(self.power(y)) + np.sqrt(of_draws).mean(axis=1)) ** 2, kind="sampled")

    def power(self, points: Array) -> Array:
        """k(t, t) - |psi(t)|^2 at points t (m,) or (m, q): what psi misses of k(t, .), (m,)."""
        chunks = [points[rows] for rows in row_slices(len(points), _CHUNK_ROWS)]
        powers = [self.kernel.diagonal(chunk) - np.sum(self(chunk) ** 2, axis=1) for chunk in chunks]
        return np.asarray(np.maximum(np.concatenate(powers), 0.0))

    def _whiten(self, block: Array) -> Array:
        return np.asarray(scipy.linalg.solve_triangular(self.factor, block.T, lower=True).T)


def node_features(kernel: Kernel, candidates: Array, tolerance: float) -> NodeFeatures:
    """Diagonally pivoted Cholesky over the candidates until the largest residual of k is below the tolerance."""
    residual = np.asarray(kernel.diagonal(candidates), dtype=np.float64).copy()
    limit = max(tolerance, 1e-13) * residual.max()
    rows = np.empty((64, len(candidates)))
    pivots: list[int] = []
    while residual.max() > limit and len(pivots) < min(MAX_RANK, len(candidates)):
        pivot, rank = int(np.argmax(residual)), len(pivots)
        if rank == len(rows):
            rows = np.concatenate([rows, np.empty_like(rows)])
        row = np.asarray(kernel(candidates[pivot : pivot + 1], candidates), dtype=np.float64)[0]
        row -= rows[:rank, pivot] @ rows[:rank]
        rows[rank] = row / np.sqrt(residual[pivot])
        residual = np.maximum(residual - rows[rank] ** 2, 0.0)
        residual[pivot] = 0.0
        pivots.append(pivot)
    factor = np.tril(rows[: len(pivots), pivots].T)
    features = NodeFeatures(kernel, candidates[pivots], factor, float(residual.max()))
    if candidates.ndim == 1 and len(candidates) > 1:  # halfway between candidates models predict, too
        between = (candidates[1:] + candidates[:-1]) / 2
        features = replace(features, error=max(features.error, float(features.power(between).max())))
    return features
