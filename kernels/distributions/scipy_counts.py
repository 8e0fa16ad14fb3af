"""Families of counts that scipy has: masses that follow from one another, and quantiles that are searched for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions import moments
from congruence.kernels.distributions.count_windows import counts_below
from congruence.kernels.distributions.counts import TAIL_MASS, WIDEST, Count
from congruence.kernels.distributions.inversion import smallest_reaching
from congruence.kernels.distributions.parametric import ScipyFamily

_LEAST_MASS = 1e-250  # below, products of masses would soon be zero
_NO_MASS = 1e-14  # what a row has left where sums over its counts end
_ROWS_TOGETHER = 1024  # rows alike whose masses are in hand at once, and stay in cache
_COUNTS_TOGETHER = 16  # their masses between two looks at whether any is left
_HIGHEST = 1.0 - 1e-12  # level up to which a sum of masses has the digits to tell one count from the next
_NEAR_ZERO = 6.0  # standard deviations of the mean, up to which summing up from 0 on is hardly more than a window
_FEW_COUNTS = 128  # summed up in less time than four searches take


class ScipyCount(ScipyFamily, Count):
    """A family of counts that scipy.stats has; a family gives its own log masses, and what makes sums of them closed.

    De Moivre's identity: E[Y; Y <= y] = E Y F(y) - weight(y) P(Y = y), with a simple ``_edge_weight`` for each family.
    """

    _many_levels: ClassVar[int] = 4

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
        parts = [cdf for _, _, cdf in self._successive(support[..., 0], support.shape[-1])]
        return np.ascontiguousarray(np.concatenate(parts).T) if parts else super().cumulative(support)

    def sum_over(self, first: float, table: Array) -> Array:
        """See Count: masses from the one before, up to where no row has any left."""
        result = np.zeros((len(self), table.shape[1]))
        order = np.argsort(self.mean() + self.std())
        for some in row_slices(len(order), _ROWS_TOGETHER):
            rows = order[some]
            found = self[rows]._sum_from_first(first, table)
            if found is None:
                return super().sum_over(first, table)
            result[rows] = found
        return result

    def _sum_from_first(self, first: float, table: Array) -> Array | None:
        result, left = np.zeros((len(self), table.shape[1])), np.inf
        for places, mass, cdf in self._successive(first, len(table)):
            result += mass.T @ table[places]
            left = 1.0 - float(np.min(cdf[-1]))
            if left < _NO_MASS:
                return result
        return None if left == np.inf else result

    def _successive(self, first: Any, count: int) -> Iterator[tuple[slice, Array, Array]]:
        """Which of the counts from ``first`` on, one or (n,), their masses (c, n) and P(Y <= count) (c, n), and so on.

        Count by count for all rows, which takes a few passes over vectors. Nothing where the family has no ``_growth``,
        or where ``first`` has so little mass that it has no digits.
        """
        arguments = self._law
        if self._growth(0.0, *arguments) is None:
            return
        start = np.broadcast_to(first, len(self))
        mass = np.exp(self._log_mass(start, *arguments))
        if np.min(mass, initial=1.0) < _LEAST_MASS:
            return
        total = np.zeros(len(self)) if not np.any(start) else self.cdf(start - 1.0)
        for places in row_slices(count, _COUNTS_TOGETHER):
            masses, cdf = np.empty((2, places.stop - places.start, len(self)))
            for place in range(places.start, places.stop):
                masses[place - places.start] = mass
                total = np.add(total, mass, out=cdf[place - places.start])
                mass = mass * self._growth(first + place, *arguments)
            yield places, masses, cdf

    def counted_quantiles(self, levels: Array) -> Array | None:
        """See Count: of rows whose counts begin near 0, some rows alike at a time."""
        mean, std = self.mean(), self.std()
        if levels[-1] > _HIGHEST or np.any(mean > _NEAR_ZERO * std):
            return None
        order = np.argsort(-(mean + std))  # the widest first: where those are too wide, nothing was done in vain
        result = np.empty((len(self), len(levels)))
        for some in row_slices(len(order), _ROWS_TOGETHER):
            rows = order[some]
            below = self[rows]._counted(levels)
            if below is None:
                return None
            result[rows] = below
        return result

    def _counted(self, levels: Array) -> Array | None:
        """``counted_quantiles`` of rows alike; None where masses do not follow from one another, or do not end soon."""
        places: list[Array] = []
        for _, _, cdf in self._successive(0.0, max(_FEW_COUNTS, WIDEST * len(levels))):
            places.append(np.searchsorted(levels, cdf.T, side="right"))
            if np.min(cdf[-1]) >= levels[-1]:
                return counts_below(np.concatenate(places, axis=1), len(levels))
        return None

    @abstractmethod
    def _log_wave(self, *args: Any, **kwargs: Any) -> Array:
        """log E exp(i t Y) at frequencies t, the first argument, for the parameters in order; all broadcast."""

    @abstractmethod
    def factorial_moment(self, order: int = 2) -> Array:
        """E Y (Y - 1) ... (Y - order + 1), (n,)."""

    def raw_moments(self, order: int) -> Array:
        return moments.from_factorial([self.factorial_moment(k) for k in range(order + 1)], len(self))

    def log_positive(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(-np.expm1(self.log_prob(0.0))))

    def _log_prob(self, y: Array) -> Array:
        counts = np.maximum(np.floor(y), 0.0)  # other values are no counts
        return np.where(counts == y, self._log_mass(counts, *self._columns), -np.inf)

    def _survival(self, y: Array) -> Array:
        return np.asarray(self._frozen.sf(y))

    def _inverse(self, q: Any) -> Array:
        """A quantile function to start from, (n, k): scipy's."""
        return np.asarray(self._frozen.ppf(q))

    def _inverse_is_rough(self) -> Array:
        """The rows, (n,) booleans, in which ``_inverse`` may be another count."""
        return np.zeros(len(self), dtype=bool)

    def inverted(self, levels: Array) -> Array:
        """``quantile`` at random levels (n, k) of each row: how many counts have their cdf below the level.

        The cdf is summed up here, so that at a level that *is* a value of the cdf it may be the next count.
        """
        result = np.zeros(levels.shape)
        searched = np.max(levels, axis=1) > _HIGHEST
        order = np.argsort(self.mean() + self.std())
        order = order[~searched[order]]
        for some in row_slices(len(order), _ROWS_TOGETHER):
            rows = order[some]
            asked, below = levels[rows], np.zeros((len(rows), levels.shape[1]))
            reached = -np.inf
            for _, _, cdf in self[rows]._successive(0.0, WIDEST * levels.shape[1]):
                for at_most in cdf:
                    below += np.less(at_most[:, None], asked)
                reached = float(np.min(cdf[-1] - asked.max(axis=1)))
                if reached >= 0.0:
                    break
            result[rows] = below
            searched[rows] = reached < 0.0
        if np.any(searched):
            result[searched] = self[searched]._quantile(levels[searched])
        return result

    def _quantile(self, q: Array) -> Array:
        result = np.maximum(self._inverse(q), 0.0)
        rough = np.flatnonzero(self._inverse_is_rough())
        if len(rough) > 0:
            result[rough] = self[rough]._confirmed(result[rough], q[rough])
        return result

    def _confirmed(self, guess: Array, q: Array) -> Array:
        """``guess`` where it is the smallest count whose cdf reaches q, else that count; both (n, k)."""
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
        lower, upper = self._inverse(tail)[:, 0], self._inverse(1.0 - tail)[:, 0]
        return np.maximum(lower - 1.0, 0.0), upper + 1.0

    def mean_absolute_deviation(self, y: Array) -> Array:
        """See Count: (y - E Y) (2 F(y) - 1) + 2 weight(y) P(Y = y), by De Moivre's identity."""
        counts = np.maximum(np.floor(y), 0.0)
        edge = np.where(y >= 0.0, self._edge(counts), 0.0)
        return np.asarray((y - self.mean()[:, None]) * (2.0 * self.cdf(y) - 1.0) + 2.0 * edge)

    def _edge(self, counts: Array) -> Array:
        """weight(y) P(Y = y) for counts y (n, k)."""
        return np.asarray(self._edge_weight(counts, *self._columns) * np.exp(self._log_mass(counts, *self._columns)))

    def mean_beyond(self, y: Array) -> Array:
        """E[Y; Y > y] for counts y >= 0, (n, k), a sum of positive terms."""
        return np.asarray(self.mean()[:, None] * self.survival(y) + self._edge(y))

    def characteristic_function(self, t: Array) -> Array:
        """See Distribution, and ``_log_wave``."""
        return np.asarray(np.exp(self._log_wave(np.asarray(t), *self._columns)))
