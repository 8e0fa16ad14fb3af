"""A law continued beyond six normal scores, where its own distribution function has no digits left.

Its quantiles, or towards an end of the support the logarithms of their distance to it, go on linearly in the normal
score, which is exact for normal and lognormal laws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr, ndtri

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.distributions.quantiles import Quantiles

FAR, NEAR = 6.0, 5.5
"""Normal scores beyond which a law continues at the slope between them."""

LOG_ROOT_2_PI = 0.5 * np.log(2.0 * np.pi)


@dataclass(frozen=True)
class Tail:
    """One side of a law beyond the normal score ``start`` = -FAR or FAR, where it has the values ``anchor`` (n, 1).

    Linear in the normal score where the support is unbounded; else the logarithm of the distance to its ``end`` is.
    """

    start: float
    anchor: Array
    end: Array
    slope: Array

    @classmethod
    def of(cls, law: Distribution, start: float) -> Tail:
        """The tail that continues ``law``."""
        levels = ndtr([start, start * NEAR / FAR, np.copysign(np.inf, start)])
        anchor, near, end = np.split(np.asarray(law.quantile(levels[None, :])), 3, axis=1)
        if isinstance(law, Quantiles):  # its support ends where it was given no more levels
            end = np.full_like(end, np.copysign(np.inf, start))
        with np.errstate(divide="ignore", invalid="ignore"):
            logarithm = np.log(np.abs(near - end) / np.abs(anchor - end))
            rise = np.where(np.isfinite(end), logarithm, np.abs(near - anchor)) / (FAR - NEAR)
        return cls(start, anchor, end, np.where(anchor == end, 0.0, rise))

    def holds(self, y: Array) -> Array:
        """Whether values y (n, k) lie beyond the anchor."""
        return y < self.anchor if self.start < 0.0 else y > self.anchor

    def score(self, y: Array) -> Array:
        """Normal scores of values beyond the anchor; infinite at and beyond the end of the support."""
        side = np.copysign(1.0, self.start)
        with np.errstate(divide="ignore", invalid="ignore"):
            left = side * (self.end - y)
            logarithmic = np.log(np.maximum(left, 0.0) / np.abs(self.end - self.anchor)) / -self.slope
            steps = np.where(np.isfinite(self.end), logarithmic, np.abs(y - self.anchor) / self.slope)
        return np.asarray(self.start + side * np.where(self.slope > 0.0, steps, np.inf))

    def value(self, z: Array) -> Array:
        """The quantile at normal scores beyond ``start``."""
        steps = np.maximum(np.copysign(1.0, self.start) * (z - self.start), 0.0)
        with np.errstate(invalid="ignore"):
            bounded = self.end + (self.anchor - self.end) * np.exp(-self.slope * steps)
            free = self.anchor + np.copysign(self.slope, self.start) * steps
            value = np.where(np.isfinite(self.end), bounded, free)
        return np.asarray(np.where(self.slope > 0.0, value, self.anchor))

    def log_slope(self, y: Array) -> Array:
        """log dz / dy beyond the anchor."""
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.where(np.isfinite(self.end), np.abs(self.end - y), 1.0)
            return np.asarray(-np.log(self.slope) - np.log(distance))


@dataclass(frozen=True)
class Continued:
    """A law of one target in normal scores, continued beyond ``FAR`` of them."""

    law: Distribution

    @cached_property
    def _tails(self) -> tuple[Tail, Tail]:
        return Tail.of(self.law, -FAR), Tail.of(self.law, FAR)

    def _with_tails(self, y: Array, inside: Array, tail: Callable[[Tail], Array]) -> Array:
        lower, upper = self._tails
        return np.where(lower.holds(y), tail(lower), np.where(upper.holds(y), tail(upper), inside))

    def score(self, y: Array) -> Array:
        """The normal score of values y (n, k)."""
        return self._with_tails(y, ndtri(self.law.cdf(y)), lambda tail: tail.score(y))

    def log_slope(self, y: Array) -> Array:
        """log of dz / dy at values y (n, k), where F has a density."""
        z = ndtri(self.law.cdf(y))
        with np.errstate(invalid="ignore"):
            inside = self.law.log_prob(y) + 0.5 * z * z + LOG_ROOT_2_PI
        return self._with_tails(y, inside, lambda tail: tail.log_slope(y))

    def value(self, z: Array) -> Array:
        """The quantile at normal scores z (n, k)."""
        lower, upper = self._tails
        inside = self.law.quantile(ndtr(np.clip(z, -FAR, FAR)))
        return np.where(z < -FAR, lower.value(z), np.where(z > FAR, upper.value(z), inside))
