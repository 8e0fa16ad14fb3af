"""What a picture reads of a result: the columns of its table, from the result or from the table itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from congruence.kernels.arrays import Array, require_matrix, require_targets
from congruence.kernels.calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.local_reading import LocalReading
from congruence.kernels.congruence.result import CongruenceResult
from congruence.kernels.errors import InvalidInputError

if TYPE_CHECKING:
    import pandas as pd

Errors: TypeAlias = "CongruenceResult | pd.DataFrame | Mapping[str, Any]"
"""CCE at m points: a result, or columns ``cce`` and ``cce_noise_floor``."""

Readings: TypeAlias = "LocalReading | pd.DataFrame | Mapping[str, Any]"
"""What is wrong around m points: a reading, or its columns: ``calibration_fault``, ``calibration_bias``, ..."""


def errors_of(result: Errors) -> tuple[Array, Array]:
    """CCE and noise floor, (m,) each."""
    if isinstance(result, CongruenceResult):
        return result.values, result.noise_floor_values
    cce = vector(column(result, "cce", "a CongruenceResult or its table"), "cce")
    return cce, vector(
        column(result, "cce_noise_floor", "a CongruenceResult or its table"), "cce_noise_floor", len(cce)
    )


def faults_of(reading: Readings) -> tuple[Array, Array]:
    """The fault of each point, "" where none is significant, and the scores of all orders, (m, 4)."""
    table = reading.columns() if isinstance(reading, LocalReading) else reading
    asked = "a LocalReading or its table"
    fault = np.asarray(column(table, "calibration_fault", asked)).astype(str)
    scores = [np.asarray(column(table, f"calibration_{order}", asked), dtype=np.float64) for order in ORDERS]
    return fault, np.column_stack(scores)


def column(table: Any, name: str, expected: str) -> Any:
    """One column of a table.

    Raises:
        InvalidInputError: it has none of that name, or is no table.
    """
    if not hasattr(table, "__getitem__") or not hasattr(table, "keys"):
        raise InvalidInputError(f"{name}: got {type(table).__name__}, expected {expected}")
    if name not in table:
        raise InvalidInputError(f"{name}: no such column among {', '.join(map(str, table.keys()))}; give {expected}")
    return table[name]


def vector(values: Any, name: str, rows: int | None = None) -> Array:
    """``values`` as finite numbers (n,), as many as the points where ``rows`` says how many these are.

    Raises:
        InvalidInputError: another shape or length, no numbers, or not finite, by row.
    """
    array = require_targets(values, name)
    if array.ndim != 1:
        raise InvalidInputError(f"{name}: expected shape (n,), got {array.shape}")
    return require_rows(array, name, rows)


def place_of(values: Any, rows: int) -> Array:
    """``values`` as a map of the points, (m, 2).

    Raises:
        InvalidInputError: another shape, or not finite, by row.
    """
    place = np.asarray(require_matrix(values, "place"))
    if place.shape[1] != 2:
        raise InvalidInputError(
            f"place: {place.shape[1]} columns, expected 2: two features, or the first two principal components"
        )
    return require_rows(place, "place", rows)


def require_rows(array: Array, name: str, rows: int | None) -> Array:
    """``array``, if it has ``rows`` rows.

    Raises:
        InvalidInputError: it has another number of rows.
    """
    if rows is not None and len(array) != rows:
        raise InvalidInputError(f"{name}: {len(array)} rows for {rows} points; they must match point by point")
    return array
