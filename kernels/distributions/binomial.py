"""The binomial distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import require
from congruence.kernels.distributions.counts import TAIL_MASS
from congruence.kernels.distributions.mass import log_binomial_mass, mean_absolute_difference
from congruence.kernels.distributions.scipy_counts import ScipyCount

_MOST_TRIALS = 2.0**53  # beyond, float64 has not every whole number
_MANY_TRIALS = 1e9
_RARE = 1e-7


@dataclass(frozen=True)
class Binomial(ScipyCount):
    """Successes among ``n`` trials of probability ``p``; the log score is infinite above n."""

    n: Array
    p: Array

    def _check(self) -> None:
        whole = (self.n >= 0) & (self.n == np.floor(self.n)) & (self.n <= _MOST_TRIALS)
        require(whole, self.n, "n", "Binomial", "a whole number of trials, at most 2^53")
        require((self.p >= 0) & (self.p <= 1), self.p, "p", "Binomial", "a probability in [0, 1]")

    def _scipy(self, n: Array, p: Array) -> Any:
        return scipy.stats.binom(n.astype(np.int64), p)

    def _log_mass(self, y: Array, n: Array, p: Array) -> Array:
        return np.where(y <= n, log_binomial_mass(np.minimum(y, n), n, p), -np.inf)

    def _inverse(self, q: Any) -> Array:
        n, p = self._columns
        rare = n * p < _RARE  # where Boost finds no root to bracket, and hardly a level lies above P(Y <= 1)
        none = np.exp(self._log_mass(np.zeros_like(n), n, p))
        few = np.where(q <= none, 0.0, np.where(np.asarray(q) < 1.0, np.minimum(n, 1.0), n))
        return np.where(rare, few, self._scipy(n, np.where(rare, 0.5, p)).ppf(q))

    def _inverse_is_rough(self) -> Array:
        return (self.n >= _MANY_TRIALS) | (self.n * self.p < _RARE)

    def quantile(self, q: Any) -> Array:
        values = super().quantile(q)
        return np.minimum(values, self.n[:, None] if values.ndim == 2 else self.n)

    def window(self, tail: float = TAIL_MASS) -> tuple[Array, Array]:
        lower, upper = super().window(tail)
        return lower, np.minimum(upper, self.n)

    def mean_absolute_difference(self) -> Array:
        steepness, trials = (2.0 * self.p * (1.0 - self.p))[:, None], self.n[:, None]

        def lost_modulus(t: Array, versine: Array, rows: slice) -> Array:  # noqa: ARG001
            # Where p is 1/2 the modulus vanishes at t = pi; the smallest number stands for it.
            remaining = np.maximum(-steepness[rows] * versine, -1.0 + np.finfo(np.float64).epsneg)
            return np.asarray(-np.expm1(trials[rows] * np.log1p(remaining)))

        return mean_absolute_difference(lost_modulus, self.std())

    def factorial_moment(self, order: int = 2) -> Array:
        return np.asarray(np.prod((self.n[:, None] - np.arange(order)) * self.p[:, None], axis=1))

    def _edge_weight(self, y: Array, n: Array, p: Array) -> Array:
        return np.asarray((n - y) * p)

    def _log_wave(self, t: Array, n: Array, p: Array) -> Array:
        real, imaginary = 1.0 - 2.0 * p * np.sin(t / 2.0) ** 2, p * np.sin(t)
        lost = 4.0 * p * (1.0 - p) * np.sin(t / 2.0) ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            # Of one trial, squared; near 1 only the logarithm of what is lost keeps its digits n-fold.
            log_modulus = np.where(lost < 0.5, np.log1p(-lost), np.log(real**2 + imaginary**2))
            log_wave = n * (0.5 * log_modulus + 1j * np.arctan2(imaginary, real))
        return np.where(n > 0.0, log_wave, 0.0)
