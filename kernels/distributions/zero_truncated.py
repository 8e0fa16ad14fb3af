"""Counts given that they are positive: W = X | X > 0, with all its digits however rarely X is positive.

With P = P(X > 0), what is read off X loses digits in differences as P falls: a Poisson law of rate 1e-8 is positive
once in 10^8, and 1 - exp(-rate) or E |X - y| - P(X = 0) y keep eight digits of it. Here every method is a sum of terms
of the size of P, divided by P.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.counts import TAIL_MASS, Count
from congruence.kernels.distributions.inversion import smallest_reaching
from congruence.kernels.distributions.mass import mean_absolute_difference
from congruence.kernels.distributions.scipy_counts import ScipyCount

_OFTEN = 0.5  # P from which E X and P differ by no small number
_SELDOM = 1e-3  # P below which E |X - X'| holds too few digits of E |W - W'|


@dataclass(frozen=True)
class ZeroTruncated(Count):
    """X given X > 0, for counts X with P(X > 0) > 0 in every row."""

    base: Count

    def __post_init__(self) -> None:
        """Nothing: the base has checked its parameters."""

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: Any) -> ZeroTruncated:
        return type(self)(self.base[rows])

    @cached_property
    def _log_positive(self) -> Array:
        return self.base.log_positive()

    @property
    def _positive(self) -> Array:
        """P, (n,)."""
        return np.exp(self._log_positive)

    def log_positive(self) -> Array:
        """See Count: 0."""
        return np.zeros(len(self))

    def window(self, tail: float = TAIL_MASS) -> tuple[Array, Array]:
        """See Count; from the base's window upwards until what remains is ``tail`` of P."""
        _, upper = self.base.window(tail)
        upper = np.maximum(upper, 1.0)
        allowed = tail * self._positive
        step = np.ones(len(self))
        while np.any(beyond := self.base.survival(upper) > allowed):
            upper = np.where(beyond, upper + step, upper)
            step = np.where(beyond, 2.0 * step, step)
        return np.ones(len(self)), upper

    def _log_prob(self, y: Array) -> Array:
        return np.where(y <= 0.0, -np.inf, self.base.log_prob(y) - self._log_positive[:, None])

    def _cdf(self, y: Array) -> Array:
        return np.asarray(np.clip(1.0 - self._survival(y), 0.0, 1.0))

    def _survival(self, y: Array) -> Array:
        return np.where(y < 1.0, 1.0, np.minimum(self.base.survival(y) / self._positive[:, None], 1.0))

    def _quantile(self, q: Array) -> Array:
        """That of X at level 1 - P (1 - q) where P is large enough, else searched for."""
        result = np.empty(q.shape)
        often = self._positive >= _SELDOM
        if np.any(often):
            law = self[often]
            level = np.clip(1.0 - law._positive[:, None] * (1.0 - q[often]), 0.0, 1.0)
            result[often] = np.maximum(law.base.quantile(level), 1.0)
        if not np.all(often):
            result[~often] = self[~often]._searched_quantile(q[~often])
        return result

    def _searched_quantile(self, q: Array) -> Array:
        row = np.nonzero(np.ones(q.shape, dtype=bool))[0]
        lower, upper = (ends[row] for ends in self.window())
        found = smallest_reaching(lambda chosen: self[row[chosen]].cdf, q.ravel(), lower, upper, whole=True)
        most = self.base.quantile(np.ones(q.shape))
        return np.where(q < 1.0, found.reshape(q.shape), most)

    def mean(self) -> Array:
        """See Distribution: E X / P."""
        return np.asarray(self.base.mean() / self._positive)

    def std(self) -> Array:
        return self._spread

    @cached_property
    def _spread(self) -> Array:
        if not isinstance(self.base, ScipyCount):
            return self._summed_moments[1]
        positive, mean = self._positive, self.mean()
        variance = (
            self.base.std() ** 2 - self.base.mean() ** 2 * np.exp(self.base.log_prob(0.0)) / positive
        ) / positive
        # Var W = E W (W - 1) - E W (E W - 1), and E W - 1 = E max(X - 1, 0) / P is a sum of small terms.
        one = np.ones((len(self), 1))
        excess = (self.base.mean_beyond(one) - self.base.survival(one))[:, 0] / positive
        seldom = self.base.factorial_moment() / positive - mean * excess
        return np.asarray(np.sqrt(np.maximum(np.where(positive > _OFTEN, variance, seldom), 0.0)))

    def support_blocks(self, frequency: float = np.inf) -> Iterator[tuple[Array, Array, Array]]:
        """See Count; those of the base where zeros are rare, so that it may leave out counts."""
        often = self._log_positive > np.log(_OFTEN)
        if np.all(often):
            for rows, support, mass in self.base.support_blocks(frequency):
                positive = np.where(support > 0.0, mass, 0.0) / self._positive[:, None][rows]
                yield rows, support, positive
        else:
            yield from super().support_blocks(frequency)

    def mean_absolute_difference(self) -> Array:
        """See Count: (E |X - X'| - 2 (1 - P) E X) / P^2, or, for small P, from the characteristic function."""
        if not isinstance(self.base, ScipyCount):
            return super().mean_absolute_difference()
        result = np.empty(len(self))
        seldom = self._positive < _SELDOM
        kind = type(self)
        for chosen, difference in ((seldom, kind._difference_by_waves), (~seldom, kind._difference_of_base)):
            if np.any(chosen):
                result[chosen] = difference(self[chosen])
        return np.maximum(result, 0.0)

    def _difference_of_base(self) -> Array:
        none = np.exp(self.base.log_prob(0.0))
        lost = self.base.mean_absolute_difference() - 2.0 * none * self.base.mean()
        return np.asarray(lost / self._positive**2)

    def _difference_by_waves(self) -> Array:
        def lost_modulus(t: Array, versine: Array, rows: slice) -> Array:  # noqa: ARG001
            lost = self[rows]._lost_wave(t)
            return np.asarray(2.0 * lost.real - lost.real**2 - lost.imag**2)

        return mean_absolute_difference(lost_modulus, np.hypot(self.mean(), self.std()))

    def _lost_wave(self, t: Array) -> Array:
        """1 - E exp(i t W) for t (n, m) or (1, m): what X loses, over P."""
        assert isinstance(self.base, ScipyCount)
        return np.asarray(-np.expm1(self.base._log_wave(t, *self.base._columns)) / self._positive[:, None])

    def mean_absolute_deviation(self, y: Array) -> Array:
        if not isinstance(self.base, ScipyCount):
            return super().mean_absolute_deviation(y)
        positive, mean = self._positive[:, None], self.base.mean()[:, None]
        counts = np.maximum(np.floor(y), 0.0)
        none = np.exp(self.base.log_prob(0.0))[:, None]
        often = self.base.mean_absolute_deviation(y) - none * np.abs(y)
        # y (P(0 < X <= y) - P(X > y)) + E[X; X > y] - E[X; 0 < X <= y]
        seldom = y * (positive - 2.0 * self.base.survival(counts)) + 2.0 * self.base.mean_beyond(counts) - mean
        seldom = np.where(y < 0.0, mean - y * positive, seldom)
        return np.asarray(np.where(positive > _OFTEN, often, seldom) / positive)

    def raw_moments(self, order: int) -> Array:
        """See Distribution: E X^k / P."""
        result = self.base.raw_moments(order) / self._positive[:, None]
        result[:, 0] = 1.0
        return np.asarray(result)

    def characteristic_function(self, t: Array) -> Array:
        if not isinstance(self.base, ScipyCount):
            return super().characteristic_function(t)
        return np.asarray(1.0 - self._lost_wave(np.asarray(t)))
