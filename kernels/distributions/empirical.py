"""Equal masses on the values of each row: what draws of a law and point forecasts share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions import moments
from congruence.kernels.distributions.base import ScalarLaw, Seed, refuse
from congruence.kernels.distributions.quadrature import BLOCK_ENTRIES
from congruence.kernels.distributions.vectors import as_vectors, energy_score, mean_distance
from congruence.kernels.distributions.waves import average_wave
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.streams import stream


class Empirical(ScalarLaw):
    """Mass 1/l on each of l values a row; a dataclass of one array, with one row of it for each law."""

    @property
    @abstractmethod
    def _values(self) -> Array:
        """(n, l), or (n, l, q) for vector targets."""

    @property
    def _size(self) -> int:
        return int(self._values.shape[1])

    @cached_property
    def _sorted(self) -> Array:
        return np.sort(self._values, axis=1)

    @property
    def dimension(self) -> int:
        return 1 if self._values.ndim == 2 else int(self._values.shape[2])

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: Any) -> Self:
        (held,) = self.parameters().values()
        chosen = held[rows]
        return type(self)(*[chosen[None] if chosen.ndim < held.ndim else chosen])

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """See Distribution; all parts need the same number of values."""
        columns = zip(*(part.parameters().values() for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def _cdf(self, y: Array) -> Array:
        return self._count(y, np.less_equal) / self._size

    def _cdf_left(self, y: Array) -> Array:
        return self._count(y, np.less) / self._size

    def _count(self, y: Array, compare: np.ufunc) -> Array:
        """How many values of each row compare with y (n, k) as asked, (n, k)."""
        result = np.zeros(y.shape)
        if self._size < y.shape[1]:
            for value in self._sorted.T:
                result += compare(value[:, None], y)
        else:
            for column in range(y.shape[1]):
                result[:, column] = np.count_nonzero(compare(self._sorted, y[:, column, None]), axis=1)
        return result

    def _quantile(self, q: Array) -> Array:
        """The smallest value with at least a share q at or below it."""
        # A level k / l computed in floating point must give the k-th value, not the next one.
        index = np.clip(np.ceil(q * self._size - 1e-9).astype(np.int64) - 1, 0, self._size - 1)
        return np.take_along_axis(self._sorted, index, axis=1)

    def mean(self) -> Array:
        """See Distribution; (n,), or (n, q) for vectors."""
        return np.asarray(self._values.mean(axis=1))

    def sample(self, size: int, seed: Seed = 0) -> Array:
        """``size`` draws with replacement from each row's values, (n, size) or (n, size, q)."""
        index = stream(seed, "samples").integers(self._size, size=(len(self), size))
        return np.asarray(self._values[np.arange(len(self))[:, None], index])

    def crps(self, y: Any) -> Array:
        """The fair CRPS: mean_k |x_k - y| - sum_jk |x_j - x_k| / (2 l (l - 1)), (n, l log l); for l = 1 |x - y|.

        Its mean over draws is the CRPS of the law behind them (Ferro 2014), so that ensembles of different sizes
        compare; it may be slightly negative. For vectors the fair energy score.
        """
        if self.dimension > 1:
            return energy_score(self._values, as_vectors(y, len(self), self.dimension), self._apart)
        return super().crps(y)

    def _crps(self, y: Array) -> Array:
        size = self._size
        ranks = (2.0 * np.arange(1, size + 1) - size - 1.0) / (size * max(size - 1, 1))
        centered = self._sorted - self.mean()[:, None]
        half_difference = centered @ ranks
        deviation = np.stack([np.mean(np.abs(self._sorted - column[:, None]), axis=1) for column in y.T], axis=1)
        return np.asarray(deviation - half_difference[:, None])

    @cached_property
    def _apart(self) -> Array:
        """Mean distance of two different values of a row, vectors, (n,)."""
        return mean_distance(self._values, fair=True)

    def knots(self) -> Array:
        """See Distribution: the values."""
        return self._sorted

    def breaks(self) -> Array:
        """See Distribution: the values; vectors have none."""
        return self._values if self.dimension == 1 else super().breaks()

    def characteristic_function(self, t: Array) -> Array:
        """See Distribution: the mean over the values."""
        if self.dimension > 1:
            refuse(type(self).__name__, "characteristic_function", self.dimension)
        return average_wave(self._values, np.full(self._size, 1.0 / self._size), t)

    def raw_moments(self, order: int) -> Array:
        """See Distribution: mean powers of the values."""
        return moments.of_values(self._values, order)

    def _expected_diagonal(self, kernel: Kernel) -> Array:
        values = self._values
        diagonal = np.asarray(kernel.diagonal(values.reshape(-1, *values.shape[2:])))
        return np.asarray(diagonal.reshape(values.shape[:2]).mean(axis=1))

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        """See Distribution: the mean over the values; nodes (r,) or (r, q)."""
        result = np.empty((len(self), len(nodes)))
        for rows in row_slices(len(self), BLOCK_ENTRIES // (self._size * max(1, len(nodes)))):
            values = self._values[rows]
            gram = kernel(values.reshape(-1, *values.shape[2:]), nodes)
            result[rows] = np.asarray(gram).reshape(len(values), self._size, -1).mean(axis=1)
        return result
