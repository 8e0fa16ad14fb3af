"""Masses at (or between) increasing points, which all rows share or each row has for itself.

Points have shape (1, m) or (n, m), masses (n, m): what ``Histogram`` and ``WeightedSamples`` are made of.
"""

from __future__ import annotations

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import as_numbers, require
from congruence.kernels.errors import InvalidInputError

SUM_TOLERANCE = 1e-4
_EXACT = 1e-13


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
    require(smallest >= 0, smallest, parameter, family, "at least 0")
    require(np.abs(total - 1) <= SUM_TOLERANCE, total, parameter, family, "numbers that sum to 1; apply a softmax")
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
    found = (np.searchsorted(row, some, side=side) for row, some in zip(points, values, strict=True))  # type: ignore[call-overload]
    return np.array(list(found), dtype=np.intp).reshape(values.shape)


def pick(points: Array, index: Array) -> Array:
    """``points`` (1 or n, m) at ``index`` (n, k)."""
    return np.asarray(points[0][index] if len(points) == 1 else np.take_along_axis(points, index, axis=1))


def join_points(parts: list[Array], rows: list[int]) -> Array:
    """The points of all parts: as they are where they are shared and the same, else one row each.

    Raises:
        InvalidInputError: parts with different numbers of points.
    """
    first = parts[0]
    if first.ndim == 1 and all(np.array_equal(part, first) for part in parts):
        return first
    if len({part.shape[-1] for part in parts}) > 1:
        raise InvalidInputError(f"the parts have {[part.shape[-1] for part in parts]} points; all need the same number")
    return np.concatenate(
        [np.broadcast_to(part, (count, part.shape[-1])) for part, count in zip(parts, rows, strict=True)]
    )
