"""Checks of what distributions are made of and asked for: parameters, values and levels."""

from __future__ import annotations

from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, require_finite, to_numpy
from congruence.kernels.errors import InvalidInputError


def as_rows(value: Any, name: str, family: str, *, infinite: bool = False) -> Array:
    """A parameter as finite (or, where allowed, infinite) float64 of shape (n,) in host memory; a scalar is one row."""
    rows = to_numpy(value, f"{family}.{name}")
    if rows.dtype.kind not in "biuf":
        raise InvalidInputError(f"{family}.{name}: holds {rows.dtype} values, expected numbers")
    rows = np.atleast_1d(rows).astype(np.float64)
    if rows.ndim == 2 and rows.shape[1] == 1:
        rows = rows[:, 0]
    if rows.ndim != 1:
        raise InvalidInputError(f"{family}.{name}: expected shape (n,), got {rows.shape}")
    require_finite(np.where(np.isinf(rows), 0.0, rows) if infinite else rows, f"{family}.{name}")
    return rows


def as_numbers(value: Any, name: str, shape: str, *dimensions: int) -> Array:
    """An array as finite float64 in host memory, if it has so many ``dimensions``; ``shape`` in words.

    Raises:
        InvalidInputError: another shape, not numbers, or not finite.
    """
    numbers = to_numpy(value, name)
    if numbers.dtype.kind not in "biuf" or numbers.ndim not in dimensions:
        raise InvalidInputError(
            f"{name}: expected numbers of shape {shape}, got {numbers.dtype} of shape {numbers.shape}"
        )
    require_finite(numbers, name)
    return numbers.astype(np.float64)


def require(valid: Array, values: Array, name: str, family: str, expected: str) -> None:
    """Raise InvalidInputError naming the first row whose parameter is not ``expected``."""
    if bool(np.all(valid)):
        return
    row = int(np.argmin(valid))
    raise InvalidInputError(
        f"{family}.{name}: row {row} is {values[row]:g}, expected {expected} "
        f"({int(np.sum(~valid))} of {len(values)} rows are not); check the model's output column"
    )


def equal_rows(family: str, **parameters: Array) -> tuple[Array, ...]:
    """The parameters broadcast to one length.

    Raises:
        InvalidInputError: lengths differ and are not 1.
    """
    lengths = {name: len(values) for name, values in parameters.items()}
    n = max(lengths.values())
    if any(length not in (1, n) for length in lengths.values()):
        described = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise InvalidInputError(f"{family}: parameters of different lengths ({described} rows)")
    return tuple(np.broadcast_to(values, (n, *values.shape[1:])) for values in parameters.values())


def align(value: Any, n: int, name: str = "y") -> tuple[Array, bool]:
    """``value`` as float64 that broadcasts against n rows, and whether it has a column axis.

    Raises:
        InvalidInputError: a vector of another length (levels for every row are written ``levels[None, :]``).
    """
    array = np.asarray(to_numpy(value, name), dtype=np.float64)
    if array.ndim == 0:
        return np.broadcast_to(array, (n,)), False
    if array.ndim == 1 and len(array) == n:
        return array, False
    if array.ndim == 2 and array.shape[0] in (1, n):
        return np.broadcast_to(array, (n, array.shape[1])), True
    raise InvalidInputError(
        f"{name}: shape {array.shape} does not fit {n} rows; give a scalar, one value per row, or (n, k); "
        f"for the same k values in every row give {name}[None, :]"
    )


def align_levels(q: Any, n: int) -> tuple[Array, bool]:
    """``align`` for probabilities q.

    Raises:
        InvalidInputError: see ``align``; or a level outside [0, 1], or NaN.
    """
    levels, columns = align(q, n, "q")
    inside = (levels >= 0.0) & (levels <= 1.0)
    if not bool(inside.all()):
        index = tuple(int(i) for i in np.argwhere(~inside)[0])
        raise InvalidInputError(
            f"q: row {index[0]} has the level {levels[index]:g}, expected probabilities in [0, 1]; divide "
            "per cent by 100"
        )
    return levels, columns
