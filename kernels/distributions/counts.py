"""Distributions on 0, 1, 2, ...: everything is read from a table of masses on a window of counts.

A window leaves out at most 1e-15 of the mass on each side; no support is cut by a constant. Rows with similar windows
share the counts of a table, so that an expectation for many rows is one matrix product.

Any counts may have more zeros (``ZeroInflated``), or other ones (``Hurdle``): P(Y = k) = c P(X = k) for k > 0, for the
base distribution X and a factor c of each row, and another probability of 0.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from congruence.kernels.arrays import Array, as_rows, require_parameter
from congruence.kernels.distributions import quadrature
from congruence.kernels.distributions.base import Parametric
from congruence.kernels.distributions.expectations import BLOCK_ENTRIES
from congruence.kernels.distributions.piecewise import count_below
from congruence.kernels.distributions.quadrature import smallest_reaching
from congruence.kernels.distributions.samples import WeightedSamples
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
    _kept: ClassVar[tuple[str, ...]] = ("_window",)  # tuples of arrays (n,) that selections of rows take over

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

    def __getitem__(self, rows: Any) -> Self:
        chosen = super().__getitem__(rows)
        for name in {*self._kept} & {*vars(self)}:
            chosen._hold(**{name: tuple(np.atleast_1d(values[rows]) for values in vars(self)[name])})
        return chosen

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
        """P(Y <= k) and P(Y > k) at successive k = -1, 0, ... (s,), (n, s) each: sums of masses, from either end."""
        masses = self.masses(np.maximum(support, 0.0))  # the first is in no sum
        beyond = np.cumsum(masses[:, :0:-1], axis=1)[:, ::-1]
        below, above = self._cdf(support[None, :1]), self._beyond(support[None, -1:])
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
        """By the table of masses, exactly; an integral over the cdf where that is wide."""
        result = np.empty(y.shape)
        narrow, wide = self._by_width(_WIDEST_TABLE)
        if len(wide) > 0:
            result[wide] = quadrature.crps(self[wide], y[wide])
        for rows, support, mass in self[narrow].tables():
            at = narrow[rows]
            result[at] = WeightedSamples(support, mass)._crps(y[at])
        return result

    def sum_over(self, first: float, table: Array) -> Array:
        """sum_k P(Y = first + k) t_k for rows t_k of a table (s, r), shape (n, r): counts outside of it add nothing."""
        result = np.empty((len(self), table.shape[1]))
        for rows, support, mass in self.tables(first=first, last=first + len(table) - 1.0):
            start = int(support[0] - first)
            result[rows] = mass @ table[start : start + len(support)]
        return result

    def characteristic_function(self, t: Array) -> Array:
        def wave(counts: Array) -> Array:
            phase = np.multiply.outer(counts, t)
            return np.hstack([np.cos(phase), np.sin(phase)])

        real, imaginary = np.split(self._expected(wave), 2, axis=1)
        return np.asarray(real + 1j * imaginary)

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        return self._expected(lambda counts: np.asarray(kernel(counts, nodes)))

    def raw_moments(self, order: int) -> Array:
        return self._expected(lambda counts: counts[:, None] ** np.arange(order + 1), _MOMENT_TAIL)

    def _expected_diagonal(self, kernel: Kernel) -> Array:
        return self._expected(lambda counts: np.asarray(kernel.diagonal(counts))[:, None], _MOMENT_TAIL)[:, 0]

    def _expected(self, values: Callable[[Array], Array], tail: float = TAIL_MASS) -> Array:
        """E g(Y), (n, r), for the ``values`` (s, r) of g at counts (s,)."""
        found = [(rows, mass @ values(support)) for rows, support, mass in self.tables(tail)]
        result = np.empty((len(self), found[0][1].shape[1] if found else 0))
        for rows, part in found:
            result[rows] = part
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


def _counts(y: Array) -> Array:
    """The largest count at or below each value, 0 for those below 0."""
    return np.maximum(np.floor(y), 0.0)


class ZeroModified(Count):
    """A base distribution of counts and a probability (n,), the second field, that says how many zeros there are."""

    base: Count
    _probability_name: ClassVar[str]

    def __post_init__(self) -> None:
        family, name = type(self).__name__, self._probability_name
        given = as_rows(getattr(self, name), name, family)
        require_parameter((given >= 0) & (given <= 1), given, name, family, "a probability in [0, 1]")
        n = max(len(self.base), len(given))
        rows = np.zeros(n, dtype=np.intp)
        self._hold(
            base=self.base if len(self.base) == n else self.base[rows],
            **{name: given if len(given) == n else given[rows]},
        )
        self._check()

    @property
    def _probability(self) -> Array:
        return np.asarray(getattr(self, self._probability_name))

    @property
    @abstractmethod
    def _zero(self) -> Array:
        """P(Y = 0), (n,)."""

    @property
    @abstractmethod
    def _log_factor(self) -> Array:
        """log c, (n,)."""

    @cached_property
    def _always_one(self) -> Array:
        """The rows, (n,), in which X is so seldom positive that it is 1 if it is."""
        return np.zeros(len(self), dtype=bool)

    @property
    def family(self) -> str:
        return f"{super().family}_{self.base.family}"

    def parameters(self) -> dict[str, Array]:
        """The parameters of the base, and the probability."""
        return {**self.base.parameters(), self._probability_name: self._probability}

    @property
    def largest(self) -> Array:
        return self.base.largest

    def window(self, tail: float = TAIL_MASS) -> tuple[Array, Array]:
        """See Count; from the base's window upwards, as a small share of it may be all that is positive."""
        upper = np.maximum(self.base.window(tail)[1], 1.0)
        return self._moved_out((np.zeros(len(self)), upper), np.ones(len(self)), tail)

    def _tabled(self, name: str, found: Callable[[Array], Array], *given: Any, most: float = 100.0) -> Array:
        """``found`` from c (n, 1), but by tables of masses, ``Count.name(*given)``, in rows of c larger than ``most``.

        Differences of numbers of the size of c lose digits.
        """
        factor = np.exp(np.minimum(self._log_factor, 100.0))
        seldom = (factor > most) | self._always_one
        result = found(np.where(seldom, 1.0, factor)[:, None])
        if np.any(seldom):
            own = (each[seldom] if np.ndim(each) == 2 else each for each in given)  # values of each row, or of all
            result[seldom] = getattr(Count, name)(self[seldom], *own)
        return result

    def mean(self) -> Array:
        mean = self.base.mean()[:, None]
        return self._tabled("mean", lambda c: np.asarray(c * mean)[:, 0])

    def std(self) -> Array:
        mean, std = self.base.mean()[:, None], self.base.std()[:, None]
        return self._tabled("std", lambda c: np.sqrt(c * std**2 + c * (1.0 - c) * mean**2)[:, 0], most=1.0)

    def raw_moments(self, order: int) -> Array:
        of_base = np.append(np.zeros((len(self), 1)), self.base.raw_moments(order)[:, 1:], axis=1)
        return self._tabled("raw_moments", lambda c: c * of_base + (np.arange(order + 1) == 0), order)

    def characteristic_function(self, t: Array) -> Array:
        of_base = self.base.characteristic_function(t)
        return self._tabled("characteristic_function", lambda c: 1.0 + c * (of_base - 1.0), t)

    def _crps(self, y: Array) -> Array:
        """c CRPS(X, y) + (1 - c) (|y| - c CRPS(X, 0)), as E |X - X'| / 2 = E X - CRPS(X, 0) of counts."""
        score, at_zero = self.base.crps(y), self.base.crps(0.0)[:, None]
        return self._tabled("_crps", lambda c: np.maximum(c * score + (1.0 - c) * (np.abs(y) - c * at_zero), 0.0), y)

    def _log_mass(self, k: Array) -> Array:
        with np.errstate(divide="ignore"):
            zero, one = np.log(self._zero)[:, None], np.log1p(-self._zero)[:, None]
        positive = self._log_factor[:, None] + self.base.log_prob(k)
        positive = np.where(self._always_one[:, None], np.where(k == 1.0, one, -np.inf), positive)
        return np.where(k == 0.0, zero, positive)

    def _at_most(self, k: Array) -> Array:
        return np.asarray(np.maximum(1.0 - self._beyond(k), 0.0))

    def _beyond(self, k: Array) -> Array:
        with np.errstate(divide="ignore"):
            positive = np.exp(self._log_factor[:, None] + np.log(self.base.survival(k)))
        one = np.where(k < 1.0, 1.0 - self._zero[:, None], 0.0)
        return np.where(self._always_one[:, None], one, np.minimum(positive, 1.0 - self._zero[:, None]))


@dataclass(frozen=True, repr=False)
class ZeroInflated(ZeroModified):
    """0 with probability ``inflation``, else the base distribution of counts, which may be 0 too."""

    _probability_name = "inflation"

    base: Count
    inflation: Array

    @cached_property
    def _zero(self) -> Array:
        return np.asarray(self.inflation + (1.0 - self.inflation) * np.exp(self.base.log_prob(0.0)))

    @cached_property
    def _log_factor(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.log1p(-self.inflation)


@dataclass(frozen=True, repr=False)
class Hurdle(ZeroModified):
    """0 with ``zero_probability``, else the base distribution given that it is positive: 1 where it hardly ever is."""

    _probability_name = "zero_probability"

    base: Count
    zero_probability: Array

    def _check(self) -> None:
        largest = self.base.largest
        require_parameter(
            largest > 0, largest, "base", "Hurdle", "a distribution that may be positive: at least one trial"
        )

    @property
    def _zero(self) -> Array:
        return self.zero_probability

    @cached_property
    def _positive(self) -> Array:
        """P(X > 0), (n,)."""
        return self.base.survival(0.0)

    @cached_property
    def _always_one(self) -> Array:
        return np.asarray(self._positive == 0.0)

    @cached_property
    def _log_factor(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.log1p(-self.zero_probability) - np.log(np.where(self._always_one, 1.0, self._positive))


@dataclass(frozen=True)
class ZeroModifiedFamily:
    """A wrapper around one family of counts, made from the parameters of both: what settings give a name to."""

    kind: type[ZeroModified]
    base: type[Count]

    def parameter_names(self) -> tuple[str, ...]:
        """The names of the parameters of the base, and the wrapper's probability, in order."""
        return (*self.base.parameter_names(), self.kind._probability_name)

    def __call__(self, *values: Any, **named: Any) -> ZeroModified:
        """The distribution with parameters by place or by name."""
        given = dict(zip(self.parameter_names(), values, strict=False)) | named
        probability = given.pop(self.kind._probability_name)
        return self.kind(self.base(**given), probability)  # type: ignore[call-arg]
