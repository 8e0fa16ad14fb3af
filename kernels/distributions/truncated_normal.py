"""The normal distribution given that it falls into an interval."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scoringrules

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import quadrature
from congruence.kernels.distributions.bounded_normal import LOG_ROOT_2_PI, BoundedNormal, log_decay, partial_wave

_REMOTE = 1e-3


@dataclass(frozen=True)
class TruncatedNormal(BoundedNormal):
    """N(loc, scale^2) given that it lies in [lower, upper]; bounds in the units of y, possibly infinite.

    The log score is infinite outside the bounds. scipy's truncnorm states bounds in standard units instead.
    """

    def _log_prob(self, y: Array) -> Array:
        _, scale, lower, upper = self._columns
        c, total = self._masses.c[:, None], self._masses.total[:, None]
        inside = (y >= lower) & (y <= upper)
        offset = np.where(inside, self._offset(y), 0.0)
        return np.where(inside, log_decay(c, offset) - np.log(total) - np.log(scale), -np.inf)

    def _cdf(self, y: Array) -> Array:
        t, masses = self._offset(y), self._masses
        low, high, total = masses.low[:, None], masses.high[:, None], masses.total[:, None]
        share = np.clip(masses.below(np.clip(t, low, high)) / total, 0.0, 1.0)
        return np.where(t >= high, 1.0, np.where(t <= low, 0.0, share))

    def _quantile(self, q: Array) -> Array:
        _, scale, lower, upper = self._columns
        return np.asarray(np.clip(self._center[:, None] + scale * self._masses.offsets(q), lower, upper))

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
        return np.asarray(self._center + self.scale * self._moments[0])

    def std(self) -> Array:
        return np.asarray(self.scale * self._moments[1])

    def _crps(self, y: Array) -> Array:
        """Closed form of Thorarinsdottir and Gneiting (2010), by quadrature far in the tails."""
        scores = np.empty(y.shape)
        remote = self._log_mass < np.log(_REMOTE)
        if np.any(remote):
            scores[remote] = quadrature.crps(self[remote], y[remote])
        rows = ~remote
        if np.any(rows):
            scores[rows] = scoringrules.crps_gtcnormal(y[rows], *self[rows]._columns)
        return scores

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
        t, weight = self._rule
        powers = (self._center[:, None] + self.scale[:, None] * t)[:, :, None] ** np.arange(order + 1)
        return np.asarray(np.einsum("ik,ikm->im", weight, powers))
