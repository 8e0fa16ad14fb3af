"""Distributions on 0, 1, 2, ...: expectations as sums over a window that provably leaves out at most a tail mass.

Rows with similar windows are summed together over the union of their windows, so an expectation for many rows is one
matrix product; no support is cut by a constant.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import align, align_levels
from congruence.kernels.distributions.inversion import smallest_reaching
from congruence.kernels.distributions.parametric import Parametric, ScipyFamily
from congruence.kernels.distributions.quadrature import BLOCK_ENTRIES
from congruence.kernels.kernel_functions import Kernel

TAIL_MASS = 1e-15
_LEAST_MASS = 1e-250  # below, products of masses would soon be zero
_NO_MASS = 1e-14  # what a row has left where sums over its counts end
_ROWS_TOGETHER = 256  # rows alike whose masses are in hand at once
_COUNTS_TOGETHER = 16  # their masses between two looks at whether any is left
_SHARED_LEVELS = 4  # from so many levels on one pass over the counts of a row is cheaper than a search for each
_HIGHEST = 1.0 - 1e-12  # level up to which a sum of masses has the digits to tell one count from the next
_WIDEST = 4  # counts of a row per level, beyond which a search for each level is cheaper


class Count(Parametric):
    """A family of counts: give ``log_prob``, ``window``, ``mean``; sums serve what has no closed form.

    ``log_prob`` is -inf at values that are no counts.
    """

    is_discrete = True

    @abstractmethod
    def window(self, tail: float = TAIL_MASS) -> tuple[Array, Array]:
        """Whole numbers (lower, upper), each (n,), outside which each row has at most ``tail`` mass per side."""

    def cdf_left(self, y: Any) -> Array:
        """See Distribution."""
        return self.cdf(np.ceil(y) - 1.0)

    @abstractmethod
    def survival(self, y: Any) -> Array:
        """P(Y > y) with the digits of small probabilities, which 1 - ``cdf`` has not; shapes as for ``cdf``."""

    def cumulative(self, support: Array) -> Array:
        """``cdf`` at successive counts (s,), the same for all rows, (n, s)."""
        return self.cdf(support[None, :])

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

    def crps(self, y: Any) -> Array:
        """See Distribution: E |Y - y| - E |Y - Y'| / 2."""
        y, columns = align(y, len(self))
        y = y if columns else y[:, None]
        # The difference of two numbers of the size of |y| must not round below zero.
        scores = np.maximum(self.mean_absolute_deviation(y) - 0.5 * self.mean_absolute_difference()[:, None], 0.0)
        return scores if columns else scores[:, 0]

    def characteristic_function(self, t: Array) -> Array:
        """See Distribution."""
        result = np.empty((len(self), len(t)), dtype=np.complex128)
        for rows, support, mass in self.support_blocks(float(np.max(np.abs(t), initial=0.0))):
            phase = np.multiply.outer(support, t)
            result[rows] = mass @ np.cos(phase) + 1j * (mass @ np.sin(phase))
        return result

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        """See Distribution."""
        result = np.empty((len(self), len(nodes)))
        for rows, support, mass in self.support_blocks():
            result[rows] = mass @ kernel(support, nodes)
        return result

    def knots(self) -> Array:
        """See Distribution: every whole number of the windows, the same for all rows."""
        lower, upper = self.window(1e-13)
        support = np.arange(lower.min(), upper.max() + 2.0)
        return np.broadcast_to(support, (len(self), len(support)))


class ScipyCount(Count, ScipyFamily):
    """A family of counts that scipy.stats has; a family gives its own log masses, and what makes sums of them closed.

    De Moivre's identity: E[Y; Y <= y] = E Y F(y) - weight(y) P(Y = y), with a simple ``_edge_weight`` for each family.
    """

    @abstractmethod
    def _log_mass(self, *args: Any, **kwargs: Any) -> Array:
        """log P(Y = y) for counts y, the first argument, and the parameters in order."""

    @abstractmethod
    def _edge_weight(self, *args: Any, **kwargs: Any) -> Array:
        """The weight of P(Y = y) in De Moivre's identity for counts y, the first argument, and the parameters."""

    def _growth(self, y: Any, *args: Any) -> Any:  # noqa: ARG002
        """P(Y = y + 1) / P(Y = y) for the parameters in order, where a family has it in few operations; broadcast."""
        return None

    def cumulative(self, support: Array) -> Array:
        """See Count: sums of masses, each from the one before."""
        arguments = self._arguments(columns=False)
        if self._growth(0.0, *arguments) is None:
            return super().cumulative(support)
        first = np.full(len(self), support[0])
        mass, total = np.exp(self._log_mass(first, *arguments)), self.cdf(first)
        if np.min(mass, initial=1.0) < _LEAST_MASS:
            return super().cumulative(support)
        result = np.empty((len(self), len(support)))
        for column, y in enumerate(support):
            result[:, column] = total
            mass = mass * self._growth(float(y), *arguments)
            total = total + mass
        return result

    def sum_over(self, first: float, table: Array) -> Array:
        """See Count: masses from the one before, up to where no row has any left."""
        result = np.zeros((len(self), table.shape[1]))
        order = np.argsort(self.mean() + self.std())
        for start in range(0, len(order), _ROWS_TOGETHER):
            rows = order[start : start + _ROWS_TOGETHER]
            found = self[rows]._sum_from_first(first, table)
            if found is None:
                return super().sum_over(first, table)
            result[rows] = found
        return result

    def _sum_from_first(self, first: float, table: Array) -> Array | None:
        result, left = np.zeros((len(self), table.shape[1])), np.inf
        for support, mass, total in self._successive(first, len(table)):
            start = int(support[0] - first)
            result += mass @ table[start : start + len(support)]
            left = float(np.max(1.0 - total))
            if left < _NO_MASS:
                return result
        return None if left == np.inf else result

    def _successive(self, first: float, count: int) -> Iterator[tuple[Array, Array, Array]]:
        """Some counts from ``first`` on (c,), their masses (n, c) and P(Y <= the last of them) (n,), and so on.

        Nothing where the family has no ``_growth``, or where ``first`` has so little mass that it has no digits.
        """
        columns = self._arguments(columns=True)
        if self._growth(0.0, *columns) is None:
            return
        start = np.full(len(self), first)
        mass, total = np.exp(self._log_mass(start, *self._arguments(columns=False))), self.cdf(start - 1.0)
        if np.min(mass, initial=1.0) < _LEAST_MASS:
            return
        for begin in range(0, count, _COUNTS_TOGETHER):
            support = first + np.arange(begin, min(begin + _COUNTS_TOGETHER, count))
            masses = np.cumprod(np.column_stack([mass, self._growth(support[None, :], *columns)]), axis=1)
            total = total + np.sum(masses[:, :-1], axis=1)
            yield support, masses[:, :-1], total
            mass = masses[:, -1]

    @abstractmethod
    def _log_wave(self, *args: Any, **kwargs: Any) -> Array:
        """log E exp(i t Y) at frequencies t, the first argument, for the parameters in order; all broadcast."""

    @abstractmethod
    def factorial_moment(self) -> Array:
        """E Y (Y - 1), (n,)."""

    def log_positive(self) -> Array:
        """See Count."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(-np.expm1(self.log_prob(0.0))))

    def log_prob(self, y: Any) -> Array:
        """See Distribution; -inf at values that are no counts."""
        y, columns = align(y, len(self))
        counts = np.maximum(np.floor(y), 0.0)
        return np.where(counts == y, self._log_mass(counts, *self._arguments(columns)), -np.inf)

    def survival(self, y: Any) -> Array:
        """See Count."""
        y, columns = align(y, len(self))
        return np.asarray(self._frozen(columns).sf(y))

    def _inverse(self, q: Any, columns: bool) -> Array:
        """A quantile function to start from: scipy's."""
        return np.asarray(self._frozen(columns).ppf(q))

    def _inverse_is_rough(self) -> Array:
        """The rows, (n,) booleans, in which ``_inverse`` may be another count."""
        return np.zeros(len(self), dtype=bool)

    def quantile(self, q: Any) -> Array:
        """See Distribution."""
        levels = np.asarray(q, dtype=np.float64)
        if levels.ndim == 2 and len(levels) == 1 and self._shares(levels[0]):
            return shared_quantiles(self, levels[0])
        return self._searched(q)

    def inverted(self, levels: Array) -> Array:
        """``quantile`` at random levels (n, k) of each row: how many counts have their cdf below the level.

        The cdf is summed up here, so that at a level that *is* a value of the cdf it may be the next count.
        """
        result = np.zeros(levels.shape)
        searched = np.max(levels, axis=1) > _HIGHEST
        order = np.argsort(self.mean() + self.std())
        order = order[~searched[order]]
        for start in range(0, len(order), _ROWS_TOGETHER):
            rows = order[start : start + _ROWS_TOGETHER]
            asked, below = levels[rows], np.zeros((len(rows), levels.shape[1]))
            reached = -np.inf
            for _, mass, total in self[rows]._successive(0.0, _WIDEST * levels.shape[1]):
                before = total - np.sum(mass, axis=1)
                for cdf in (before[:, None] + np.cumsum(mass, axis=1)).T:
                    below += np.less(cdf[:, None], asked)
                reached = float(np.min(total - asked.max(axis=1)))
                if reached >= 0.0:
                    break
            result[rows] = below
            searched[rows] = reached < 0.0
        if np.any(searched):
            result[searched] = self[searched]._searched(levels[searched])
        return result

    def _shares(self, levels: Array) -> bool:
        """Whether one pass over the counts serves levels (k,): some, increasing, and inside (0, 1)."""
        return len(levels) >= _SHARED_LEVELS and bool(np.all(np.diff(levels, prepend=0.0, append=1.0) > 0.0))

    def _searched(self, q: Any) -> Array:
        q, columns = align_levels(q, len(self))
        result = np.maximum(self._inverse(q, columns), 0.0)
        rough = np.flatnonzero(self._inverse_is_rough())
        if len(rough) > 0:
            result[rough] = self[rough]._confirmed(result[rough], q[rough])
        return result

    def _confirmed(self, guess: Array, q: Array) -> Array:
        """``guess`` where it is the smallest count whose cdf reaches q, else that count; both (n,) or (n, k)."""
        start = np.where(np.isfinite(guess), guess, 0.0)
        right = np.isfinite(guess) & (self.cdf(start) >= q) & (self.cdf(start - 1.0) < q)
        result = np.where(q == 0.0, 0.0, np.where(q == 1.0, np.inf, guess))
        wrong = np.nonzero(~right & (q > 0.0) & (q < 1.0))
        if len(wrong[0]) > 0:
            law = self[wrong[0]]
            _, upper = law.window()
            result[wrong] = smallest_reaching(
                lambda chosen: law[chosen].cdf, q[wrong], np.zeros_like(upper), upper, whole=True
            )
        return result

    def window(self, tail: float = TAIL_MASS) -> tuple[Array, Array]:
        """See Count."""
        return np.maximum(self._inverse(tail, False) - 1.0, 0.0), self._inverse(1.0 - tail, False) + 1.0

    def mean_absolute_deviation(self, y: Array) -> Array:
        """See Count: (y - E Y) (2 F(y) - 1) + 2 weight(y) P(Y = y), by De Moivre's identity."""
        arguments = self._arguments(columns=True)
        counts = np.maximum(np.floor(y), 0.0)
        edge = np.where(
            y >= 0.0, self._edge_weight(counts, *arguments) * np.exp(self._log_mass(counts, *arguments)), 0.0
        )
        return np.asarray((y - self.mean()[:, None]) * (2.0 * self.cdf(y) - 1.0) + 2.0 * edge)

    def mean_beyond(self, y: Any) -> Array:
        """E[Y; Y > y] for counts y >= 0, a sum of positive terms; shapes as for ``cdf``."""
        y, columns = align(y, len(self))
        arguments = self._arguments(columns)
        mean = self.mean()[:, None] if columns else self.mean()
        edge = self._edge_weight(y, *arguments) * np.exp(self._log_mass(y, *arguments))
        return np.asarray(mean * self.survival(y) + edge)

    def characteristic_function(self, t: Array) -> Array:
        """See Distribution, and ``_log_wave``."""
        return np.asarray(np.exp(self._log_wave(np.asarray(t), *self._arguments(columns=True))))


def shared_quantiles(law: Count, levels: Array) -> Array:
    """``law.quantile(levels[None, :])`` for many increasing levels (k,) inside (0, 1), shape (n, k).

    The quantile at a level is the number of counts whose cdf is below it: one pass over the cdf of each row serves all
    levels, where looking for each of them takes a dozen values of the cdf. Rows of thousands of likely counts are
    looked at level by level.
    """
    lower, upper = law.window(0.5 * min(levels[0], 1.0 - levels[-1]))
    result = np.empty((len(law), len(levels)))
    wide = upper - lower > _WIDEST * len(levels)
    if np.any(wide):
        result[wide] = np.column_stack([law[wide].quantile(level) for level in levels])
    narrow = np.flatnonzero(~wide)
    for group in similar_windows(lower[narrow], upper[narrow]) if len(narrow) else ():
        rows = narrow[group]
        support = np.arange(lower[rows].min(), upper[rows].max() + 1.0)
        reached = np.searchsorted(levels, law[rows].cumulative(support), side="right")
        bins = len(levels) + 1
        places = np.arange(len(rows))[:, None] * bins + reached
        counted = np.bincount(places.ravel(), minlength=len(rows) * bins).reshape(len(rows), bins)
        below = np.minimum(np.cumsum(counted[:, :-1], axis=1), len(support) - 1)
        result[rows] = support[0] + below
    return result


def similar_windows(lower: Array, upper: Array) -> Iterator[Array]:
    """Groups of rows whose windows differ little: of one width class, neighbours by their lower end.

    The union of a group's windows is at most twice as wide as each of them, usually 1.3 times.
    """
    width = upper - lower + 1.0
    width_class = np.ceil(2.0 * np.log2(width))
    order = np.lexsort((lower, width_class))
    sorted_lower, sorted_class = lower[order], width_class[order]
    start = 0
    while start < len(order):
        widest = 2.0 ** (sorted_class[start] / 2.0)
        stop = int(np.searchsorted(sorted_class, sorted_class[start], side="right"))
        near = sorted_lower[start] + widest / 4.0
        stop = start + int(np.searchsorted(sorted_lower[start:stop], near, side="right"))
        stop = min(stop, start + max(1, int(BLOCK_ENTRIES // (1.25 * widest))))
        yield order[start:stop]
        start = stop
