"""Quantiles of a distribution from its cumulative distribution function, elementwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from congruence.kernels.arrays import Array

# The cdf of the elements with these numbers: a function of one value for each.
CdfOf: TypeAlias = Callable[[Array], Callable[[Array], Array]]

_TINY = np.finfo(float).tiny


def smallest_reaching(cdf_of: CdfOf, q: Array, lower: Array, upper: Array, *, whole: bool) -> Array:
    """Smallest s in [lower, upper] with cdf(s) >= q for vectors of elements; among whole numbers only if ``whole``.

    A cdf must rise along s and reach q at ``upper``, rounding apart. Where an end is infinite, upper.
    """
    finite = np.flatnonzero(np.isfinite(lower) & np.isfinite(upper))
    search = _bisected if whole else _bracketed
    found = np.array(upper)
    if len(finite):
        found[finite] = search(lambda chosen: cdf_of(finite[chosen]), q[finite], lower[finite], upper[finite])
    return found


def _bisected(cdf_of: CdfOf, q: Array, low: Array, high: Array) -> Array:
    cdf = cdf_of(np.arange(len(q)))
    while np.any(low < high):
        middle = np.floor((low + high) / 2)
        reached = cdf(middle) >= q
        high, low = np.where(reached, middle, high), np.where(reached, low, np.minimum(middle + 1, high))
    return high


def _bracketed(cdf_of: CdfOf, q: Array, low: Array, high: Array) -> Array:
    """The upper end of scipy's bracket, which finds atoms, and the left end of a stretch on which the cdf is q."""
    from scipy.optimize.elementwise import find_root  # not at the start: every family would load it

    held: list[Any] = [np.empty(0), None]  # the elements that are left, and their cdf: a selection of rows is dear

    def surplus(share: Array, /, *given: Any) -> Array:
        level, scale, element = given
        if not np.array_equal(held[0], element):
            held[:] = element, cdf_of(element.astype(np.intp))
        return np.asarray(held[1](share * scale) - level)

    scale = np.maximum(np.maximum(np.abs(low), np.abs(high)), _TINY)
    found = find_root(
        surplus,
        (low / scale, high / scale),
        args=(np.nextafter(q, 0.0), scale, np.arange(float(len(q)))),
        tolerances={"xatol": 1e-15, "xrtol": 0.0, "fatol": 0.0, "frtol": 0.0},
    )
    (left, right), reached = found.bracket, found.f_bracket[0] >= 0.0
    # Without a change of sign: an atom of every component at ``low``, or ``high`` is a rounding away from q.
    outside = np.where(reached, low, high)
    return np.asarray(np.where(found.status == -1, outside, scale * np.where(reached, left, right)))
