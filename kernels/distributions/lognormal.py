"""The log-normal distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy
import scipy.special

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.parametric import ScipyFamily
from congruence.kernels.distributions.quadrature import BLOCK_ENTRIES
from congruence.kernels.distributions.waves import average_wave

_REACH = 9.0


@dataclass(frozen=True)
class LogNormal(ScipyFamily):
    """log Y ~ N(log scale, s^2), in scipy's parameters: ``scale`` is the median exp(mu), ``s`` the log's deviation.

    The mean, scale exp(s^2 / 2), is beyond float64 and infinite from s = 38 on, the standard deviation from 27 on.
    """

    _in_scipy = "lognorm"
    _above_zero: ClassVar = {"s": "a positive standard deviation of the logarithm", "scale": "a positive median"}

    s: Array
    scale: Array

    def std(self) -> Array:
        """See Distribution; scipy's takes the difference exp(s^2) - 1, which is 0 for s below 10^-8."""
        square = self.s**2
        with np.errstate(over="ignore"):
            return np.asarray(self.scale * np.exp(square / 2.0) * np.sqrt(np.expm1(square)))

    def _crps(self, y: Array) -> Array:
        """Closed form of Baran and Lerch (2015), by tails in place of scoringrules' differences: 5 digits at s = 10."""
        s, scale = self._columns
        log_mean = np.log(scale) + 0.5 * s**2
        with np.errstate(divide="ignore"):
            z = (np.log(np.maximum(y, 0.0)) - np.log(scale)) / s
        # The mean overflows long before the score does.
        half_difference = np.exp(log_mean + scipy.special.log_ndtr(-s / np.sqrt(2.0)))
        within = np.exp(log_mean + scipy.special.log_ndtr(z - s))
        lower, upper = scipy.special.ndtr(z), scipy.special.ndtr(-z)
        return np.asarray(y * (lower - upper) + 2.0 * half_difference - 2.0 * within)

    def characteristic_function(self, t: Array) -> Array:
        r"""Trapezoid rule for E exp(i t scale e^{sZ}) with Z moved to the line Im Z = theta / s.

        There exp(i t y) decays instead of oscillating; theta = min(2 s, pi / 2) keeps the factor that the shift brings
        to the normal density below e^2. Negative frequencies follow by conjugation.
        """
        result = np.empty((len(self), len(t)), dtype=np.complex128)
        order = np.argsort(self.s)
        start = 0
        while start < len(order):  # rows of similar s share their nodes
            nodes = _nodes(float(self.s[order[start]]))
            stop = start + max(1, min(BLOCK_ENTRIES // nodes, len(order) - start))
            stop = min(stop, int(np.searchsorted(self.s[order], max(1.5, 2.0 * self.s[order[start]]), side="right")))
            rows = order[start : max(stop, start + 1)]
            result[rows] = self._waves(rows, _nodes(float(self.s[rows[-1]])), np.abs(t))
            start += len(rows)
        return np.where(np.asarray(t) < 0, np.conj(result), result)

    def _waves(self, rows: Array, nodes: int, t: Array) -> Array:
        s, scale = self.s[rows, None], self.scale[rows, None]
        theta = np.minimum(2.0 * s, np.pi / 2.0)
        u = np.linspace(-_REACH, _REACH, nodes)
        z = u + 1j * theta / s
        weights = np.exp(-0.5 * z**2) * ((u[1] - u[0]) / np.sqrt(2.0 * np.pi))
        log_values = np.log(scale) + s * z
        # Beyond e^690 every wave has died out.
        values = np.exp(np.minimum(log_values.real, 690.0) + 1j * log_values.imag)
        return average_wave(values, weights, t)

    def breaks(self) -> Array:
        return np.zeros((len(self), 1))

    def raw_moments(self, order: int) -> Array:
        power = np.arange(order + 1)
        with np.errstate(over="ignore"):
            return np.asarray(
                np.exp(np.multiply.outer(np.log(self.scale), power) + 0.5 * (self.s[:, None] * power) ** 2)
            )


def _nodes(s: float) -> int:
    return int(96 * max(1.0, s / 1.5))
