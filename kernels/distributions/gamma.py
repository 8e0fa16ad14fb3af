"""The gamma distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy
import scipy.special

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.incomplete_gamma import LARGE_SHAPE, gamma_cdf, gamma_survival
from congruence.kernels.distributions.mass import deviance, log_gamma_step, stirling_error
from congruence.kernels.distributions.parametric import ScipyFamily


@dataclass(frozen=True)
class Gamma(ScipyFamily):
    """Shape ``a`` and ``scale`` (mean a scale), as in scipy; the log score is infinite below 0."""

    _in_scipy = "gamma"
    _above_zero: ClassVar = {"a": "a positive shape", "scale": "a positive scale"}

    a: Array
    scale: Array

    def _log_prob(self, y: Array) -> Array:
        """In Loader's form, for shapes at which log-gamma functions cancel."""
        a, scale = self._columns
        z = y / scale
        inside = z > 0.0
        safe = np.where(inside, z, 1.0)
        log_density = np.log(a) - np.log(safe) + _log_saturated_mass(a, safe)
        return np.asarray(np.where(inside, log_density, scipy.stats.gamma(a).logpdf(z)) - np.log(scale))

    def _cdf(self, y: Array) -> Array:
        a, scale = self._columns
        return gamma_cdf(a, np.maximum(y, 0.0) / scale)

    def _quantile(self, q: Array) -> Array:
        """scipy's, at large shapes corrected by Newton's method for the log of the nearer tail."""
        values = super()._quantile(q)
        a, scale = self._columns
        large = (a > LARGE_SHAPE) & (q > 0.0) & (q < 1.0)
        if np.any(large):
            shape, unit, level = (np.broadcast_to(item, values.shape)[large] for item in (a, scale, q))
            values[large] = unit * _newton(shape, level)
        return values

    def _crps(self, y: Array) -> Array:
        """(y - mean) (2 F - 1) + 2 scale z^a e^-z / Gamma(a) - scale / B(1/2, a), z = y / scale.

        Scheuerer and Moeller (2015), with F_(a+1) = F_a - z^a e^-z / Gamma(a + 1), so that nothing cancels
        (scoringrules' takes the difference, and has 9 digits at a = 10^6).
        """
        a, scale = self._columns
        z = np.maximum(y, 0.0) / scale
        positive = np.where(z > 0.0, z, 1.0)
        edge = np.where(z > 0.0, a * np.exp(_log_saturated_mass(a, positive)), 0.0)
        spread = np.exp(log_gamma_step(a) - 0.5 * np.log(np.pi))
        inner = (y / scale - a) * (2.0 * gamma_cdf(a, z) - 1.0) + 2.0 * edge - spread
        return np.asarray(scale * np.maximum(inner, 0.0))

    def characteristic_function(self, t: Array) -> Array:
        """(1 - i t scale)^(-a)."""
        x = np.multiply.outer(self.scale, np.asarray(t))
        return np.asarray(np.exp(-self.a[:, None] * (0.5 * np.log1p(x * x) - 1j * np.arctan(x))))

    def breaks(self) -> Array:
        return np.zeros((len(self), 1))

    def raw_moments(self, order: int) -> Array:
        steps = np.cumprod(self.a[:, None] + np.arange(order), axis=1)
        scaled = self.scale[:, None] ** np.arange(order + 1)
        return np.asarray(np.concatenate([np.ones((len(self), 1)), steps], axis=1) * scaled)


def _newton(a: Array, q: Array) -> Array:
    """The z with P(a, z) = q in (0, 1), for large a, from that of a normal law on."""
    z = a * (1.0 + (scipy.special.ndtri(q) / 3.0) / np.sqrt(a) - 1.0 / (9.0 * a)) ** 3  # Wilson and Hilferty (1931)
    lower = q < 0.5
    for _ in range(4):
        tail = np.where(lower, gamma_cdf(a, z), gamma_survival(a, z))
        density = a / z * np.exp(_log_saturated_mass(a, z))
        step = np.log(tail / np.where(lower, q, 1.0 - q)) * tail / density
        z = z - np.where(lower, step, -step)
    return np.asarray(z)


def _log_saturated_mass(a: Array, z: Array) -> Array:
    """log of z^a e^-z / Gamma(a + 1) for a, z > 0."""
    return np.asarray(-0.5 * np.log(2.0 * np.pi * a) - stirling_error(a) - deviance(a, z))
