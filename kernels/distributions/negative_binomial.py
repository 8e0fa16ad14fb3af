"""The negative binomial distribution, by its mean and dispersion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.stats

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import require
from congruence.kernels.distributions.counts import ScipyCount
from congruence.kernels.distributions.mass import log_negative_binomial_mass, mean_absolute_difference


@dataclass(frozen=True, init=False)
class NegativeBinomial(ScipyCount):
    """Counts of variance mean + dispersion mean^2 (``mu`` holds the mean): a gamma mixture of Poisson laws.

    In scipy's terms n = 1 / dispersion and p = 1 / (1 + dispersion mean). As the dispersion falls to 0 the law becomes
    Poisson(mean).
    """

    _argument_names: ClassVar[dict[str, str]] = {"mu": "mean"}

    mu: Array
    dispersion: Array

    def __init__(self, mean: Array, dispersion: Array) -> None:
        object.__setattr__(self, "mu", mean)
        object.__setattr__(self, "dispersion", dispersion)
        self.__post_init__()

    def _check(self) -> None:
        require(self.mu > 0, self.mu, "mean", "NegativeBinomial", "a positive mean")
        require(self.dispersion > 0, self.dispersion, "dispersion", "NegativeBinomial", "a positive dispersion")

    def _scipy(self, mean: Array, dispersion: Array) -> Any:
        return scipy.stats.nbinom(1.0 / dispersion, 1.0 / (1.0 + dispersion * mean))

    def _log_mass(self, y: Array, mean: Array, dispersion: Array) -> Array:
        return log_negative_binomial_mass(y, mean, dispersion)

    def mean(self) -> Array:
        """See Distribution."""
        return self.mu.copy()

    def std(self) -> Array:
        """See Distribution."""
        return np.asarray(np.sqrt(self.mu + self.dispersion * self.mu**2))

    def mean_absolute_difference(self) -> Array:
        """See Count."""
        odds = self.dispersion * self.mu
        steepness, exponent = (2.0 * odds * (1.0 + odds))[:, None], -1.0 / self.dispersion[:, None]
        bend = np.sqrt(np.maximum(-exponent, 1.0) * steepness)[:, 0]
        return mean_absolute_difference(lambda v, rows: exponent[rows] * np.log1p(steepness[rows] * v), bend)

    def _partial_mean(self, y: Array, mean: Array, dispersion: Array) -> Array:
        shifted = scipy.stats.nbinom.cdf(y - 1.0, 1.0 / dispersion + 1.0, 1.0 / (1.0 + dispersion * mean))
        return np.asarray(mean * shifted)

    def characteristic_function(self, t: Array) -> Array:
        """(1 - dispersion mean (exp(i t) - 1))^(-1 / dispersion)."""
        growth = np.multiply.outer(self.dispersion * self.mu, np.expm1(1j * np.asarray(t)))
        return np.asarray(np.exp(-np.log1p(-growth) / self.dispersion[:, None]))
