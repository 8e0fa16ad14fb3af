"""The uniform distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.parametric import LocationScale


@dataclass(frozen=True)
class Uniform(LocationScale):
    """Uniform on [loc, loc + scale], as in scipy; the log score is infinite outside."""

    _in_scipy = "uniform"
    _above_zero: ClassVar = {"scale": "a positive width"}

    loc: Array
    scale: Array

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

    def _standard_wave(self, x: Array) -> Array:
        """exp(i x / 2) sin(x / 2) / (x / 2)."""
        return np.asarray(np.exp(0.5j * x) * np.sinc(x / (2.0 * np.pi)))

    def breaks(self) -> Array:
        return np.column_stack([self.loc, self.loc + self.scale])

    def _standard_moments(self, order: int) -> Array:
        return 1.0 / (np.arange(order + 1) + 1.0)
