"""The Laplace distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy
import scipy.special
import scoringrules

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import moments
from congruence.kernels.distributions.parametric import ContinuousFamily


@dataclass(frozen=True)
class Laplace(ContinuousFamily):
    """Density exp(-|y - loc| / scale) / (2 scale)."""

    _above_zero: ClassVar = {"scale": "a positive scale"}

    loc: Array
    scale: Array

    def _scipy(self, loc: Array, scale: Array) -> Any:
        return scipy.stats.laplace(loc, scale)

    def _log_prob(self, y: Array) -> Array:
        """scipy takes the logarithm of a density that vanishes 745 scales from the center."""
        loc, scale = self._columns
        return np.asarray(-np.abs(y - loc) / scale - np.log(2.0 * scale))

    def _crps(self, y: Array) -> Array:
        """Closed form of Jordan et al. (2019)."""
        return np.asarray(scoringrules.crps_laplace(y, *self._columns))

    def characteristic_function(self, t: Array) -> Array:
        """exp(i t loc) / (1 + t^2 scale^2)."""
        return np.asarray(np.exp(1j * np.multiply.outer(self.loc, t)) / (1 + np.multiply.outer(self.scale, t) ** 2))

    def breaks(self) -> Array:
        return self.loc[:, None]

    def raw_moments(self, order: int) -> Array:
        power = np.arange(order + 1)
        return moments.shifted(self.loc, self.scale, np.where(power % 2 == 0, scipy.special.factorial(power), 0.0))
