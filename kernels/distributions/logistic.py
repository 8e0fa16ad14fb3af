"""The logistic distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy
import scipy.special

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import moments
from congruence.kernels.distributions.parametric import ContinuousFamily


@dataclass(frozen=True)
class Logistic(ContinuousFamily):
    """P(Y <= y) = 1 / (1 + exp(-(y - loc) / scale)); the standard deviation is pi scale / sqrt(3)."""

    _above_zero: ClassVar = {"scale": "a positive scale"}

    loc: Array
    scale: Array

    def _scipy(self, loc: Array, scale: Array) -> Any:
        return scipy.stats.logistic(loc, scale)

    def _crps(self, y: Array) -> Array:
        """scale (2 log(1 + exp(-z)) + z - 1) with z = (y - loc) / scale, even in z.

        The published form exponentiates z itself and overflows far from the center.
        """
        loc, scale = self._columns
        z = np.abs(y - loc) / scale
        return np.asarray(scale * (2.0 * np.log1p(np.exp(-z)) + z - 1.0))

    def characteristic_function(self, t: Array) -> Array:
        """exp(i t loc) x / sinh(x) with x = pi scale t."""
        x = np.pi * np.abs(np.multiply.outer(self.scale, t))
        # 2 x exp(-x) / (1 - exp(-2 x)): sinh itself overflows for rows of large scale.
        safe = np.where(x == 0.0, 1.0, x)
        modulus = np.where(x == 0.0, 1.0, 2.0 * x * np.exp(-x) / -np.expm1(-2.0 * safe))
        return np.asarray(np.exp(1j * np.multiply.outer(self.loc, t)) * modulus)

    def raw_moments(self, order: int) -> Array:
        power = np.arange(order + 1)
        standard = np.abs((2.0**power - 2.0) * np.pi**power * scipy.special.bernoulli(max(order, 2))[: order + 1])
        return moments.shifted(self.loc, self.scale, np.where(power % 2 == 0, standard, 0.0))
