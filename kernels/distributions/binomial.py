"""The binomial distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import require
from congruence.kernels.distributions.counts import ScipyCount
from congruence.kernels.distributions.mass import log_binomial_mass, mean_absolute_difference


@dataclass(frozen=True)
class Binomial(ScipyCount):
    """Successes among ``n`` trials of probability ``p``; the log score is infinite above n."""

    n: Array
    p: Array

    def _check(self) -> None:
        whole = (self.n >= 0) & (self.n == np.floor(self.n))
        require(whole, self.n, "n", "Binomial", "a whole number of trials")
        require((self.p >= 0) & (self.p <= 1), self.p, "p", "Binomial", "a probability in [0, 1]")

    def _scipy(self, n: Array, p: Array) -> Any:
        return scipy.stats.binom(n.astype(np.int64), p)

    def _log_mass(self, y: Array, n: Array, p: Array) -> Array:
        return np.where(y <= n, log_binomial_mass(np.minimum(y, n), n, p), -np.inf)

    def window(self, tail: float = 1e-15) -> tuple[Array, Array]:
        """See Count."""
        lower, upper = super().window(tail)
        return lower, np.minimum(upper, self.n)

    def mean_absolute_difference(self) -> Array:
        """See Count."""
        steepness, trials = (2.0 * self.p * (1.0 - self.p))[:, None], self.n[:, None]

        def log_modulus(versine: Array, rows: slice) -> Array:
            # Where p is 1/2 the modulus vanishes at t = pi; the smallest number stands for it.
            remaining = np.maximum(-steepness[rows] * versine, -1.0 + np.finfo(np.float64).epsneg)
            return np.asarray(trials[rows] * np.log1p(remaining))

        return mean_absolute_difference(log_modulus, self.std())

    def _partial_mean(self, y: Array, n: Array, p: Array) -> Array:
        fewer = np.maximum(n - 1.0, 0.0)
        return np.asarray(n * p * scipy.stats.binom.cdf(np.minimum(y - 1.0, fewer), fewer, p))

    def characteristic_function(self, t: Array) -> Array:
        """(1 + p (exp(i t) - 1))^n."""
        with np.errstate(divide="ignore", invalid="ignore"):
            modulus = np.power(1.0 + np.multiply.outer(self.p, np.expm1(1j * np.asarray(t))), self.n[:, None])
        return np.asarray(modulus)
