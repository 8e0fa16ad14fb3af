"""Normal distributions on an interval: what lies outside is left out (truncated), or moved to its ends (censored).

With c the point of [lower, upper] that is nearest to the mean, in standard units from it, and t offsets from that
point, the density is that at c times exp(-t (t + 2 c) / 2). Everything is computed in t: intervals far out in a tail
keep digits that differences of normal probabilities have not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import scipy.special
import scoringrules
from scipy.special import erfcx, log_ndtr, ndtr, ndtri

from congruence.kernels.arrays import Array, average_wave, require_parameter, row_slices
from congruence.kernels.distributions import quadrature
from congruence.kernels.distributions.base import Parametric
from congruence.kernels.distributions.expectations import BLOCK_ENTRIES, shifted
from congruence.kernels.distributions.mixture import Mixture
from congruence.kernels.distributions.samples import Deterministic
from congruence.kernels.kernel_functions import Kernel

_LOG_ROOT_2_PI = 0.5 * np.log(2.0 * np.pi)
_REMOTE = 1e-3  # of the mass inside, below which the closed form of the CRPS has no digits
_NARROW = 1e-5  # of the logarithm of the density over an interval, up to which two terms of a series are exact
_NODES = 96


@dataclass(frozen=True, repr=False)
class BoundedNormal(Parametric):
    """Parameters, their checks, standard units, and the CRPS."""

    _above_zero: ClassVar = {"scale": "a positive standard deviation"}
    _may_be_infinite: ClassVar[tuple[str, ...]] = ("lower", "upper")

    loc: Array
    scale: Array
    lower: Array
    upper: Array

    def _check(self) -> None:
        family = type(self).__name__
        require_parameter(self.lower < self.upper, self.lower, "lower", family, "a bound below upper")
        require_parameter(self.lower < np.inf, self.lower, "lower", family, "a bound below infinity")
        require_parameter(self.upper > -np.inf, self.upper, "upper", family, "a bound above -infinity")

    @cached_property
    def _center(self) -> Array:
        """The point between the bounds that is nearest to loc, (n,)."""
        return np.clip(self.loc, self.lower, self.upper)

    @property
    def _c(self) -> Array:
        """The center in standard units, (n,): 0 where the mean is inside."""
        return np.asarray((self._center - self.loc) / self.scale)

    def _offset(self, y: Array) -> Array:
        """(y - center) / scale, (n, k)."""
        return np.asarray((y - self._center[:, None]) / self.scale[:, None])

    @cached_property
    def _sides(self) -> tuple[Array, Array]:
        """The integrals of the density over that at the center, below and above the center, (n, 1)."""
        c = np.abs(self._c)[:, None]
        return _outwards(c, -self._offset(self.lower[:, None])), _outwards(c, self._offset(self.upper[:, None]))

    @cached_property
    def _inside(self) -> Array:
        """The mass of the normal distribution between the bounds, (n,)."""
        return np.asarray(np.add(*self._sides)[:, 0] * np.exp(-0.5 * self._c**2 - _LOG_ROOT_2_PI))

    @property
    def _at_bounds(self) -> tuple[Array, Array]:
        """The masses at the lower and at the upper bound, (n,) each."""
        return np.zeros(len(self)), np.zeros(len(self))

    def _crps(self, y: Array) -> Array:
        """Closed form of Thorarinsdottir and Gneiting (2010), by quadrature where little mass is between the bounds."""
        scores, remote = np.empty(y.shape), self._inside < _REMOTE
        if np.any(remote):
            scores[remote] = quadrature.crps(self[remote], y[remote])
        masses = (mass[~remote, None] for mass in self._at_bounds)
        scores[~remote] = scoringrules.crps_gtcnormal(y[~remote], *self[~remote]._columns, *masses)
        return scores


@dataclass(frozen=True, repr=False)
class TruncatedNormal(BoundedNormal):
    """N(loc, scale^2) given that it lies in [lower, upper]; bounds in the units of y, possibly infinite.

    The log score is infinite outside the bounds. scipy's truncnorm states bounds in standard units instead.
    """

    def _log_prob(self, y: Array) -> Array:
        _, scale, lower, upper = self._columns
        inside = (y >= lower) & (y <= upper)
        decay = _log_decay(self._c[:, None], np.where(inside, self._offset(y), 0.0))
        return np.where(inside, decay - np.log(sum(self._sides)) - np.log(scale), -np.inf)

    def _cdf(self, y: Array) -> Array:
        _, _, lower, upper = self._columns
        below, above = self._sides
        t = self._offset(np.clip(y, lower, upper))
        part = np.copysign(_outwards(np.abs(self._c)[:, None], np.abs(t)), t)
        share = np.clip((below + part) / (below + above), 0.0, 1.0)
        return np.where(y >= upper, 1.0, np.where(y <= lower, 0.0, share))

    def _quantile(self, q: Array) -> Array:
        _, scale, lower, upper = self._columns
        below, above = self._sides
        # Each side from its own end, where the other's probabilities round to 1.
        part = np.where(q * (below + above) < below, q * (below + above) - below, above - (1.0 - q) * (below + above))
        side = np.where(part < 0.0, below, above)
        t = np.copysign(_outward_offset(np.abs(self._c)[:, None], np.minimum(np.abs(part), side)), part)
        value = np.clip(self._center[:, None] + scale * t, lower, upper)
        return np.where(q <= 0.0, lower, np.where(q >= 1.0, upper, value))

    def mean(self) -> Array:
        return np.asarray(self._center + self.scale * self._offset_moments[0])

    def std(self) -> Array:
        return np.asarray(self.scale * self._offset_moments[1])

    @cached_property
    def _offset_moments(self) -> tuple[Array, Array]:
        """Mean and standard deviation of the offset, (n,)."""
        mean, std = np.empty((2, len(self)))
        for rows in row_slices(len(self), BLOCK_ENTRIES // _NODES):
            t, weight = self._rule(rows)
            mean[rows] = np.einsum("ik,ik->i", weight, t)
            std[rows] = np.sqrt(np.einsum("ik,ik->i", weight, (t - mean[rows, None]) ** 2))
        return mean, std

    def raw_moments(self, order: int) -> Array:
        standard = np.empty((len(self), order + 1))
        for rows in row_slices(len(self), BLOCK_ENTRIES // (_NODES * (order + 1))):
            t, weight = self._rule(rows)
            standard[rows] = np.einsum("ik,iko->io", weight, t[:, :, None] ** np.arange(order + 1))
        return shifted(self._center, self.scale, standard)

    def characteristic_function(self, t: Array) -> Array:
        t = np.asarray(t, dtype=np.float64)
        result = np.exp(1j * np.multiply.outer(self._center, t))
        for rows in row_slices(len(self), BLOCK_ENTRIES // _NODES):
            offset, weight = self._rule(rows, float(np.max(np.abs(t), initial=0.0)))
            result[rows] *= average_wave(self.scale[rows, None] * offset, weight, t)
        return np.asarray(result)

    def _rule(self, rows: slice, frequency: float = 0.0) -> tuple[Array, Array]:
        """Offsets t and weights (rows, k) of the density inside, where it is within e^-40 of its maximum.

        By Gauss-Legendre, with more nodes where functions to be averaged have up to ``frequency`` turns a unit of y.
        """
        c, scale = self._c[rows], self.scale[rows]
        reach = 80.0 / (np.abs(c) + np.sqrt(c * c + 80.0))
        start = np.maximum(self._offset(self.lower[:, None])[rows, 0], -reach)
        half = (np.minimum(self._offset(self.upper[:, None])[rows, 0], reach) - start) / 2.0
        nodes, weights = scipy.special.roots_legendre(_NODES + int(0.75 * frequency * np.max(half * scale)))
        t = start[:, None] + half[:, None] * (1.0 + nodes)
        weight = weights * np.exp(_log_decay(c[:, None], t))
        return t, weight / weight.sum(axis=1, keepdims=True)


@dataclass(frozen=True, repr=False)
class CensoredNormal(BoundedNormal):
    """min(max(N(loc, scale^2), lower), upper), as in Tobit models: mass at finite bounds, a density between them.

    ``log_prob`` is the log mass at a bound, the log density inside, and -inf outside.
    """

    def _log_prob(self, y: Array) -> Array:
        loc, scale, lower, upper = self._columns
        z = (y - loc) / scale
        result = -0.5 * z * z - _LOG_ROOT_2_PI - np.log(scale)
        result = np.where(y == lower, log_ndtr((lower - loc) / scale), result)
        result = np.where(y == upper, log_ndtr((loc - upper) / scale), result)
        return np.where((y < lower) | (y > upper), -np.inf, result)

    def _cdf(self, y: Array) -> Array:
        loc, scale, lower, upper = self._columns
        return np.where(y < lower, 0.0, np.where(y >= upper, 1.0, ndtr((y - loc) / scale)))

    def _cdf_left(self, y: Array) -> Array:
        loc, scale, lower, upper = self._columns
        return np.where(y <= lower, 0.0, np.where(y > upper, 1.0, ndtr((y - loc) / scale)))

    def _quantile(self, q: Array) -> Array:
        loc, scale, lower, upper = self._columns
        return np.asarray(np.clip(loc + scale * ndtri(q), lower, upper))

    @cached_property
    def _parts(self) -> Mixture:
        """The truncated distribution between the bounds, and a point at each of them."""
        ends = [Deterministic(np.where(np.isfinite(end), end, 0.0)) for end in (self.lower, self.upper)]
        weights = np.stack([self._inside, *self._at_bounds], axis=1)
        return Mixture(weights, [TruncatedNormal(*self.parameters().values()), *ends])

    @property
    def _at_bounds(self) -> tuple[Array, Array]:
        return ndtr((self.lower - self.loc) / self.scale), ndtr((self.loc - self.upper) / self.scale)

    def mean(self) -> Array:
        return self._parts.mean()

    def std(self) -> Array:
        return self._parts.std()

    def characteristic_function(self, t: Array) -> Array:
        return self._parts.characteristic_function(t)

    def raw_moments(self, order: int) -> Array:
        return self._parts.raw_moments(order)

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        return self._parts.kernel_expectation(kernel, nodes)


def _log_decay(c: Array, t: Array) -> Array:
    """log of the density at offset t relative to that at the center: -t (t + 2 c) / 2."""
    with np.errstate(over="ignore"):
        return np.asarray(-0.5 * t * (t + 2.0 * c))


def _mills(z: Array) -> Array:
    """(1 - Phi(z)) / phi(z)."""
    return np.asarray(np.sqrt(np.pi / 2.0) * erfcx(z / np.sqrt(2.0)))


def _outwards(c: Array, t: Array) -> Array:
    """The integral of exp(-s (s + 2 c) / 2) from 0 to t >= 0, c >= 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = t * (0.5 * t + c) < _NARROW
        short = np.where(narrow, t, 0.0)
        series = short * (1.0 - short * (c / 2.0 + short / 6.0))
        difference = _mills(c) - np.exp(_log_decay(c, t)) * _mills(c + t)
    return np.where(narrow, series, difference)


def _outward_offset(c: Array, mass: Array) -> Array:
    """The t >= 0 with ``_outwards(c, t)`` = ``mass``, by Newton's method for the logarithm of what lies beyond t.

    That is concave in t, so that no step from the left goes too far.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        wanted = -np.log1p(-np.minimum(mass / _mills(c), 1.0))
        reachable = np.isfinite(wanted)
        wanted = np.where(reachable, wanted, 0.0)
        t = 2.0 * wanted / (c + np.sqrt(c * c + 2.0 * wanted))
        t = np.where(np.isfinite(t), t, 0.0)
        for _ in range(8):
            ratio = _mills(c + t)
            t = np.maximum(t + (_log_decay(c, t) + np.log(ratio / _mills(c)) + wanted) * ratio, 0.0)
        narrow = mass * (0.5 * mass + c) < _NARROW
        series = mass * (1.0 + mass * (c / 2.0 + mass * (1.0 / 6.0 + c * c / 3.0)))
    return np.where(narrow, series, np.where(reachable, t, np.inf))
