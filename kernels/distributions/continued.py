"""Distributions of one target in normal scores, continued where F has no digits left.

A distribution that is too narrow by a factor of 3 has its own 1e-16 quantile where the recalibrated one has 3 in 1,000.
So beyond six normal scores F continues as it goes there: its quantiles, or towards an end of the support the logarithms
of their distance to it, are linear in the normal score. That is exact for normal and lognormal distributions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import ndtr, ndtri

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.distributions.quantiles import Quantiles

_TAIL_SCORES = np.array([2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 6.5])
FAR, NEAR = 6.0, 5.5  # normal scores, beyond which a distribution continues at the slope between them
LOG_ROOT_2_PI = 0.5 * np.log(2.0 * np.pi)


@dataclass(frozen=True)
class Tail:
    """One side of distributions beyond the normal score ``start`` = -FAR or FAR, where they have the values ``anchor``.

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
        if law.quantile_levels is not None:  # its support ends where it was given no more levels
            end = np.full_like(end, np.copysign(np.inf, start))
        tail = cls(start, anchor, end, np.zeros_like(anchor))
        return replace(tail, slope=np.where(anchor == end, 0.0, -tail._depth(near) / (FAR - NEAR)))

    def _depth(self, y: Array) -> Array:
        """How far values y lie beyond the anchor, negative before it, in what is linear in the normal score."""
        side = np.copysign(1.0, self.start)
        with np.errstate(divide="ignore", invalid="ignore"):
            logarithm = -np.log(np.maximum(side * (self.end - y), 0.0) / np.abs(self.end - self.anchor))
            return np.asarray(np.where(np.isfinite(self.end), logarithm, side * (y - self.anchor)))

    def holds(self, y: Array) -> Array:
        """Whether values y (n, k) lie beyond the anchor."""
        return y < self.anchor if self.start < 0.0 else y > self.anchor

    def score(self, y: Array) -> Array:
        """Normal scores of values beyond the anchor; infinite at and beyond the end of the support."""
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.where(self.slope > 0.0, self._depth(y) / self.slope, np.inf)
        return np.asarray(self.start + np.copysign(steps, self.start))

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
    """A distribution of one target in normal scores, continued beyond ``FAR`` of them."""

    law: Distribution

    @cached_property
    def _tails(self) -> tuple[Tail, Tail]:
        return Tail.of(self.law, -FAR), Tail.of(self.law, FAR)

    def _in_parts(self, y: Array, inside: Array, tail: Callable[[Tail], Array]) -> Array:
        lower, upper = self._tails
        return np.where(lower.holds(y), tail(lower), np.where(upper.holds(y), tail(upper), inside))

    def score(self, y: Array) -> Array:
        """The normal score of values y (n, k)."""
        return self._in_parts(y, ndtri(self.law.cdf(y)), lambda tail: tail.score(y))

    def log_slope(self, y: Array) -> Array:
        """log of dz / dy at values y (n, k), where F has a density."""
        z = ndtri(self.law.cdf(y))
        with np.errstate(invalid="ignore"):
            inside = self.law.log_prob(y) + 0.5 * z * z + LOG_ROOT_2_PI
        return self._in_parts(y, inside, lambda tail: tail.log_slope(y))

    def value(self, z: Array) -> Array:
        """The quantile at normal scores z (n, k)."""
        lower, upper = self._tails
        inside = self.law.quantile(ndtr(np.clip(z, -FAR, FAR)))
        return np.where(z < -FAR, lower.value(z), np.where(z > FAR, upper.value(z), inside))


def with_tails(base: Distribution) -> Distribution:
    """``base``, or for quantiles without tails the same with normal ones of their spread beyond the outermost."""
    if not isinstance(base, Quantiles) or base.tails != "none":
        return base
    levels, values, scores = base.levels, base.values, ndtri(base.levels)
    centred = scores - scores.mean()
    spread = np.maximum(values @ centred / (centred @ centred), 0.0)[:, None]
    below, above = -_TAIL_SCORES[_TAIL_SCORES + scores[0] > 0.1][::-1], _TAIL_SCORES[_TAIL_SCORES - scores[-1] > 0.1]
    left, right = values[:, :1] + spread * (below - scores[0]), values[:, -1:] + spread * (above - scores[-1])
    levels, values = np.concatenate([ndtr(below), levels, ndtr(above)]), np.concatenate([left, values, right], axis=1)
    return Quantiles(levels, values, "none")
