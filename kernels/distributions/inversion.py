"""Quantiles of a distribution from its cumulative distribution function, elementwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from congruence.kernels.arrays import Array

# The cdf of the elements with these numbers: a function of one value for each.
CdfOf: TypeAlias = Callable[[Array], Callable[[Array], Array]]

_TOLERANCE = 1e-15  # half of the last bracket, of the larger end of the first one
_CLOSE = 1e-9  # a bracket, alike, that is narrow enough once the cdf of its end is q up to rounding
_ROUNDING = 4 * np.finfo(float).eps  # of q: a sum of positive terms keeps its digits in the lower tail
_TINY = np.finfo(float).tiny
_SLACK = 6  # steps more than bisection that interpolation may take


def smallest_reaching(cdf_of: CdfOf, q: Array, lower: Array, upper: Array, *, whole: bool) -> Array:
    """Smallest s in [lower, upper] with cdf(s) >= q for vectors of elements; among whole numbers only if ``whole``.

    A cdf must rise along s and reach q at ``upper``, rounding apart. Where an end is infinite, upper.
    """
    finite = np.flatnonzero(np.isfinite(lower) & np.isfinite(upper))
    search = _bisected if whole else _interpolated
    found = np.array(upper)
    found[finite] = search(lambda chosen: cdf_of(finite[chosen]), q[finite], lower[finite], upper[finite])
    return found


def _bisected(cdf_of: CdfOf, q: Array, low: Array, high: Array) -> Array:
    cdf = cdf_of(np.arange(len(q)))
    while np.any(low < high):
        middle = np.floor((low + high) / 2)
        reached = cdf(middle) >= q
        high, low = np.where(reached, middle, high), np.where(reached, low, np.minimum(middle + 1, high))
    return high


def _interpolated(cdf_of: CdfOf, q: Array, low: Array, high: Array) -> Array:
    """Interpolate, truncate, project: hardly more steps than bisection, about nine where the cdf is smooth.

    Oliveira and Takahashi (2020), "An enhancement of the bisection method average performance preserving minmax
    optimality", with kappa_1 = 0.2 / (b - a), kappa_2 = 2 and n_0 = 6. The ends stay ends of a bracket, so that atoms
    are found, and the left end of a stretch on which the cdf is q.
    """
    left = np.arange(len(q))
    cdf = cdf_of(left)
    scale = np.maximum(np.maximum(np.abs(low), np.abs(high)), _TINY)
    tolerance, close = _TOLERANCE * scale, _CLOSE * scale
    missing, surplus = cdf(low) - q, cdf(high) - q
    high = np.where(missing >= 0, low, high)  # an atom of every component: nothing to look for
    low = np.where(surplus < 0, high, low)  # a rounding away from q
    missing, surplus = np.minimum(missing, 0.0), np.maximum(surplus, _TINY)
    truncation = 0.2 / np.maximum(high - low, _TINY)
    reach = tolerance * 2.0 ** (np.ceil(np.log2(np.maximum((high - low) / (2 * tolerance), 1.0))) + _SLACK)
    flat = np.zeros(len(q), dtype=bool)
    found = high.copy()
    while True:
        width = high - low
        # Within rounding of q more digits are noise: the end is right if the cdf is less than q just before it.
        arrived = (surplus <= _ROUNDING * q) & ~flat
        active = (width > 2 * tolerance) & ~(arrived & (width <= close))
        if np.count_nonzero(active) < 0.7 * len(active):
            found[left] = high
            left, cdf = left[active], cdf_of(left[active])
            q, low, high, missing, surplus = (a[active] for a in (q, low, high, missing, surplus))
            tolerance, close, truncation, reach = (a[active] for a in (tolerance, close, truncation, reach))
            width, flat, arrived, active = (a[active] for a in (width, flat, arrived, active))
        if len(left) == 0:
            return found
        middle = low + width / 2
        away = middle - (low + width * (missing / (missing - surplus)))
        point = middle - away + np.sign(away) * np.minimum(truncation * width**2, np.abs(away))
        room = np.maximum(reach - width / 2, 0.0)
        point = np.clip(point, middle - room, middle + room)
        point = np.where(arrived, high - 0.9 * close, np.where((point > low) & (point < high), point, middle))
        value = cdf(point) - q
        up, down = active & (value >= 0), active & (value < 0)
        flat |= arrived & up
        high, surplus = np.where(up, point, high), np.where(up, np.maximum(value, _TINY), surplus)
        low, missing = np.where(down, point, low), np.where(down, value, missing)
        reach = np.where(arrived, reach, reach / 2)
