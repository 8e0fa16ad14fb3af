"""The beta distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
import scipy.stats

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import align, require
from congruence.kernels.distributions.parametric import ContinuousFamily
from congruence.kernels.distributions.quadrature import BLOCK_ENTRIES, average_wave


@dataclass(frozen=True)
class Beta(ContinuousFamily):
    """Density proportional to y^(a - 1) (1 - y)^(b - 1) on [0, 1]; the log score is infinite outside."""

    a: Array
    b: Array

    def _check(self) -> None:
        require(self.a > 0, self.a, "a", "Beta", "a positive shape")
        require(self.b > 0, self.b, "b", "Beta", "a positive shape")

    def _scipy(self, a: Array, b: Array) -> Any:
        return scipy.stats.beta(a, b)

    def crps(self, y: Any) -> Array:
        """See Distribution: y (2 F - 1) - mean (2 F_(a+1) - 1) - E|Y - Y'| / 2, Jordan et al. (2019)."""
        y, columns = align(y, len(self))
        a, b = self._arguments(columns)
        inside = np.clip(y, 0.0, 1.0)
        mean = a / (a + b)
        lower, shifted = scipy.special.betainc(a, b, inside), scipy.special.betainc(a + 1.0, b, inside)
        log_ratio = scipy.special.betaln(a + b, a + b) - scipy.special.betaln(a, a) - scipy.special.betaln(b, b)
        half_difference = 2.0 * np.exp(log_ratio) / (a + b)
        return np.asarray(y * (2.0 * lower - 1.0) - mean * (2.0 * shifted - 1.0) - half_difference)

    def characteristic_function(self, t: Array) -> Array:
        """Trapezoid rule in u with logit Y = center + width sinh(u): exponentially small ends for every shape."""
        spread = np.sqrt(scipy.special.polygamma(1, self.a + 1.0) + scipy.special.polygamma(1, self.b + 1.0))
        center = scipy.special.digamma(self.a + 1.0) - scipy.special.digamma(self.b + 1.0)
        # Beyond these logits less than 1e-16 of the mass remains: the tails fall as exp(a logit) and exp(-b logit).
        left, right = (np.arcsinh(np.maximum(12.0, 40.0 / shape / spread))[:, None] for shape in (self.a, self.b))
        nodes = int(15 * np.max(left + right) + 4 * np.max(np.abs(t), initial=0.0) * np.max(self.std()))
        result = np.empty((len(self), len(t)), dtype=np.complex128)
        block = max(1, BLOCK_ENTRIES // nodes)
        for start in range(0, len(self), block):
            rows = slice(start, start + block)
            a, b = self.a[rows, None], self.b[rows, None]
            u = -left[rows] + np.linspace(0.0, 1.0, nodes) * (left[rows] + right[rows])
            logit = center[rows, None] + spread[rows, None] * np.sinh(u)
            log_mass = -a * np.logaddexp(0.0, -logit) - b * np.logaddexp(0.0, logit)
            mass = np.exp(log_mass - log_mass.max(axis=1, keepdims=True)) * np.cosh(u)
            # The rule itself gives the normaliser, without the cancellation of log-gamma functions.
            result[rows] = average_wave(scipy.special.expit(logit), mass / mass.sum(axis=1, keepdims=True), t)
        return result
