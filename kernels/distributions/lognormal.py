"""The log-normal distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
import scipy.stats

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import align, require
from congruence.kernels.distributions.parametric import ContinuousFamily
from congruence.kernels.distributions.quadrature import average_wave

_REACH = 9.0


@dataclass(frozen=True)
class LogNormal(ContinuousFamily):
    """log Y ~ N(log scale, s^2), in scipy's parameters: ``scale`` is the median exp(mu), ``s`` the log's deviation."""

    s: Array
    scale: Array

    def _check(self) -> None:
        require(self.s > 0, self.s, "s", "LogNormal", "a positive standard deviation of the logarithm")
        require(self.scale > 0, self.scale, "scale", "LogNormal", "a positive median")

    def _scipy(self, s: Array, scale: Array) -> Any:
        return scipy.stats.lognorm(s, scale=scale)

    def crps(self, y: Any) -> Array:
        """See Distribution; closed form of Baran and Lerch (2015)."""
        y, columns = align(y, len(self))
        s, scale = self._arguments(columns)
        mean = scale * np.exp(0.5 * s**2)
        with np.errstate(divide="ignore"):
            z = np.log(np.maximum(y, 0.0) / scale) / s
        lower, shifted = scipy.special.ndtr(z), scipy.special.ndtr(z - s)
        return np.asarray(y * (2.0 * lower - 1.0) - 2.0 * mean * (shifted + scipy.special.ndtr(s / np.sqrt(2.0)) - 1.0))

    def characteristic_function(self, t: Array) -> Array:
        r"""Trapezoid rule for E exp(i t scale e^{sZ}) with Z moved to the line Im Z = theta / s.

        There exp(i t y) decays instead of oscillating; theta = min(2 s, pi / 2) keeps the factor that the shift brings
        to the normal density below e^2. Negative frequencies follow by conjugation.
        """
        theta = np.minimum(2.0 * self.s, np.pi / 2.0)[:, None]
        u = np.linspace(-_REACH, _REACH, int(96 * max(1.0, float(np.max(self.s)) / 1.5)))
        z = u + 1j * theta / self.s[:, None]
        weights = np.exp(-0.5 * z**2) * ((u[1] - u[0]) / np.sqrt(2.0 * np.pi))
        values = self.scale[:, None] * np.exp(self.s[:, None] * z)
        wave = average_wave(values, weights, np.abs(t))
        return np.where(np.asarray(t) < 0, np.conj(wave), wave)
