"""The gamma distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
import scipy.stats

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import align, require
from congruence.kernels.distributions.parametric import ContinuousFamily


@dataclass(frozen=True)
class Gamma(ContinuousFamily):
    """Shape ``a`` and ``scale`` (mean a scale), as in scipy; the log score is infinite below 0."""

    a: Array
    scale: Array

    def _check(self) -> None:
        require(self.a > 0, self.a, "a", "Gamma", "a positive shape")
        require(self.scale > 0, self.scale, "scale", "Gamma", "a positive scale")

    def _scipy(self, a: Array, scale: Array) -> Any:
        return scipy.stats.gamma(a, scale=scale)

    def crps(self, y: Any) -> Array:
        """See Distribution: y (2 F_a - 1) - mean (2 F_(a+1) - 1) - scale / B(1/2, a), Scheuerer and Moeller (2015)."""
        y, columns = align(y, len(self))
        a, scale = self._arguments(columns)
        z = np.maximum(y, 0.0) / scale
        lower, shifted = scipy.special.gammainc(a, z), scipy.special.gammainc(a + 1.0, z)
        spread = np.exp(-scipy.special.betaln(0.5, a))
        return np.asarray(y * (2.0 * lower - 1.0) - a * scale * (2.0 * shifted - 1.0) - scale * spread)

    def characteristic_function(self, t: Array) -> Array:
        """(1 - i t scale)^(-a)."""
        return np.asarray(np.exp(-self.a[:, None] * np.log1p(-1j * np.multiply.outer(self.scale, t))))
