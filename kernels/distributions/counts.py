"""Distributions on 0, 1, 2, ...: everything is read from a table of masses on a window of counts.

A window leaves out at most 1e-15 of the mass on each side; no support is cut by a constant. Rows with similar windows
share the counts of a table, so that an expectation for many rows is one matrix product.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import quadrature
from congruence.kernels.distributions.piecewise import count_below
from congruence.kernels.distributions.quadrature import smallest_reaching
from congruence.kernels.distributions.scalar import Parametric
from congruence.kernels.kernel_functions import Kernel

TAIL_MASS = 1e-15
_MOMENT_TAIL = 1e-28  # beyond which even a sixth power of the counts adds nothing
_REACH, _GROWTH = 8.5, 1.5  # standard deviations of the mean's neighbourhood that is tried first as a window
_SEARCHED = 64  # counts of a window per level, beyond which a search for each level is cheaper than a table
_WIDEST_TABLE = 65_536  # counts, beyond which the CRPS is an integral over the cdf, to about 1e-5
_ROUNDING = 1e-13  # of a level, by which sums of masses may miss the value of the cdf that it is


class Count(Parametric):
    """A family of counts: give ``_log_mass``, ``_at_most`` and ``_beyond`` for counts, ``mean`` and ``std``.

    Sums over tables of masses serve the rest. ``log_prob`` is -inf at values that are no counts.
    """

    is_discrete = True

    @abstractmethod
    def _log_mass(self, k: Array) -> Array:
        """log P(Y = k) for counts k (n, m) or (1, m) >= 0, (n, m)."""

    @abstractmethod
    def _at_most(self, k: Array) -> Array:
        """P(Y <= k) for counts k (n, m) >= 0."""

    @abstractmethod
    def _beyond(self, k: Array) -> Array:
        """P(Y > k) for counts k (n, m) >= 0, with the digits of small probabilities."""

    @property
    def counts(self) -> Count:
        return self

    @property
    def largest(self) -> Array:
        """The largest count that is possible, (n,); infinite where there is none."""
        return np.full(len(self), np.inf)

    def _log_prob(self, y: Array) -> Array:
        counts = _counts(y)
        return np.where(counts == y, self._log_mass(counts), -np.inf)

    def _cdf(self, y: Array) -> Array:
        return np.where(y < 0.0, 0.0, self._at_most(_counts(y)))

    def _cdf_left(self, y: Array) -> Array:
        return self._cdf(np.ceil(y) - 1.0)

    def survival(self, y: Any) -> Array:
        """P(Y > y) with the digits of small probabilities, which 1 - ``cdf`` has not; shapes as for ``cdf``."""
        return self._shaped(lambda values: np.where(values < 0.0, 1.0, self._beyond(_counts(values))), "survival", y)

    def window(self, tail: float = TAIL_MASS) -> tuple[Array, Array]:
        """Whole numbers (lower, upper), each (n,), outside which each row has at most ``tail`` mass per side."""
        mean, reach = self.mean(), _REACH * self.std() + 1.0
        return self._moved_out((np.floor(mean - reach), np.ceil(mean + reach)), reach * (_GROWTH - 1.0) + 1.0, tail)

    def _moved_out(self, window: tuple[Array, Array], step: Array, tail: float) -> tuple[Array, Array]:
        """A ``window`` widened until at most ``tail`` of the mass lies beyond each end, by growing steps (n,)."""
        lower, upper = (self._window_end(end, step, tail, side) for end, side in zip(window, (-1.0, 1.0), strict=True))
        return lower, np.minimum(upper, np.maximum(self.largest, 1.0))

    def _window_end(self, end: Array, step: Array, tail: float, side: float) -> Array:
        end, step, left = np.maximum(end, 0.0), np.array(step), np.arange(len(self))
        while len(left) > 0:
            law, value = self[left], end[left]
            beyond = law.survival(value) if side > 0.0 else law.cdf(value - 1.0)
            left = left[beyond > tail]
            end[left] = np.maximum(np.ceil(end[left] + side * step[left]), 0.0)
            step[left] *= _GROWTH
        return end

    @cached_property
    def _window(self) -> tuple[Array, Array]:
        return self.window()

    def tables(
        self, tail: float = TAIL_MASS, first: float = 0.0, last: float = np.inf
    ) -> Iterator[tuple[Array, Array, Array]]:
        """(rows, support (s,), mass (rows, s)) for groups of rows; the groups cover every row once.

        Counts below ``first`` and above ``last`` may be left out.
        """
        window = self._window if tail == TAIL_MASS else self.window(tail)
        lower, upper = (np.clip(end, first, max(first, last)) for end in window)
        for rows in similar_windows(lower, upper):
            support = np.arange(lower[rows].min(), upper[rows].max() + 1.0)
            yield rows, support, self[rows].masses(support)

    def masses(self, support: Array) -> Array:
        """P(Y = k) at successive counts (s,), shape (n, s)."""
        return np.exp(self._log_mass(support[None, :]))

    def levels(self, support: Array) -> tuple[Array, Array]:
        """P(Y <= k) and P(Y > k) at successive counts (s,), (n, s) each: sums of masses, from either end."""
        masses = self.masses(support)
        beyond = np.cumsum(masses[:, :0:-1], axis=1)[:, ::-1]
        below, above = self._at_most(support[None, :1]), self._beyond(support[None, -1:])
        at_most = np.hstack([below, below + np.cumsum(masses[:, 1:], axis=1)])
        return at_most, np.hstack([beyond + above, above])

    def cumulative(self, support: Array) -> Array:
        """``cdf`` at successive counts, (s,) where all rows have the same or (n, s), shape (n, s): sums of masses."""
        counts = np.broadcast_to(support, (len(self), support.shape[-1]))
        mass = np.where(counts >= 0.0, np.exp(self._log_mass(np.maximum(counts, 0.0))), 0.0)
        return np.asarray(np.minimum(self.cdf(counts[:, :1] - 1.0) + np.cumsum(mass, axis=1), 1.0))

    def _quantile(self, q: Array) -> Array:
        """The first count up to which the masses reach the level; searched for where its window is wide."""
        result = np.empty(q.shape)
        narrow, wide = self._by_width(_SEARCHED * max(1, q.shape[1]))
        if len(wide) > 0:
            row, column = np.divmod(np.arange(len(wide) * q.shape[1]), q.shape[1])
            lower, upper = (ends[wide[row]] for ends in self._window)
            result[wide[row], column] = smallest_reaching(
                lambda chosen: self[wide[row[chosen]]].cdf, q[wide[row], column], lower, upper, whole=True
            )
        for rows, support, mass in self[narrow].tables():
            at = narrow[rows]
            reached = count_below(np.cumsum(mass, axis=1), q[at] * (1.0 - _ROUNDING), or_equal=False)
            result[at] = support[np.minimum(reached, len(support) - 1)]
        return np.where(q == 0.0, 0.0, np.where(q == 1.0, self.largest[:, None], result))

    def _by_width(self, most: int) -> tuple[Array, Array]:
        """The rows whose windows hold at most so many counts, and the others."""
        lower, upper = self._window
        wide = upper - lower > most
        return np.flatnonzero(~wide), np.flatnonzero(wide)

    def mean(self) -> Array:
        return self._summed_moments[0]

    def std(self) -> Array:
        return self._summed_moments[1]

    @cached_property
    def _summed_moments(self) -> tuple[Array, Array]:
        """Mean and standard deviation from the masses; a family that uses them gives ``window`` itself."""
        mean, variance = np.empty((2, len(self)))
        for rows, support, mass in self.tables(_MOMENT_TAIL):
            mean[rows] = mass @ support
            variance[rows] = np.einsum("is,is->i", mass, (support - mean[rows, None]) ** 2)
        return mean, np.sqrt(variance)

    def _crps(self, y: Array) -> Array:
        """F^2 summed below y and (1 - F)^2 from y on, so that nothing cancels."""
        result = np.empty(y.shape)
        narrow, wide = self._by_width(_WIDEST_TABLE)
        if len(wide) > 0:
            result[wide] = quadrature.crps(self[wide], y[wide])
        for rows, support, mass in self[narrow].tables():
            at = narrow[rows]
            result[at] = _summed_crps(y[at], support, np.minimum(np.cumsum(mass, axis=1), 1.0))
        return result

    def sum_over(self, first: float, table: Array) -> Array:
        """sum_k P(Y = first + k) t_k for rows t_k of a table (s, r), shape (n, r): counts outside of it add nothing."""
        result = np.empty((len(self), table.shape[1]))
        for rows, support, mass in self.tables(first=first, last=first + len(table) - 1.0):
            start = int(support[0] - first)
            result[rows] = mass @ table[start : start + len(support)]
        return result

    def characteristic_function(self, t: Array) -> Array:
        result = np.empty((len(self), len(t)), dtype=np.complex128)
        for rows, support, mass in self.tables():
            phase = np.multiply.outer(support, t)
            result[rows] = mass @ np.cos(phase) + 1j * (mass @ np.sin(phase))
        return result

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        result = np.empty((len(self), len(nodes)))
        for rows, support, mass in self.tables():
            result[rows] = mass @ kernel(support, nodes)
        return result

    def raw_moments(self, order: int) -> Array:
        result = np.empty((len(self), order + 1))
        for rows, support, mass in self.tables(_MOMENT_TAIL):
            result[rows] = mass @ support[:, None] ** np.arange(order + 1)
        return result

    def _expected_diagonal(self, kernel: Kernel) -> Array:
        result = np.empty(len(self))
        for rows, support, mass in self.tables(_MOMENT_TAIL):
            result[rows] = mass @ np.asarray(kernel.diagonal(support))
        return result


class MixedCounts(Count):
    """The mixture of distributions of counts: ``weights`` (n, K) and K ``components`` of n rows each."""

    def __init__(self, weights: Array, components: tuple[Count, ...]) -> None:
        self.weights, self.components = weights, components

    def parameters(self) -> dict[str, Array]:
        """None of its own: the mixture that these counts are tells them."""
        return {}

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, rows: Any) -> MixedCounts:
        return MixedCounts(np.atleast_2d(self.weights[rows]), tuple(part[rows] for part in self.components))

    @property
    def largest(self) -> Array:
        return np.asarray(np.max([part.largest for part in self.components], axis=0))

    def window(self, tail: float = TAIL_MASS) -> tuple[Array, Array]:
        lower, upper = zip(*(part.window(tail) for part in self.components), strict=True)
        return np.min(lower, axis=0), np.max(upper, axis=0)

    def _log_mass(self, k: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self._sum([np.exp(part.log_prob(k)) for part in self.components])))

    def _at_most(self, k: Array) -> Array:
        return self._sum([part.cdf(k) for part in self.components])

    def _beyond(self, k: Array) -> Array:
        return self._sum([part.survival(k) for part in self.components])

    def _sum(self, parts: list[Array]) -> Array:
        return np.asarray(np.minimum(np.einsum("ik,kij->ij", self.weights, np.stack(parts)), 1.0))


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
        stop = min(stop, start + max(1, int(quadrature.BLOCK_ENTRIES // (1.25 * widest))))
        yield order[start:stop]
        start = stop


def _counts(y: Array) -> Array:
    """The largest count at or below each value, 0 for those below 0."""
    return np.maximum(np.floor(y), 0.0)


def _summed_crps(y: Array, support: Array, cdf: Array) -> Array:
    """The CRPS of y (n, k) for a cdf (n, s) at successive counts, before which it is 0 and beyond which it is 1."""
    none = np.zeros((len(cdf), 1))
    below = np.concatenate([none, np.cumsum(cdf**2, axis=1)], axis=1)
    above = np.cumsum(((1.0 - cdf) ** 2)[:, ::-1], axis=1)[:, ::-1]
    above = np.concatenate([above, none], axis=1)
    inside = np.clip(y, support[0], support[-1])
    place = (np.floor(inside) - support[0]).astype(np.intp)
    share, F = inside - np.floor(inside), np.take_along_axis(cdf, place, axis=1)
    before, after = np.take_along_axis(below, place, axis=1), np.take_along_axis(above, place + 1, axis=1)
    return np.asarray(before + share * F**2 + (1.0 - share) * (1.0 - F) ** 2 + after + np.abs(y - inside))
