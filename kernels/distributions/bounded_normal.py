"""What normal laws on an interval share: the mass between two points as seen from the densest point of the interval.

With c the point of [lower, upper] that is nearest to the mean, in standard units from it, and t offsets from that
point, the density is that at c times exp(-t (t + 2 c) / 2). Everything is computed in t: an interval 10^6 standard
deviations from the mean, or of 10^-6 of one, keeps all its digits, where differences of normal probabilities have none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.special

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import require
from congruence.kernels.distributions.parametric import Parametric

LOG_ROOT_2_PI = 0.5 * np.log(2.0 * np.pi)
_ROOT_2_PI = np.sqrt(2.0 * np.pi)
_NARROW = 0.5  # of the logarithm of the density, over the interval
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


@dataclass(frozen=True)
class BoundedNormal(Parametric):
    """Parameters, their checks, and standard units."""

    _above_zero: ClassVar = {"scale": "a positive standard deviation"}
    _may_be_infinite: ClassVar[tuple[str, ...]] = ("lower", "upper")

    loc: Array
    scale: Array
    lower: Array
    upper: Array

    def _check(self) -> None:
        family = type(self).__name__
        require(self.lower < self.upper, self.lower, "lower", family, "a bound below upper")
        require(self.lower < np.inf, self.lower, "lower", family, "a bound below infinity")
        require(self.upper > -np.inf, self.upper, "upper", family, "a bound above -infinity")

    @cached_property
    def _ends(self) -> tuple[Array, Array]:
        """The bounds in standard units, each (n,)."""
        return (self.lower - self.loc) / self.scale, (self.upper - self.loc) / self.scale

    @cached_property
    def _center(self) -> Array:
        """The point between the bounds that is nearest to loc, (n,)."""
        return np.clip(self.loc, self.lower, self.upper)

    @cached_property
    def _masses(self) -> CentralMass:
        center = self._center
        ends = ((self.lower - center) / self.scale, (self.upper - center) / self.scale)
        return CentralMass((center - self.loc) / self.scale, *ends)

    def _offset(self, y: Array) -> Array:
        """(y - center) / scale, (n, k)."""
        return np.asarray((y - self._center[:, None]) / self.scale[:, None])

    def breaks(self) -> Array:
        return np.column_stack([self.lower, self.upper])


class CentralMass:
    """Integrals of exp(-t (t + 2 c) / 2) over offsets t, for c (n,) and bounds ``low`` <= 0 <= ``high`` (n,).

    Three kinds of rows. Narrow ones, over which the density hardly changes: Gauss-Legendre. Those with the mean inside:
    normal probabilities. The others decay from a bound on: Mills' ratio R(z) = (1 - Phi(z)) / phi(z).
    """

    def __init__(self, c: Array, low: Array, high: Array) -> None:
        self.c, self.low, self.high = c, low, high
        far = np.maximum(-low, high)
        with np.errstate(over="ignore"):
            self.narrow = far * (0.5 * far + np.abs(c)) < _NARROW
        self.remote = ~self.narrow & (c != 0.0)
        self.total = self.below(high[:, None])[:, 0]

    def __getitem__(self, rows: Any) -> CentralMass:
        return CentralMass(self.c[rows], self.low[rows], self.high[rows])

    def below(self, t: Array) -> Array:
        """The integral from ``low`` to t (n, k) inside the bounds."""
        return self._by_kind(t, _narrow_below, _inner_below, _remote_below)

    def offsets(self, q: Array) -> Array:
        """The t (n, k) below which the share q (n, k) of the integral lies."""
        t = self._by_kind(q, _narrow_offsets, _inner_offsets, _remote_offsets)
        return np.clip(t, self.low[:, None], self.high[:, None])

    def _by_kind(self, values: Array, *functions: Callable[[CentralMass, Array], Array]) -> Array:
        kinds = (self.narrow, ~self.narrow & ~self.remote, self.remote)
        result = np.empty(values.shape)
        for rows, function in zip(kinds, functions, strict=True):
            if np.all(rows):
                return function(self, values)
            if np.any(rows):
                result[rows] = function(self[rows], values[rows])
        return result


def log_decay(c: Array, t: Array) -> Array:
    """log of the density at offset t relative to that at the center: -t (t + 2 c) / 2."""
    with np.errstate(over="ignore"):
        return np.asarray(-0.5 * t * (t + 2.0 * c))


def _narrow_below(mass: CentralMass, t: Array) -> Array:
    low, c = mass.low[:, None], mass.c[:, None]
    half = (t - low) / 2.0
    total = np.zeros(t.shape)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        total += weight * np.exp(log_decay(c, low + half * (1.0 + node)))
    return np.asarray(half * total)


def _narrow_offsets(mass: CentralMass, q: Array) -> Array:
    low, high, c = mass.low[:, None], mass.high[:, None], mass.c[:, None]
    wanted = q * _narrow_below(mass, high)
    t = low + q * (high - low)
    for _ in range(5):  # the density varies by a factor of 1.6: each step squares the error
        t = np.clip(t - (_narrow_below(mass, t) - wanted) / np.exp(log_decay(c, t)), low, high)
    return np.asarray(t)


def _inner_below(mass: CentralMass, t: Array) -> Array:
    return np.asarray(_ROOT_2_PI * (scipy.special.ndtr(t) - scipy.special.ndtr(mass.low[:, None])))


def _inner_offsets(mass: CentralMass, q: Array) -> Array:
    below, above = scipy.special.ndtr(mass.low)[:, None], scipy.special.ndtr(-mass.high)[:, None]
    inside = 1.0 - below - above
    lower, upper = below + q * inside, above + (1.0 - q) * inside
    # Each half line in its own tail, where the other's probabilities round to 1.
    return np.where(lower < upper, scipy.special.ndtri(lower), -scipy.special.ndtri(upper))


def _remote_below(mass: CentralMass, t: Array) -> Array:
    """From the near bound outwards; where that is the upper one, what lies between t and it is taken from the whole."""
    left = mass.c < 0.0
    sign = np.where(left, -1.0, 1.0)[:, None]
    outwards = _outwards(np.abs(mass.c)[:, None], np.maximum(sign * t, 0.0))
    whole = _outwards(np.abs(mass.c), np.where(left, -mass.low, mass.high))[:, None]
    return np.where(left[:, None], whole - outwards, outwards)


def _outwards(c: Array, t: Array) -> Array:
    """The integral from 0 to t >= 0, c > 0."""
    return np.asarray(_mills(c) - np.exp(log_decay(c, t)) * _mills(c + t))


def _mills(z: Array) -> Array:
    return np.asarray(np.sqrt(np.pi / 2.0) * scipy.special.erfcx(z / np.sqrt(2.0)))


def _remote_offsets(mass: CentralMass, q: Array) -> Array:
    """Newton's method for the logarithm of the mass beyond t, which is concave: from the right, never too far."""
    left = (mass.c < 0.0)[:, None]
    c, end = np.abs(mass.c)[:, None], np.where(left, -mass.low[:, None], mass.high[:, None])
    share = np.where(left, 1.0 - q, q)  # of the mass between the near bound and the point
    whole = 1.0 - np.exp(log_decay(c, end)) * _mills(c + end) / _mills(c)
    with np.errstate(divide="ignore"):
        wanted = -np.log1p(-share * whole)  # minus the logarithm of the share beyond, of the whole half line
    t = 2.0 * wanted / (c + np.sqrt(c * c + 2.0 * wanted))
    reachable = np.isfinite(wanted)
    t = np.where(reachable, t, 0.0)
    for _ in range(8):
        ratio = _mills(c + t)
        remaining = log_decay(c, t) + np.log(ratio / _mills(c)) + wanted
        t = np.maximum(np.where(reachable, t + remaining * ratio, t), 0.0)
    t = np.where(reachable, t, np.inf)
    return np.where(left, -t, t)


def partial_wave(mass: CentralMass, s: Array) -> Array:
    """The integral of exp(i s t - t (t + 2 c) / 2) between the bounds, for frequencies s (n, m)."""
    result = np.empty(s.shape, dtype=np.complex128)
    if np.any(mass.narrow):
        result[mass.narrow] = _narrow_wave(mass[mass.narrow], s[mass.narrow])
    wide = ~mass.narrow
    if np.any(wide):
        result[wide] = _wide_wave(mass[wide], s[wide])
    return result


def _narrow_wave(mass: CentralMass, s: Array) -> Array:
    half, c = (mass.high - mass.low)[:, None] / 2.0, mass.c[:, None]
    nodes, weights = np.polynomial.legendre.leggauss(16 + int(np.max(half * np.abs(s), initial=0.0)))
    total = np.zeros(s.shape, dtype=np.complex128)
    for node, weight in zip(nodes, weights, strict=True):
        t = mass.low[:, None] + half * (1.0 + node)
        total += weight * np.exp(log_decay(c, t) + 1j * s * t)
    return np.asarray(half * total)


def _wide_wave(mass: CentralMass, s: Array) -> Array:
    """By the Faddeeva function w in the upper half plane, where it is bounded."""

    def beyond(end: Array) -> tuple[Array, Array]:
        """The part of the upper tail at ``end`` that decays, and whether its complement was taken (end < 0)."""
        offset = np.where(np.isfinite(end), end, 0.0)
        z = offset + mass.c
        negative = (np.where(np.isfinite(end), z, end) < 0.0)[:, None]
        height, frequency = np.abs(z)[:, None], np.where(negative, -s, s)
        decay = log_decay(mass.c, offset)[:, None] + 1j * offset[:, None] * s
        wave = np.sqrt(np.pi / 2.0) * np.exp(decay) * scipy.special.wofz((frequency + 1j * height) / np.sqrt(2.0))
        wave = np.where(np.isfinite(end)[:, None], wave, 0.0)
        return np.where(negative, -wave, wave), negative

    from_low, low_is_negative = beyond(mass.low)
    from_high, high_is_negative = beyond(mass.high)
    whole = _ROOT_2_PI * np.exp(-0.5 * s * s)
    # The mean is inside, so that the center is it, and c = 0.
    return np.asarray(from_low - from_high + np.where(low_is_negative & ~high_is_negative, whole, 0.0))
