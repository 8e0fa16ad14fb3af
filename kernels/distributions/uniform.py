"""The uniform distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import moments
from congruence.kernels.distributions.parametric import ContinuousFamily


@dataclass(frozen=True)
class Uniform(ContinuousFamily):
    """Uniform on [loc, loc + scale], as in scipy; the log score is infinite outside."""

    _above_zero: ClassVar = {"scale": "a positive width"}

    loc: Array
    scale: Array

    def _scipy(self, loc: Array, scale: Array) -> Any:
        return scipy.stats.uniform(loc, scale)

    def _log_prob(self, y: Array) -> Array:
        """The upper end is loc + scale as it is rounded, which is where quantiles end."""
        loc, scale = self._columns
        return np.where((y >= loc) & (y <= loc + scale), -np.log(scale), -np.inf)

    def _crps(self, y: Array) -> Array:
        """scale ((z^3 + (1 - z)^3) / 3 + the distance of z from [0, 1]), z = (y - loc) / scale."""
        loc, scale = self._columns
        z = (y - loc) / scale
        inside = np.clip(z, 0.0, 1.0)
        return np.asarray(scale * ((inside**3 + (1.0 - inside) ** 3) / 3.0 + np.abs(z - inside)))

    def characteristic_function(self, t: Array) -> Array:
        """exp(i t center) sin(x) / x with x = t scale / 2."""
        center = np.multiply.outer(self.loc + self.scale / 2.0, t)
        return np.asarray(np.exp(1j * center) * np.sinc(np.multiply.outer(self.scale, t) / (2.0 * np.pi)))

    def breaks(self) -> Array:
        return np.column_stack([self.loc, self.loc + self.scale])

    def raw_moments(self, order: int) -> Array:
        return moments.shifted(self.loc, self.scale, 1.0 / (np.arange(order + 1) + 1.0))
