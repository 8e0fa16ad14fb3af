"""The Poisson distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
import scipy.stats

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import require
from congruence.kernels.distributions.counts import ScipyCount
from congruence.kernels.distributions.mass import log_poisson_mass


@dataclass(frozen=True)
class Poisson(ScipyCount):
    """Counts with mean and variance ``rate``."""

    rate: Array

    def _check(self) -> None:
        require(self.rate >= 0, self.rate, "rate", "Poisson", "a rate of 0 or more")

    def _scipy(self, rate: Array) -> Any:
        return scipy.stats.poisson(rate)

    def _log_mass(self, y: Array, rate: Array) -> Array:
        return log_poisson_mass(y, rate)

    def mean_absolute_difference(self) -> Array:
        """2 rate exp(-2 rate) (I_0(2 rate) + I_1(2 rate)): the Gini mean difference of a Poisson law."""
        return np.asarray(2.0 * self.rate * (scipy.special.ive(0, 2 * self.rate) + scipy.special.ive(1, 2 * self.rate)))

    def _partial_mean(self, y: Array, rate: Array) -> Array:
        return np.asarray(rate * scipy.stats.poisson.cdf(y - 1.0, rate))

    def characteristic_function(self, t: Array) -> Array:
        """exp(rate (exp(i t) - 1))."""
        return np.asarray(np.exp(np.multiply.outer(self.rate, np.expm1(1j * np.asarray(t)))))
