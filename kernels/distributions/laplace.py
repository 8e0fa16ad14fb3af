"""The Laplace distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy
import scipy.special
import scoringrules

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import moments
from congruence.kernels.distributions.parametric import LocationScale


@dataclass(frozen=True)
class Laplace(LocationScale):
    """Density exp(-|y - loc| / scale) / (2 scale)."""

    _in_scipy = "laplace"
    _above_zero: ClassVar = {"scale": "a positive scale"}

    loc: Array
    scale: Array

    def _log_prob(self, y: Array) -> Array:
        """scipy takes the logarithm of a density that vanishes 745 scales from the center."""
        loc, scale = self._columns
        return np.asarray(-np.abs(y - loc) / scale - np.log(2.0 * scale))

    def _crps(self, y: Array) -> Array:
        """Closed form of Jordan et al. (2019)."""
        return np.asarray(scoringrules.crps_laplace(y, *self._columns))

    def _standard_wave(self, x: Array) -> Array:
        return np.asarray(1.0 / (1.0 + x * x))

    def breaks(self) -> Array:
        return self.loc[:, None]

    def _standard_moments(self, order: int) -> Array:
        return moments.of_symmetric(scipy.special.factorial(np.arange(order + 1)))
