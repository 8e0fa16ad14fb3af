"""Distributions whose cdf is linear between points and jumps where points are equal, with tails beyond the outer ones.

Points and levels have shape (1, m) where all rows share them, or (n, m): what ``Histogram``, ``Quantiles`` and
``WeightedSamples`` are made of.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from scipy.special import ndtr, ndtri, wofz

from congruence.kernels.arrays import Array, as_numbers, average_wave, require_parameter, waves
from congruence.kernels.distributions.base import KNOT_LEVELS, ByRows
from congruence.kernels.errors import InvalidInputError

SUM_TOLERANCE = 1e-4
_EXACT = 1e-13
_FEW = 2048  # comparisons a row that cost less than a search
_PANELS = np.array([0.0, 1.0, 2.0, 3.5, 5.5, 9.0, 13.0])  # of a half-normal distribution
_ROOT_2 = float(np.sqrt(2.0))
_ROOT_2_PI = float(np.sqrt(2.0 * np.pi))


class PiecewiseLinear(ByRows):
    """A family gives ``_points`` and ``_levels``, and ``_tails`` where mass lies beyond the outer points."""

    @property
    @abstractmethod
    def _points(self) -> Array:
        """Values that do not fall, (1 or n, m), m >= 2."""

    @property
    @abstractmethod
    def _levels(self) -> Array:
        """F at the points, (1 or n, m): from the mass of the lower tail to 1 less that of the upper one."""

    @property
    def _tails(self) -> tuple[Tail, ...]:
        """What lies below the first point and above the last one; none where no mass does."""
        return ()

    def _segment(self, y: Array, *, or_equal: bool = True) -> tuple[Array, Array, Array, Array]:
        """Returns the place of y (n, k) among points: the number of its segment, both ends, the share that is below.

        A point belongs to the segment above it, or below it unless ``or_equal``; what lies outside to the nearest one.
        """
        last = self._points.shape[1] - 1
        passed = count_below(self._points, y, or_equal=or_equal)
        k = np.clip(passed - 1, 0, last - 1)
        left, right = pick(self._points, k), pick(self._points, k + 1)
        share = np.clip((y - left) / np.where(right > left, right - left, 1.0), 0.0, 1.0)
        return k, left, right, np.where(passed > last, 1.0, share)

    def _cdf(self, y: Array) -> Array:
        return self._below(y, or_equal=True)

    def _cdf_left(self, y: Array) -> Array:
        return self._below(y, or_equal=False)

    def _below(self, y: Array, *, or_equal: bool) -> Array:
        k, _, _, share = self._segment(y, or_equal=or_equal)
        low, high = pick(self._levels, k), pick(self._levels, k + 1)
        result = low + (high - low) * share
        for tail in self._tails:
            beyond = tail.mass * tail.share_beyond(y)
            inside = tail.holds(y, closed=or_equal == tail.is_upper)
            result = np.where(inside, 1.0 - beyond if tail.is_upper else beyond, result)
        return np.asarray(result)

    def _log_prob(self, y: Array) -> Array:
        """At a point the density of the segment above it."""
        k, left, right, _ = self._segment(y)
        with np.errstate(divide="ignore"):
            inside = np.log(pick(self._levels, k + 1) - pick(self._levels, k)) - np.log(right - left)
            result = np.where((y >= self._points[:, :1]) & (y <= self._points[:, -1:]), inside, -np.inf)
            for tail in self._tails:
                result = np.where(tail.holds(y), np.log(tail.mass) + tail.log_density(y), result)
        return np.asarray(result)

    def _quantile(self, q: Array) -> Array:
        levels = self._levels
        k = np.clip(count_below(levels, q, or_equal=False) - 1, 0, levels.shape[1] - 2)
        low, high, left = pick(levels, k), pick(levels, k + 1), pick(self._points, k)
        share = np.clip((q - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
        result = left + share * (pick(self._points, k + 1) - left)
        for tail in self._tails:
            level = 1.0 - q if tail.is_upper else q
            with np.errstate(divide="ignore", invalid="ignore"):  # a tail may have no mass, and then nothing is in it
                inside = np.minimum(level / tail.mass, 1.0)
            result = np.where(level < tail.mass, tail.quantile(inside), result)
        return np.asarray(result)

    @property
    def _masses(self) -> Array:
        """The mass of each segment, (1 or n, m - 1)."""
        return np.diff(self._levels, axis=1)

    def mean(self) -> Array:
        return self._moments[0]

    def std(self) -> Array:
        return self._moments[1]

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        """Mean and standard deviation, (n,)."""
        masses, points = self._masses, self._points
        centers, lengths = (points[:, 1:] + points[:, :-1]) / 2.0, np.diff(points, axis=1)
        parts = [(masses, centers, lengths**2 / 12.0), *((tail.mass, *tail.moments) for tail in self._tails)]
        mean = sum(np.sum(mass * place, axis=1) for mass, place, _ in parts)
        mean = np.array(np.broadcast_to(mean, len(self)))[:, None]
        variance = sum(np.sum(mass * ((place - mean) ** 2 + own), axis=1) for mass, place, own in parts)
        return mean[:, 0], np.array(np.broadcast_to(np.sqrt(variance), len(self)))

    @cached_property
    def _squared_integrals(self) -> tuple[Array, Array]:
        """The integrals of F^2 up to each point, and of (1 - F)^2 from each point on, (n, m) both."""
        lengths, levels = (
            np.diff(self._points, axis=1),
            np.broadcast_to(self._levels, (len(self), self._levels.shape[1])),
        )
        sides = [np.zeros((len(self), 1)), np.zeros((len(self), 1))]
        for tail in self._tails:
            sides[tail.is_upper] = sides[tail.is_upper] + tail.mass**2 * tail.squared_integral
        below = np.concatenate([sides[0], _mean_square(levels) * lengths], axis=1)
        above = np.concatenate([_mean_square(1.0 - levels) * lengths, sides[1]], axis=1)
        return np.cumsum(below, axis=1), np.cumsum(above[:, ::-1], axis=1)[:, ::-1]

    def _crps(self, y: Array) -> Array:
        """Exact: F^2 below y and (1 - F)^2 above it, segment by segment, so nothing cancels."""
        k, left, right, share = self._segment(y)
        rising, falling = self._squared_integrals
        low, high, inside = pick(self._levels, k), pick(self._levels, k + 1), np.clip(y, left, right)
        F = low + (high - low) * share
        G = 1.0 - F
        within = (inside - left) * (low**2 + low * F + F**2) / 3.0
        within += (right - inside) * (G**2 + G * (1.0 - high) + (1.0 - high) ** 2) / 3.0
        result = pick(rising, k) + within + pick(falling, k + 1) + np.abs(y - inside)
        for tail in self._tails:  # (1 - p S)^2 in place of 1 between y and the end of a tail of mass p
            result = result - np.where(tail.holds(y), 2.0 * tail.mass * tail.integral_to_end(y), 0.0)
        return np.asarray(result)

    def characteristic_function(self, t: Array) -> Array:
        """See Distribution: each segment is a uniform distribution, and the tails have closed forms."""
        t = np.asarray(t, dtype=np.float64)
        points, masses = self._points, self._masses
        centers, half = (points[:, 1:] + points[:, :-1]) / 2.0, np.diff(points, axis=1) / 2.0
        if len(points) == 1:
            parts = waves(centers[0], t) * np.sinc(np.multiply.outer(half[0], t) / np.pi)
            result = np.broadcast_to(masses, (len(self), masses.shape[1])) @ parts
        else:
            result = average_wave(centers, masses if len(masses) > 1 else masses[0], t, half_widths=half)
        for tail in self._tails:
            result = result + tail.mass * tail.characteristic_function(t)
        return np.asarray(result)

    def raw_moments(self, order: int) -> Array:
        """See Distribution: by Gauss-Legendre nodes, as many as are exact in each segment."""
        points, masses, (x, w) = self._points, self._masses, np.polynomial.legendre.leggauss(order // 2 + 1)
        inside = points[:, :-1, None] + np.diff(points, axis=1)[:, :, None] * (x + 1.0) / 2.0
        tails, moments = [tail.rule(order // 2 + 1) for tail in self._tails], np.empty((len(self), order + 1))
        for k in range(order + 1):
            moments[:, k] = np.sum(masses * (inside**k @ (w / 2.0)), axis=1)
            moments[:, k] += sum(np.sum(weights * places**k, axis=1) for places, weights in tails)
        return moments

    def breaks(self) -> Array:
        """See Distribution: the points."""
        return np.broadcast_to(self._points, (len(self), self._points.shape[1]))

    def knots(self) -> Array:
        """See Distribution: the points, and some of the tails."""
        shares = KNOT_LEVELS[KNOT_LEVELS < 0.5][None, :]
        found = [self._points, *(tail.quantile(shares) for tail in self._tails)]
        columns = [np.broadcast_to(part, (len(self), part.shape[1])) for part in found]
        return np.sort(np.concatenate(columns, axis=1), axis=1)


@dataclass(frozen=True)
class Tail:
    """What lies beyond an outer point: a normal distribution cut off there, or an exponential one.

    Attributes:
        kind: ``normal``: the lower tail is end - scale (z - Z) given Z < z; ``exponential``: end - scale E.
        is_upper: whether it lies above its end; it is mirrored then.
        mass: of the tail, (1 or n, 1).
        end: where it begins, (1 or n, 1).
        scale: (1 or n, 1); 0 is all mass at the end.
        z: the normal score at which the normal distribution is cut off.
    """

    kind: Literal["normal", "exponential"]
    is_upper: bool
    mass: Array
    end: Array
    scale: Array
    z: float = 0.0

    def holds(self, y: Array, *, closed: bool = False) -> Array:
        """Whether values y (n, k) lie in the tail; its end does if ``closed``."""
        if self.is_upper:
            return y >= self.end if closed else y > self.end
        return y <= self.end if closed else y < self.end

    def _offset(self, y: Array) -> Array:
        """Minus the distance of values y (n, k) from the end in scales; -inf where all mass is at the end."""
        distance = np.maximum(y - self.end if self.is_upper else self.end - y, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.scale > 0.0, -distance / self.scale, -np.inf)

    @property
    def _below_z(self) -> float:
        return float(ndtr(self.z))

    def share_beyond(self, y: Array) -> Array:
        """The share of the tail's mass that lies farther out than y."""
        offset = self._offset(y)
        return np.exp(offset) if self.kind == "exponential" else np.asarray(ndtr(self.z + offset) / self._below_z)

    def quantile(self, share: Array) -> Array:
        """The values beyond which a ``share`` (n, k) of the tail's mass lies."""
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.log(share) if self.kind == "exponential" else ndtri(share * self._below_z) - self.z
            distance = np.where(self.scale > 0.0, -self.scale * steps, 0.0)
        return np.asarray(self.end + distance if self.is_upper else self.end - distance)

    def log_density(self, y: Array) -> Array:
        """The log density of the tail, of mass 1, where its scale is above 0."""
        offset = self._offset(y)
        if self.kind == "exponential":
            return np.asarray(offset - np.log(self.scale))
        return np.asarray(-0.5 * (self.z + offset) ** 2 - np.log(_ROOT_2_PI * self._below_z) - np.log(self.scale))

    @property
    def moments(self) -> tuple[Array, Array]:
        """Mean and variance of the tail, (1 or n, 1) both."""
        mean, variance = 1.0, 1.0
        if self.kind == "normal":
            hazard = float(_density(self.z)) / self._below_z
            mean, variance = self.z + hazard, 1.0 - hazard * (self.z + hazard)
        distance = self.scale * mean
        return self.end + distance if self.is_upper else self.end - distance, self.scale**2 * variance

    def rule(self, count: int) -> tuple[Array, Array]:
        """Values (1 or n, k) and weights, (1 or n, k), of expectations in the tail, of all its mass.

        Of exponential tails Gauss-Laguerre's, exact for polynomials of a degree below 2 ``count``; of normal ones nodes
        in panels, to rounding.
        """
        if self.kind == "exponential":
            distances, shares = np.polynomial.laguerre.laggauss(count)
        else:
            nodes, weights = np.polynomial.legendre.leggauss(24)
            edges = _PANELS * (1.0 + max(self.z, 0.0) / _PANELS[-1])
            half = np.diff(edges)[:, None] / 2.0
            distances = (edges[:-1, None] + half * (1.0 + nodes)).ravel()
            shares = (half * weights).ravel() * np.exp(distances * (self.z - 0.5 * distances))
        steps = self.scale * distances
        return self.end + steps if self.is_upper else self.end - steps, self.mass * (shares / shares.sum())

    @property
    def squared_integral(self) -> Array:
        """The integral of the square of ``share_beyond`` over a normal tail, (1 or n, 1)."""
        z, c = self.z, self._below_z
        return np.asarray(self.scale * (z * c * c + 2.0 * _density(z) * c - ndtr(_ROOT_2 * z) / np.sqrt(np.pi)) / c**2)

    def integral_to_end(self, y: Array) -> Array:
        """The integral of ``share_beyond`` between y (n, k) and the end of a normal tail."""
        offset = np.maximum(self._offset(y), -1e3)
        first, last = self.z + offset, self.z
        difference = last * ndtr(last) + _density(last) - first * ndtr(first) - _density(first)
        return np.asarray(self.scale * difference / self._below_z)

    def characteristic_function(self, t: Array) -> Array:
        """E exp(i t Y) of the tail, of mass 1, (1 or n, m): of normal ones by Faddeeva's function."""
        alike = len(self.scale) and np.ptp(self.scale) == 0.0  # then a single row is asked
        turns = (self.scale[:1] if alike else self.scale) * (t if self.is_upper else -t)
        if self.kind == "exponential":
            wave = 1.0 / (1.0 - 1j * turns)
        else:
            wave = wofz((turns - 1j * self.z) / _ROOT_2) * _density(self.z) * np.sqrt(np.pi / 2.0) / self._below_z
        return np.asarray(waves(self.end[:, 0], t) * wave)


def _mean_square(F: Array) -> Array:
    """Returns the mean of the square of a function that is linear between its values F (n, m), by segment."""
    low, high = F[:, :-1], F[:, 1:]
    return np.asarray((low**2 + low * high + high**2) / 3.0)


def _density(z: Array | float) -> Array:
    return np.asarray(np.exp(-0.5 * np.asarray(z) ** 2) / _ROOT_2_PI)


def require_points(value: object, name: str) -> Array:
    """Finite float64 points, (m,) or (n, m), as they were given.

    Raises:
        InvalidInputError: another shape, not numbers, or not finite.
    """
    return _filled(as_numbers(value, name, "(m,), or (n, m) where each row has its own", 1, 2), name)


def require_masses(value: object, name: str) -> Array:
    """Masses (n, m) of at least 0, each row's sum exactly 1.

    Raises:
        InvalidInputError: another shape, negative, or a row whose sum differs from 1 by more than 1e-4.
    """
    masses = _filled(as_numbers(value, name, "(n, m)", 2), name)
    family, _, parameter = name.partition(".")
    smallest, total = masses.min(axis=1), masses.sum(axis=1)
    require_parameter(smallest >= 0, smallest, parameter, family, "at least 0")
    require_parameter(
        np.abs(total - 1) <= SUM_TOLERANCE, total, parameter, family, "numbers that sum to 1; apply a softmax"
    )
    if np.all(np.abs(total - 1) <= _EXACT):  # what was stored comes back as it was
        return masses
    return np.asarray(masses / total[:, None])


def _filled(values: Array, name: str) -> Array:
    """With a column at least; no row is what a selection of no rows leaves."""
    if values.shape[-1] == 0:
        raise InvalidInputError(f"{name}: shape {values.shape} holds no values; give at least one for each row")
    return values


def cumulative(masses: Array) -> Array:
    """The sums of the first 0, 1, ..., m masses, (n, m + 1), from exactly 0 to exactly 1."""
    sums = np.concatenate([np.zeros((len(masses), 1)), np.cumsum(masses, axis=1)], axis=1)
    return np.asarray(sums / sums[:, -1:])


def count_below(points: Array, values: Array, *, or_equal: bool) -> Array:
    """How many increasing ``points`` (1 or n, m) lie below each value (n, k), or at it, too: (n, k) of int."""
    side = "right" if or_equal else "left"
    if len(points) == 1:
        return np.searchsorted(points[0], values, side=side)  # type: ignore[call-overload,no-any-return]
    if points.shape[1] * values.shape[1] > _FEW:
        found = (np.searchsorted(row, some, side=side) for row, some in zip(points, values, strict=True))  # type: ignore[call-overload]
        return np.array(list(found), dtype=np.intp).reshape(values.shape)
    compare = np.less_equal if or_equal else np.less
    if points.shape[1] > 16 * values.shape[1]:
        counts = [np.count_nonzero(compare(points, column[:, None]), axis=1) for column in values.T]
        return np.array(counts, dtype=np.intp).reshape(values.shape[::-1]).T
    passed = np.zeros(values.shape, dtype=np.min_scalar_type(points.shape[1]))  # of wide ones sums take longest
    for column in points.T:
        passed += compare(column[:, None], values)
    return passed.astype(np.intp)


def pick(points: Array, index: Array) -> Array:
    """``points`` (1 or n, m) at ``index`` (n, k)."""
    return np.asarray(points[0][index] if len(points) == 1 else np.take_along_axis(points, index, axis=1))
