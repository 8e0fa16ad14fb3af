"""The beta distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import scipy.special

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import align, require
from congruence.kernels.distributions.mass import log_beta_kernel, stirling_error
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

    def log_prob(self, y: Any) -> Array:
        """See Distribution; in Loader's form, for shapes at which log-gamma functions cancel."""
        y, columns = align(y, len(self))
        a, b = self._arguments(columns)
        inside = (y > 0.0) & (y < 1.0)
        safe = np.where(inside, y, 0.5)
        log_density = log_beta_kernel(safe, a, b) - np.log(safe) - np.log1p(-safe)
        return np.where(inside, log_density, self._scipy(a, b).logpdf(y))

    def crps(self, y: Any) -> Array:
        """See Distribution: (y - mean) (2 F - 1) + 2 mean y^a (1 - y)^b / (a B(a, b)) - E|Y - Y'| / 2.

        Jordan et al. (2019), with F_(a+1) = F_a - y^a (1 - y)^b / (a B(a, b)), so that nothing cancels (scoringrules'
        takes the difference, and loses digits where a + b is large).
        """
        y, columns = align(y, len(self))
        a, b = self._arguments(columns)
        total = a + b
        inside = np.clip(y, 0.0, 1.0)
        interior = (inside > 0.0) & (inside < 1.0)
        edge = np.where(interior, np.exp(log_beta_kernel(np.where(interior, inside, 0.5), a, b)), 0.0) / total
        half_difference = 2.0 * np.exp(_log_difference(a, b)) / total
        lower = scipy.special.betainc(a, b, inside)
        return np.asarray(np.maximum((y - a / total) * (2.0 * lower - 1.0) + 2.0 * edge - half_difference, 0.0))

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
            log_mass = _log_mass_of_logits(logit, a, b)
            mass = np.exp(log_mass - log_mass.max(axis=1, keepdims=True)) * np.cosh(u)
            # The rule itself gives the normaliser, without the cancellation of log-gamma functions.
            result[rows] = average_wave(scipy.special.expit(logit), mass / mass.sum(axis=1, keepdims=True), t)
        return result


def _log_difference(a: Array, b: Array) -> Array:
    """log of B(a + b, a + b) / (B(a, a) B(b, b)); by Stirling's errors, as everything large cancels."""
    total = a + b
    errors = [stirling_error(2.0 * x) - 2.0 * stirling_error(x) for x in (a, b, total)]
    return np.asarray(errors[0] + errors[1] - errors[2] + 0.5 * (np.log(a) + np.log(b / total) - np.log(4.0 * np.pi)))


def _log_mass_of_logits(logit: Array, a: Array, b: Array) -> Array:
    """a log y + b log(1 - y) at y = expit(logit), less its maximum.

    Where the logits differ little from that of the maximum, by the difference: (a + b) (m d - log(1 + m (e^d - 1))).
    """
    total = a + b
    direct = -a * np.logaddexp(0.0, -logit) - b * np.logaddexp(0.0, logit)
    peak = scipy.special.xlogy(a, a / total) + scipy.special.xlogy(b, b / total)
    away = logit - np.log(a / b)
    near = np.clip(away, -1.0, 1.0)
    by_difference = total * (a / total * near - np.log1p(a / total * np.expm1(near)))
    return np.asarray(np.where(np.abs(away) < 1.0, by_difference, direct - peak))
