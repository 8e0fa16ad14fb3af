"""Distributions on 0, 1, 2, ...: expectations as sums over a window that provably leaves out at most a tail mass.

Rows with similar windows are summed together over the union of their windows, so an expectation for many rows is one
matrix product; no support is cut by a constant.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.count_windows import counts_below, similar_windows
from congruence.kernels.distributions.parametric import Parametric
from congruence.kernels.kernel_functions import Kernel

TAIL_MASS = 1e-15
WIDEST = 4  # counts of a row per level, beyond which a search for each level is cheaper
_SHARED_LEVELS = 2  # from so many levels on, counting from 0 on is cheaper than a search for each
_REACH = 8.0  # standard deviations: the row of the greatest mean plus so many of them likely reaches farthest


class Count(Parametric):
    """A family of counts: give ``_log_prob``, ``_cdf``, ``_survival``, ``_quantile`` and ``window``.

    Sums serve what has no closed form. ``log_prob`` is -inf at values that are no counts.
    """

    is_discrete = True
    _many_levels: ClassVar[int] = 16  # from which on a pass over each row's window is cheaper than a search for each

    @abstractmethod
    def window(self, tail: float = TAIL_MASS) -> tuple[Array, Array]:
        """Whole numbers (lower, upper), each (n,), outside which each row has at most ``tail`` mass per side."""

    def _cdf_left(self, y: Array) -> Array:
        return self._cdf(np.ceil(y) - 1.0)

    def counted_quantiles(self, levels: Array) -> Array | None:  # noqa: ARG002
        """Quantiles at increasing levels (k,), (n, k), where summing up masses from 0 on is the least work; or None."""
        return None

    def quantile(self, q: Any) -> Array:
        """See Distribution.

        The quantile at a level is the number of counts whose cdf is below it: one pass over the cdf of each row serves
        many levels that the rows share, where looking for each of them takes a dozen values of the cdf.
        """
        levels = np.asarray(q, dtype=np.float64)
        if levels.ndim == 2 and len(levels) == 1 and _rises_inside(levels[0]):
            if (counted := self.counted_quantiles(levels[0])) is not None:
                return counted
            if levels.shape[1] >= self._many_levels:
                return self._windowed_quantiles(levels[0])
        return super().quantile(q)

    def _windowed_quantiles(self, levels: Array) -> Array:
        """By the cdf over each row's window, wherever that begins; of thousands of likely counts, level by level."""
        lower, upper = self.window(0.5 * min(levels[0], 1.0 - levels[-1]))
        result = np.empty((len(self), len(levels)))
        wide = upper - lower > WIDEST * len(levels)
        if np.any(wide):
            result[wide] = np.column_stack([self[wide].quantile(level) for level in levels])
        narrow = np.flatnonzero(~wide)
        for group in similar_windows(lower[narrow], upper[narrow]):
            rows = narrow[group]
            support = np.arange(lower[rows].min(), upper[rows].max() + 1.0)
            reached = np.searchsorted(levels, self[rows].cumulative(support), side="right")
            result[rows] = support[0] + np.minimum(counts_below(reached, len(levels)), len(support) - 1)
        return result

    def _outermost(self, tail: float) -> tuple[float, float]:
        """Quantiles are looked for only in the rows that may hold an end: others have too little mass beyond."""
        least, greatest = np.argmin(self.mean()), np.argmax(self.mean() + _REACH * self.std())
        low = self._end(tail, int(least), lambda end: self.cdf(end - 1.0) >= tail, np.min)
        return low, self._end(1.0 - tail, int(greatest), lambda end: self.cdf(end) < 1.0 - tail, np.max)

    def _end(self, q: float, row: int, lies_beyond: Callable[[float], Array], outer: Callable[[Any], Any]) -> float:
        """The outermost of the rows' quantiles at q: that of ``row``, or of one that ``lies_beyond`` it."""
        end = float(self[[row]].quantile(q)[0])
        if not np.isfinite(end):
            return float(outer(self.quantile(q)))
        others = np.flatnonzero(lies_beyond(end))
        return float(outer(np.append(self[others].quantile(q), end))) if len(others) else end

    def survival(self, y: Any) -> Array:
        """P(Y > y) with the digits of small probabilities, which 1 - ``cdf`` has not; shapes as for ``cdf``."""
        return self._shaped(self._survival, "survival", y)

    @abstractmethod
    def _survival(self, y: Array) -> Array: ...

    def cumulative(self, support: Array) -> Array:
        """``cdf`` at successive counts, (s,) where all rows have the same or (n, s), shape (n, s)."""
        return self.cdf(support if support.ndim == 2 else support[None, :])

    def mean(self) -> Array:
        return self._summed_moments[0]

    def std(self) -> Array:
        return self._summed_moments[1]

    @cached_property
    def _summed_moments(self) -> tuple[Array, Array]:
        mean, variance = np.empty((2, len(self)))
        for rows, support, mass in self.support_blocks(frequency=0.0):
            mean[rows] = mass @ support
            variance[rows] = np.einsum("is,is->i", mass, (support - mean[rows, None]) ** 2)
        return mean, np.sqrt(variance)

    def sum_over(self, first: float, table: Array) -> Array:
        """sum_k P(Y = first + k) t_k for rows t_k of a table (s, r), shape (n, r): counts outside of it add nothing."""
        result = np.zeros((len(self), table.shape[1]))
        for rows, support, mass in self.support_blocks():
            listed = np.flatnonzero((support >= first) & (support < first + len(table)))
            if len(listed) > 0:
                start = int(support[listed[0]] - first)
                result[rows] = mass[:, listed] @ table[start : start + len(listed)]
        return result

    @abstractmethod
    def log_positive(self) -> Array:
        """log P(Y > 0), (n,), with the digits of small probabilities."""

    def support_blocks(self, frequency: float = np.inf) -> Iterator[tuple[Array, Array, Array]]:  # noqa: ARG002
        """(rows, support (s,), mass (rows, s)) for groups of rows; the groups cover every row once.

        A family may leave out counts that sums over waves up to ``frequency`` do not need.
        """
        lower, upper = self.window()
        for rows in similar_windows(lower, upper):
            support = np.arange(lower[rows].min(), upper[rows].max() + 1.0)
            yield rows, support, np.exp(self[rows].log_prob(support[None, :]))

    def mean_absolute_difference(self) -> Array:
        """E |Y - Y'| of two independent draws, (n,): 2 sum F (1 - F)."""
        result = np.empty(len(self))
        for rows, _, mass in self.support_blocks():
            cdf = np.minimum(np.cumsum(mass, axis=1), 1.0)
            result[rows] = 2.0 * np.sum(cdf * (1.0 - cdf), axis=1)
        return result

    def mean_absolute_deviation(self, y: Array) -> Array:
        """E |Y - y| for y (n, k)."""
        result = np.empty(y.shape)
        for rows, support, mass in self.support_blocks():
            for column in range(y.shape[1]):
                result[rows, column] = np.einsum("is,is->i", mass, np.abs(support - y[rows, column, None]))
        return result

    def _crps(self, y: Array) -> Array:
        """E |Y - y| - E |Y - Y'| / 2; the difference of two numbers of the size of |y| must not round below zero."""
        return np.maximum(self.mean_absolute_deviation(y) - 0.5 * self.mean_absolute_difference()[:, None], 0.0)

    def characteristic_function(self, t: Array) -> Array:
        result = np.empty((len(self), len(t)), dtype=np.complex128)
        for rows, support, mass in self.support_blocks(float(np.max(np.abs(t), initial=0.0))):
            phase = np.multiply.outer(support, t)
            result[rows] = mass @ np.cos(phase) + 1j * (mass @ np.sin(phase))
        return result

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        result = np.empty((len(self), len(nodes)))
        for rows, support, mass in self.support_blocks():
            result[rows] = mass @ kernel(support, nodes)
        return result

    def raw_moments(self, order: int) -> Array:
        result = np.empty((len(self), order + 1))
        for rows, support, mass in self.support_blocks():
            result[rows] = mass @ support[:, None] ** np.arange(order + 1)
        return result

    def _expected_diagonal(self, kernel: Kernel) -> Array:
        result = np.empty(len(self))
        for rows, support, mass in self.support_blocks():
            result[rows] = mass @ np.asarray(kernel.diagonal(support))
        return result

    def knots(self) -> Array:
        """See Distribution: every whole number of the windows, the same for all rows."""
        lower, upper = self.window(1e-13)
        support = np.arange(lower.min(), upper.max() + 2.0)
        return np.broadcast_to(support, (len(self), len(support)))


def _rises_inside(levels: Array) -> bool:
    """Whether levels (k,) are some, increasing, and inside (0, 1)."""
    return len(levels) >= _SHARED_LEVELS and bool(np.all(np.diff(levels, prepend=0.0, append=1.0) > 0.0))
