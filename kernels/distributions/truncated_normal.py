"""The normal distribution given that it falls into an interval."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scoringrules

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import quadrature
from congruence.kernels.distributions.base import align, align_levels
from congruence.kernels.distributions.bounded_normal import LOG_ROOT_2_PI, BoundedNormal, log_decay, partial_wave

_REMOTE = 1e-3


@dataclass(frozen=True)
class TruncatedNormal(BoundedNormal):
    """N(loc, scale^2) given that it lies in [lower, upper]; bounds in the units of y, possibly infinite.

    The log score is infinite outside the bounds. scipy's truncnorm states bounds in standard units instead.
    """

    loc: Array
    scale: Array
    lower: Array
    upper: Array

    def log_prob(self, y: Any) -> Array:
        """See Distribution."""
        t, columns = self._offset(y)
        y, _ = align(y, len(self))
        lower, upper, scale, c, total = self._broadcast(
            columns, self.lower, self.upper, self.scale, self._masses.c, self._masses.total
        )
        inside = (y >= lower) & (y <= upper)
        return np.where(inside, log_decay(c, np.where(inside, t, 0.0)) - np.log(total) - np.log(scale), -np.inf)

    def cdf(self, y: Any) -> Array:
        """See Distribution."""
        t, columns = self._offset(y)
        t = t if columns else t[:, None]
        masses = self._masses
        low, high, total = masses.low[:, None], masses.high[:, None], masses.total[:, None]
        share = np.clip(masses.below(np.clip(t, low, high)) / total, 0.0, 1.0)
        share = np.where(t >= high, 1.0, np.where(t <= low, 0.0, share))
        return share if columns else share[:, 0]

    def quantile(self, q: Any) -> Array:
        """See Distribution."""
        q, columns = align_levels(q, len(self))
        t = self._masses.offsets(q if columns else q[:, None])
        center, scale, lower, upper = self._broadcast(True, self._center, self.scale, self.lower, self.upper)
        y = np.asarray(np.clip(center + scale * t, lower, upper))
        return y if columns else y[:, 0]

    @cached_property
    def _rule(self) -> tuple[Array, Array]:
        """Offsets t and weights (n, 96), by Gauss-Legendre where the density is within e^-40 of its maximum."""
        masses = self._masses
        c = np.abs(masses.c)
        reach = 80.0 / (c + np.sqrt(c * c + 80.0))
        start, stop = np.maximum(masses.low, -reach), np.minimum(masses.high, reach)
        nodes, weights = np.polynomial.legendre.leggauss(96)
        t = ((start + stop) / 2)[:, None] + ((stop - start) / 2)[:, None] * nodes
        weight = weights * np.exp(log_decay(masses.c[:, None], t))
        return t, weight / weight.sum(axis=1, keepdims=True)

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        """Mean and standard deviation of t."""
        t, weight = self._rule
        mean = np.einsum("ik,ik->i", weight, t)
        return mean, np.sqrt(np.einsum("ik,ik->i", weight, (t - mean[:, None]) ** 2))

    def mean(self) -> Array:
        """See Distribution."""
        return np.asarray(self._center + self.scale * self._moments[0])

    def std(self) -> Array:
        """See Distribution."""
        return np.asarray(self.scale * self._moments[1])

    def crps(self, y: Any) -> Array:
        """See Distribution; closed form of Thorarinsdottir and Gneiting (2010), by quadrature far in the tails."""
        y, columns = align(y, len(self))
        y = y if columns else y[:, None]
        scores = np.empty(y.shape)
        remote = self._log_mass < np.log(_REMOTE)
        if np.any(remote):
            scores[remote] = quadrature.crps(self[remote], y[remote])
        rows = ~remote
        if np.any(rows):
            given = self._broadcast(True, *(values[rows] for values in self.parameters().values()))
            scores[rows] = scoringrules.crps_gtcnormal(y[rows], *given)
        return scores if columns else scores[:, 0]

    @property
    def _log_mass(self) -> Array:
        """log of the probability that N(loc, scale^2) falls between the bounds."""
        masses = self._masses
        return np.asarray(np.log(masses.total) - 0.5 * masses.c**2 - LOG_ROOT_2_PI)

    def characteristic_function(self, t: Array) -> Array:
        """exp(i t center) times the partial wave over the mass between the bounds; see ``bounded_normal``."""
        waves = partial_wave(self._masses, np.multiply.outer(self.scale, t))
        return np.asarray(np.exp(1j * np.multiply.outer(self._center, t)) * waves / self._masses.total[:, None])

    def raw_moments(self, order: int) -> Array:
        """See Distribution."""
        t, weight = self._rule
        powers = (self._center[:, None] + self.scale[:, None] * t)[:, :, None] ** np.arange(order + 1)
        return np.asarray(np.einsum("ik,ikm->im", weight, powers))
