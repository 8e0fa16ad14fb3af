"""The normal distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy
import scipy.special
import scoringrules

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import moments
from congruence.kernels.distributions.gaussian_expectations import gaussian_expectation, has_gaussian_expectation
from congruence.kernels.distributions.parametric import LocationScale
from congruence.kernels.kernel_functions import Kernel


@dataclass(frozen=True)
class Normal(LocationScale):
    """N(loc, scale^2)."""

    _in_scipy = "norm"
    _above_zero: ClassVar = {"scale": "a positive standard deviation"}

    loc: Array
    scale: Array

    def mean(self) -> Array:
        return self.loc.copy()

    def std(self) -> Array:
        return self.scale.copy()

    def _cdf(self, y: Array) -> Array:
        """Without what scipy.stats does around it, for the mixtures that ask a hundred times."""
        loc, scale = self._columns
        return np.asarray(scipy.special.ndtr((y - loc) / scale))

    def _quantile(self, q: Array) -> Array:
        loc, scale = self._columns
        return np.asarray(loc + scale * scipy.special.ndtri(q))

    def _crps(self, y: Array) -> Array:
        """Closed form of Gneiting et al. (2005)."""
        return np.asarray(scoringrules.crps_normal(y, *self._columns))

    def _standard_wave(self, x: Array) -> Array:
        return np.asarray(np.exp(-0.5 * x**2))

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        """See Distribution; Gaussian integrals where they have a closed form, else quadrature."""
        if not has_gaussian_expectation(kernel):
            return super().kernel_expectation(kernel, nodes)
        points = np.asarray(nodes, dtype=np.float64)[:, None]
        return gaussian_expectation(kernel, self.loc[:, None], self.scale[:, None] ** 2, points, np.zeros_like(points))

    def _standard_moments(self, order: int) -> Array:
        absolute = [scipy.special.factorial2(k - 1) if k > 1 else 1.0 for k in range(order + 1)]
        return moments.of_symmetric(np.array(absolute))
