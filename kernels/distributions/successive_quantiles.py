"""Quantiles of normal mixtures at many levels: each from the one before, by Newton's method in normal scores.

With z = Phi^-1(F(x)) the quantile function x(z) has the derivative phi(z) / f(x), which comes with every quantile that
is known. The cubic through the last two, with their derivatives, foretells the next to some 1e-3 of a standard
deviation, and two steps of Newton's method on Phi^-1(F(x)) = z, which is nearly linear, leave rounding. A search for
each level on its own takes nine values of F.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from scipy.special import ndtr, ndtri

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.distributions.continuous import Normal
from congruence.kernels.distributions.mixture import Mixture

_STEPS = 6
_TOLERANCE = 1e-7  # of the row's standard deviation, by the last step: what is left is of the order of its square
_FARTHEST = 3.0  # steps ahead, relative to the last one, up to which a cubic foretells better than a tangent
_ROWS = 4_096  # at once: what is in hand of them stays in a core's cache


def is_normal_mixture(law: Distribution) -> bool:
    """Whether ``successive_quantiles`` serves these rows."""
    return isinstance(law, Mixture) and all(type(component) is Normal for component in law.components)


def successive_quantiles(law: Mixture, levels: Array) -> Array:
    """``law.quantile(levels[None, :])`` of a normal mixture at increasing levels (k,) inside (0, 1), (n, k).

    To some 1e-9 standard deviations, from the middle level on to both ends; rows in which Newton's method does not
    settle are searched as ever.
    """
    result = np.empty((len(law), len(levels)))
    for rows in row_slices(len(law), _ROWS):
        result[rows] = _Rows.of(law[rows]).quantiles(levels)
    return result


@dataclass(frozen=True)
class _Rows:
    """Some rows of a normal mixture.

    Attributes:
        law: of the rows.
        tolerance: of a step, (n,).
        weight, loc, scale: of each component, (K, n).
    """

    law: Mixture = field(repr=False)
    tolerance: Array
    weight: Array
    loc: Array
    scale: Array

    @classmethod
    def of(cls, law: Mixture) -> _Rows:
        normals = cast(Sequence[Normal], law.components)
        loc, scale = np.stack([part.loc for part in normals]), np.stack([part.scale for part in normals])
        return cls(law, _TOLERANCE * law.std(), np.ascontiguousarray(law.weights.T), loc, scale)

    def quantiles(self, levels: Array) -> Array:
        """(n, k), from the middle level on to both ends."""
        scores = ndtri(levels)
        middle = int(np.argmin(np.abs(scores)))
        found = np.empty((len(levels), len(self.law)))
        found[middle] = self.law.quantile(float(levels[middle]))
        slope = self._reached(found[middle], slice(None))[1]
        for order in (range(middle, len(levels)), range(middle, -1, -1)):
            self._march(levels, scores, list(order), found, slope)
        return found.T

    def _march(self, levels: Array, scores: Array, order: list[int], found: Array, slope: Array) -> None:
        """Fill the rows ``order`` of ``found`` (k, n), of which the first is known, with dx/dz there."""
        last = order[0]
        before: tuple[Array, Array, float] | None = None  # the last but one, and how far it is from the last
        for place in order[1:]:
            ahead = float(scores[place] - scores[last])
            guess = _foretold(found[last], slope, ahead, before)
            before = (found[last], slope, ahead)
            found[place], slope = self._settled(guess, float(scores[place]), float(levels[place]))
            last = place

    def _settled(self, value: Array, score: float, level: float) -> tuple[Array, Array]:
        """The quantiles by Newton's method from a guess (n,), which is overwritten, and dx/dz there."""
        slope = np.ones_like(value)
        left: Array | slice = slice(None)
        for _ in range(_STEPS):
            with np.errstate(all="ignore"):  # a guess may lie where nothing is: such rows do not settle
                reached, rate = self._reached(value[left], left)
                step = (score - reached) * rate
                value[left], slope[left] = value[left] + step, rate
                unsettled = ~(np.abs(step) <= self.tolerance[left])
            if not unsettled.any():
                return value, slope
            left = np.flatnonzero(unsettled) if isinstance(left, slice) else left[unsettled]
        value[left] = self.law[left].quantile(level)
        slope[left] = self._reached(value[left], left)[1]
        return value, slope

    def _reached(self, value: Array, rows: Array | slice) -> tuple[Array, Array]:
        """z = Phi^-1(F(x)) and dx/dz = phi(z) / f(x) at values x of some rows."""
        mass: Array = np.zeros_like(value)
        density: Array = np.zeros_like(value)
        for weight, loc, scale in zip(self.weight, self.loc, self.scale, strict=True):
            standard = (value - loc[rows]) / scale[rows]
            mass += weight[rows] * ndtr(standard)
            density += weight[rows] / scale[rows] * np.exp(-0.5 * standard * standard)
        score = np.asarray(ndtri(np.minimum(mass, 1.0)))
        return score, np.asarray(np.exp(-0.5 * score * score) / density)


def _foretold(value: Array, slope: Array, ahead: float, before: tuple[Array, Array, float] | None) -> Array:
    """The next quantile: Hermite's cubic through the last two, at t = 0 and 1, or the tangent at the last."""
    if before is None or abs(ahead) > _FARTHEST * abs(before[2]):
        return np.asarray(value + ahead * slope)
    first, first_slope, width = before
    t = 1.0 + ahead / width
    rise = t * t * (3.0 - 2.0 * t) * (value - first)
    return np.asarray(first + rise + (width * t * (t - 1.0)) * ((t - 1.0) * first_slope + t * slope))
