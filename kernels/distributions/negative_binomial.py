"""The negative binomial distribution, by its mean and dispersion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy
import scipy.special

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import require
from congruence.kernels.distributions.mass import log_negative_binomial_mass, mean_absolute_difference
from congruence.kernels.distributions.scipy_counts import ScipyCount

_SMALLEST_DISPERSION = 1e-30  # no digit of any method tells it from 0 at means below 1e13
_NEARLY_POISSON, _ROUGH = 1e-6, 1e-3  # of dispersion times mean
_MANY_TRIALS = 1e3
_LARGEST_RATE = 9e18  # of NumPy's Poisson draws


@dataclass(frozen=True, init=False)
class NegativeBinomial(ScipyCount):
    """Counts of variance mean + dispersion mean^2 (``mu`` holds the mean): a gamma mixture of Poisson laws.

    In scipy's terms n = 1 / dispersion and p = 1 / (1 + dispersion mean). As the dispersion falls to 0 the law becomes
    Poisson(mean), and is Poisson(mean) at 0; mean 0 is the law of 0.
    """

    _argument_names: ClassVar[dict[str, str]] = {"mu": "mean"}

    mu: Array
    dispersion: Array

    def __init__(self, mean: Array, dispersion: Array) -> None:
        self._hold(mu=mean, dispersion=dispersion)
        self.__post_init__()

    def _check(self) -> None:
        require(self.mu >= 0, self.mu, "mean", "NegativeBinomial", "a mean of 0 or more")
        require(self.dispersion >= 0, self.dispersion, "dispersion", "NegativeBinomial", "a dispersion of 0 or more")

    @cached_property
    def _law(self) -> tuple[Array, Array]:
        """Mean, and a dispersion above 0 that is the stated one to rounding."""
        return self.mu, np.maximum(self.dispersion, _SMALLEST_DISPERSION)

    def _scipy(self, mean: Array, dispersion: Array) -> Any:
        return scipy.stats.nbinom(1.0 / dispersion, 1.0 / (1.0 + dispersion * mean))

    def _log_mass(self, y: Array, mean: Array, dispersion: Array) -> Array:
        return log_negative_binomial_mass(y, mean, dispersion)

    def _growth(self, y: Any, mean: Array, dispersion: Array) -> Array:
        return np.asarray(mean * (1.0 + dispersion * y) / ((1.0 + dispersion * mean) * (y + 1.0)))

    def _cdf(self, y: Array) -> Array:
        a, b, x, negative = self._beta_arguments(y)
        upper = scipy.special.betainc(a, b, x)
        # The complement has the digits of the lower tail, and for many trials those that Boost's own loses.
        return np.where(
            negative, 0.0, _replaced(1.0 - upper, scipy.special.betaincc, (a, b, x), (upper > 0.9) | (b > _MANY_TRIALS))
        )

    def _survival(self, y: Array) -> Array:
        a, b, x, negative = self._beta_arguments(y)
        upper = scipy.special.betainc(a, b, x)
        many = (b > _MANY_TRIALS) & (upper > 0.1)
        return np.where(
            negative, 1.0, _replaced(upper, lambda *args: 1.0 - scipy.special.betaincc(*args), (a, b, x), many)
        )

    def _beta_arguments(self, y: Array) -> tuple[Array, Array, Array, Array]:
        """a, b and x of P(Y > y) = I_x(a, b), and where y is negative.

        x is the share of failures d m / (1 + d m): scipy's share of successes, 1 less that, has no digits at small d m.
        """
        mean, dispersion = self._columns
        odds = dispersion * mean
        counts = np.clip(np.floor(y), 0.0, np.finfo(np.float64).max)
        return counts + 1.0, 1.0 / dispersion, odds / (1.0 + odds), y < 0.0

    def _inverse(self, q: Any) -> Array:
        mean, dispersion = self._columns
        nearly_poisson = dispersion * mean < _NEARLY_POISSON
        inverse = np.where(nearly_poisson, 0.0, self._frozen.ppf(q))
        if np.any(nearly_poisson):
            inverse = np.where(nearly_poisson, scipy.stats.poisson.ppf(q, mean), inverse)
        return inverse

    def _inverse_is_rough(self) -> Array:
        mean, dispersion = self._law
        return np.asarray(dispersion * mean < _ROUGH)

    def mean(self) -> Array:
        return self.mu.copy()

    def std(self) -> Array:
        return np.asarray(np.sqrt(self.mu + self.dispersion * self.mu**2))

    def _draws(self, rng: np.random.Generator, size: int) -> Array:
        mean, dispersion = self._columns
        shape = 1.0 / dispersion
        rate = mean * (rng.standard_gamma(shape, (len(self), size)) * dispersion)
        return rng.poisson(np.minimum(rate, _LARGEST_RATE)).astype(np.float64)

    def mean_absolute_difference(self) -> Array:
        mean, dispersion = self._law
        odds = dispersion * mean
        steepness, exponent = (2.0 * odds * (1.0 + odds))[:, None], -1.0 / dispersion[:, None]
        bend = np.sqrt(np.maximum(-exponent, 1.0) * steepness)[:, 0]
        return mean_absolute_difference(
            lambda t, versine, rows: -np.expm1(exponent[rows] * np.log1p(steepness[rows] * versine)),  # noqa: ARG005
            bend,
        )

    def factorial_moment(self, order: int = 2) -> Array:
        return np.asarray(np.prod(self.mu[:, None] * (1.0 + np.arange(order) * self.dispersion[:, None]), axis=1))

    def _edge_weight(self, y: Array, mean: Array, dispersion: Array) -> Array:
        return np.asarray(mean * (1.0 + dispersion * y))

    def _log_wave(self, t: Array, mean: Array, dispersion: Array) -> Array:
        # -log(1 - d m (exp(i t) - 1)) / d, in real parts: NumPy's complex log1p has no digits near 0.
        odds = dispersion * mean
        real, imaginary = odds * (2.0 * np.sin(t / 2.0) ** 2), -odds * np.sin(t)
        log_modulus = 0.5 * np.log1p(real * (2.0 + real) + imaginary**2)
        return np.asarray((log_modulus + 1j * np.arctan2(imaginary, 1.0 + real)) / -dispersion)


def _replaced(values: Array, function: Callable[..., Array], arguments: tuple[Array, ...], where: Array) -> Array:
    """``values``, but ``function`` of the arguments at some places."""
    if np.any(where):
        values[where] = function(*(argument[where] for argument in np.broadcast_arrays(*arguments)))
    return values
