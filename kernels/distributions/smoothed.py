"""Densities of distributions that are given by points: what their log scores are of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions.base import ScalarDistribution
from congruence.kernels.distributions.quadrature import BLOCK_ENTRIES

_LOG_AT_0 = float(np.log(2.0 / (np.pi * np.sqrt(3.0))))  # of the density of Student's t with 3 degrees of freedom


@dataclass(frozen=True)
class SmoothedPoints(ScalarDistribution):
    """Points (n, m), or (1, m) where rows share them, with ``weights`` (n, m) or equal ones, each smoothed.

    By the density of Student's t with 3 degrees of freedom and ``bandwidth`` (n,). Normal tails made the score of an
    outcome beyond all points grow with the square of its distance, and one row of twenty thousand decide their mean.
    """

    points: Array
    weights: Array | None
    bandwidth: Array

    @classmethod
    def of(cls, points: Array, weights: Array | None, spread: Array, quartiles_apart: Array) -> Self:
        """With Silverman's bandwidth .9 min(std, IQR / 1.34) l^(-1/5), l the effective number of points."""
        robust = np.where(quartiles_apart > 0.0, quartiles_apart / 1.34, spread)
        share = 1.0 / points.shape[1] if weights is None else np.sum(weights**2, axis=1)
        return cls(points, weights, 0.9 * np.minimum(spread, robust) * share**0.2)

    def __len__(self) -> int:
        return len(self.bandwidth)

    def __getitem__(self, rows: Any) -> Self:
        points = self.points if len(self.points) < len(self) else self.points[rows]
        return type(self)(points, None if self.weights is None else self.weights[rows], self.bandwidth[rows])

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        points = [np.broadcast_to(part.points, (len(part), part.points.shape[1])) for part in parts]
        weights = [np.full(each.shape, 1.0 / each.shape[1]) if part.weights is None else part.weights
                   for part, each in zip(parts, points, strict=True)]  # fmt: skip
        return cls(np.concatenate(points), np.concatenate(weights), np.concatenate([part.bandwidth for part in parts]))

    def _averaged(self, y: Array, kernel: Any) -> Array:
        """The weighted mean of ``kernel`` over the points, at values y (n, k)."""
        result = np.empty(y.shape)
        for rows in row_slices(len(self), BLOCK_ENTRIES // self.points.shape[1]):
            points = self.points if len(self.points) < len(self) else self.points[rows]
            for column in range(y.shape[1]):
                each = kernel((y[rows, column, None] - points) / self.bandwidth[rows, None])
                mean = each.mean(axis=1) if self.weights is None else np.sum(self.weights[rows] * each, axis=1)
                result[rows, column] = mean
        return result

    def _log_prob(self, y: Array) -> Array:
        density = self._averaged(y, lambda z: (1.0 + z * z / 3.0) ** -2.0)
        return np.asarray(np.log(density) + _LOG_AT_0 - np.log(self.bandwidth)[:, None])

    def _cdf(self, y: Array) -> Array:
        return self._averaged(y, _cdf)


def _cdf(z: Array) -> Array:
    """Of Student's t with 3 degrees of freedom."""
    root = z / np.sqrt(3.0)
    return np.asarray(0.5 + (root / (1.0 + root**2) + np.arctan(root)) / np.pi)
