"""The logistic distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy
import scipy.special

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import moments
from congruence.kernels.distributions.parametric import LocationScale


@dataclass(frozen=True)
class Logistic(LocationScale):
    """P(Y <= y) = 1 / (1 + exp(-(y - loc) / scale)); the standard deviation is pi scale / sqrt(3)."""

    _in_scipy = "logistic"
    _above_zero: ClassVar = {"scale": "a positive scale"}

    loc: Array
    scale: Array

    def _crps(self, y: Array) -> Array:
        """scale (2 log(1 + exp(-z)) + z - 1) with z = (y - loc) / scale, even in z.

        The published form exponentiates z itself and overflows far from the center.
        """
        loc, scale = self._columns
        z = np.abs(y - loc) / scale
        return np.asarray(scale * (2.0 * np.log1p(np.exp(-z)) + z - 1.0))

    def _standard_wave(self, x: Array) -> Array:
        """pi x / sinh(pi x), as 2 x exp(-x) / (1 - exp(-2 x)): sinh itself overflows for rows of large scale."""
        x = np.pi * np.abs(x)
        safe = np.where(x == 0.0, 1.0, x)
        return np.where(x == 0.0, 1.0, 2.0 * x * np.exp(-x) / -np.expm1(-2.0 * safe))

    def _standard_moments(self, order: int) -> Array:
        power = np.arange(order + 1)
        bernoulli = scipy.special.bernoulli(max(order, 2))[: order + 1]
        return moments.of_symmetric(np.abs((2.0**power - 2.0) * np.pi**power * bernoulli))
