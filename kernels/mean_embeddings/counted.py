"""Features on successive counts: a kernel between whole numbers is a finite matrix, and its factor is a table.

The expectation of a feature is a sum of masses, where a characteristic function takes a complex power for every
frequency; and the rank is that of the kernel between whole numbers, not on the interval that holds them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.distributions.counts import Count
from congruence.kernels.distributions.location import mass_outside
from congruence.kernels.distributions.mixture import Mixture
from congruence.kernels.distributions.samples import Samples
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.mean_embeddings.base import FeatureError, FeatureMap
from congruence.kernels.streams import stream

MOST_COUNTS = 512
_CHUNK_ROWS = 1024
_DRAWS = 8


@dataclass(frozen=True)
class CountFeatures(FeatureMap):
    """psi(y) = row y - first of T (s, r), with T T' = k_Y between the counts first, ..., first + s - 1.

    At other values psi(y) is the projection on what those counts span: ``inverse`` (s, r) maps k_Y(y, counts) to it.
    """

    kernel: Kernel
    first: float
    table: Array = field(repr=False)
    inverse: Array = field(repr=False)
    error: float

    @property
    def rank(self) -> int:
        return int(self.table.shape[1])

    @property
    def last(self) -> float:
        """The largest count of the table."""
        return self.first + len(self.table) - 1

    def __call__(self, y: Any) -> Array:
        y = np.asarray(y, dtype=np.float64)
        inside = self._is_listed(y)
        features = self.table[np.where(inside, y - self.first, 0.0).astype(np.intp)]
        if not np.all(inside):
            features[~inside] = self.kernel(y[~inside], self._counts) @ self.inverse
        return np.asarray(features)

    def expectation(self, distribution: Distribution) -> Array:
        """See FeatureMap: sums over the masses of laws of counts, means over draws, else the kernel's expectation."""
        if isinstance(distribution, Mixture):
            weights = distribution.weights.T[:, :, None]
            parts = (self.expectation(component) for component in distribution.components)
            return np.asarray(sum(weight * part for weight, part in zip(weights, parts, strict=True)))
        if isinstance(distribution, Count):
            return distribution.sum_over(self.first, self.table)
        if isinstance(distribution, Samples):
            some = row_slices(len(distribution), _CHUNK_ROWS)
            return np.concatenate([self(distribution.values[rows]).mean(axis=1) for rows in some])
        return np.asarray(distribution.kernel_expectation(self.kernel, self._counts) @ self.inverse)

    def missed(self, y: Array, distribution: Distribution) -> FeatureError:
        """See FeatureMap: for laws of counts as ``FourierFeatures.missed``; what targets and draws project away."""
        maximum = float(np.max(self.kernel.diagonal(np.array([self.first]))))
        rows = 4.0 * self.error + self._power(y)
        if distribution.is_discrete:
            outside = mass_outside(distribution, self.first, self.last)
            outside = np.where(outside < 1e-15, 0.0, outside)
            return FeatureError(rows, 4.0 * maximum * float(np.sqrt(len(y) * np.sum(outside**2))))
        if isinstance(distribution, Samples):
            draws, kind = distribution.values, "bound"
        else:
            draws, kind = distribution.sample(_DRAWS, seed=stream(0, "fresh draws")), "sampled"
        of_draws = np.sqrt(self._power(draws.ravel())).reshape(draws.shape).mean(axis=1)
        rows = 4.0 * self.error + (np.sqrt(self._power(y)) + of_draws) ** 2
        return FeatureError(rows, kind=kind)

    @property
    def _counts(self) -> Array:
        return np.arange(self.first, self.last + 1.0)

    def _power(self, y: Array) -> Array:
        """k(t, t) - |psi(t)|^2 at values t (m,): what is projected away, 0 at the counts of the table, (m,)."""
        power, other = np.zeros(len(y)), ~self._is_listed(y)
        if np.any(other):
            power[other] = np.maximum(self.kernel.diagonal(y[other]) - np.sum(self(y[other]) ** 2, axis=1), 0.0)
        return power

    def _is_listed(self, y: Array) -> Array:
        return np.asarray((y == np.floor(y)) & (y >= self.first) & (y <= self.last))


def count_features(kernel: Kernel, first: float, last: float, tolerance: float) -> CountFeatures:
    """Features on first, ..., last in the directions that the kernel uses there."""
    counts = np.arange(first, last + 1.0)
    energy, directions = np.linalg.eigh(np.asarray(kernel(counts, counts), dtype=np.float64))
    kept = energy > tolerance / 10.0
    # What was dropped of an entry is at most what was dropped of the diagonal; half of the tolerance is for rounding.
    dropped = directions[:, ~kept] ** 2 @ np.maximum(energy[~kept], 0.0)
    error = tolerance / 2.0 + float(np.max(dropped, initial=0.0))
    directions, roots = directions[:, kept][:, ::-1], np.sqrt(energy[kept][::-1])
    return CountFeatures(
        kernel, first, np.ascontiguousarray(directions * roots), np.ascontiguousarray(directions / roots), error
    )
