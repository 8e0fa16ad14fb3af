"""The Poisson distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import scipy.special

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import require
from congruence.kernels.distributions.counts import TAIL_MASS
from congruence.kernels.distributions.incomplete_gamma import gamma_cdf, gamma_survival
from congruence.kernels.distributions.mass import log_poisson_mass
from congruence.kernels.distributions.scipy_counts import ScipyCount

_LARGE = 3e4


@dataclass(frozen=True)
class Poisson(ScipyCount):
    """Counts with mean and variance ``rate``; rate 0 is the law of 0."""

    rate: Array

    def _check(self) -> None:
        require(self.rate >= 0, self.rate, "rate", "Poisson", "a rate of 0 or more")

    def _scipy(self, rate: Array) -> Any:
        return scipy.stats.poisson(rate)

    def _log_mass(self, y: Array, rate: Array) -> Array:
        return log_poisson_mass(y, rate)

    def _growth(self, y: Any, rate: Array) -> Array:
        return np.asarray(rate / (y + 1.0))

    def _cdf(self, y: Array) -> Array:
        return self._tail(y, gamma_survival, outside=0.0)

    def mean(self) -> Array:
        return self.rate.copy()

    def std(self) -> Array:
        return np.sqrt(self.rate)

    def _survival(self, y: Array) -> Array:
        return self._tail(y, gamma_cdf, outside=1.0)

    def _tail(self, y: Array, of_gamma: Callable[[Array, Array], Array], outside: float) -> Array:
        """That more than y events come before time ``rate`` is that the waiting time for y + 1 is shorter."""
        (rate,) = self._columns
        return np.where(y < 0.0, outside, of_gamma(np.floor(np.maximum(y, 0.0)) + 1.0, rate))

    def _inverse_is_rough(self) -> Array:
        return self.rate >= _LARGE

    def window(self, tail: float = TAIL_MASS) -> tuple[Array, Array]:
        """See Count; Chernoff's bounds at large rates, at which scipy's quantiles lose the tails."""
        lower, upper = super().window(tail)
        bound = -np.log(tail)
        reach = np.sqrt(2.0 * self.rate * bound)
        above = bound / 3.0 + np.sqrt(bound**2 / 9.0 + reach**2)
        large = self.rate >= _LARGE
        below = np.where(large, np.maximum(np.floor(self.rate - reach), 0.0), lower)
        return below, np.where(large, np.ceil(self.rate + above), upper)

    def mean_absolute_difference(self) -> Array:
        """2 rate exp(-2 rate) (I_0(2 rate) + I_1(2 rate)): the Gini mean difference of a Poisson law."""
        return np.asarray(2.0 * self.rate * (scipy.special.i0e(2 * self.rate) + scipy.special.i1e(2 * self.rate)))

    def factorial_moment(self, order: int = 2) -> Array:
        return np.asarray(self.rate**order)

    def _edge_weight(self, y: Array, rate: Array) -> Array:  # noqa: ARG002
        return rate

    def _log_wave(self, t: Array, rate: Array) -> Array:
        return np.asarray(rate * (1j * np.sin(t) - 2.0 * np.sin(t / 2.0) ** 2))
