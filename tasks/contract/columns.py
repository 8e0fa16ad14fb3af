"""Whatever ``predict`` returns, as named numeric arrays with one row per input row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.recalibrated import NormalScoreMap
from congruence.tasks.readers.base import columns_of
from congruence.tasks.runtime.errors import ContractError


def output_columns(output: Any, rows: int) -> dict[str, Array]:
    """The columns of a DataFrame, Series, dict of arrays, array, tensor or list, each of ``rows`` rows.

    The columns of an unnamed matrix are "0", "1", ...; values stay as they are until ``numeric`` reads them.

    Raises:
        ContractError: another type, repeated names, or another number of rows.
    """
    try:
        columns: dict[str, Array] = columns_of(output)
    except TypeError as error:
        raise ContractError(str(error)) from error
    if not columns:
        raise ContractError("the output has no columns")
    for name, values in columns.items():
        if values.ndim == 0 or len(values) != rows:
            raise ContractError(
                f"output column {name!r} has shape {values.shape} for {rows} input rows; predict must return one row "
                "for every input row, in their order"
            )
    return columns


def numeric(values: Array, name: str, start: int = 0) -> Array:
    """A column as float64 without NaN: (n,), or (n, k, ...) where each cell holds an array.

    Args:
        values: the column.
        name: what to call it in errors.
        start: the number of the first row, for errors.

    Raises:
        ContractError: a cell is missing, not a number, NaN, or of another length than the first.
    """
    if values.dtype.kind == "O":
        values = _from_objects(values, name, start)
    if values.dtype.kind not in "biuf":
        raise ContractError(f"output column {name!r} holds {values.dtype} values, expected numbers")
    values = values.astype(np.float64)
    known = ~np.isnan(values).reshape(len(values), -1).any(axis=1)
    if not known.all():
        row = int(np.argmin(known))
        raise ContractError(
            f"output column {name!r}: row {start + row} is {values[row]} ({int(np.sum(~known))} of {len(values)} rows "
            "are); the model must return a distribution for every valid input"
        )
    return values


def as_frame(arrays: Mapping[str, Array]) -> pd.DataFrame:
    """Arrays of one length as columns by their names; a matrix as one column of arrays."""
    return pd.DataFrame({name: values if values.ndim == 1 else list(values) for name, values in arrays.items()})


def without_categories(frame: pd.DataFrame) -> pd.DataFrame:
    """Categories as the values they stand for: MLflow's signatures know no categories."""
    kinds = {str(name): kind for name, kind in frame.dtypes.items() if isinstance(kind, pd.CategoricalDtype)}
    types = {name: kind.categories.dtype for name, kind in kinds.items()}
    return frame.astype(types) if types else frame  # without any, pandas would still copy column by column


def _from_objects(values: Array, name: str, start: int) -> Array:
    cells = []
    for row, cell in enumerate(values):
        try:
            cells.append(np.asarray(cell, dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise ContractError(
                f"output column {name!r}: row {start + row} is {_shown(cell)}, expected a number or an array of numbers"
            ) from error
        if cells[-1].shape != cells[0].shape:
            raise ContractError(
                f"output column {name!r}: row {start + row} has shape {cells[-1].shape}, but row {start} has "
                f"{cells[0].shape}; every row needs the same number of values"
            )
    return np.stack(cells)


def _shown(cell: object) -> str:
    text = repr(cell.item() if isinstance(cell, np.generic) else cell)
    return text if len(text) <= 60 else f"{text[:57]}..."


UNCORRECTED = "uncorrected_"
SHIFT, FACTOR, SHARE = "recalibration_shift", "recalibration_factor", "recalibration_share_"


def is_recalibrated(columns: Mapping[str, Array]) -> bool:
    """Whether these are the columns of a law and of the map that it is read through."""
    return SHIFT in columns and FACTOR in columns


def uncorrected(columns: Mapping[str, Array]) -> dict[str, Array]:
    """The parent's own output columns."""
    return {name.removeprefix(UNCORRECTED): values for name, values in columns.items() if name.startswith(UNCORRECTED)}


def score_map_columns(score_map: NormalScoreMap, *, with_shape: bool) -> dict[str, Array]:
    """The map as columns, one row each."""
    columns = {SHIFT: score_map.shift, FACTOR: score_map.factor}
    if with_shape:
        inner = range(1, len(score_map.levels) - 1)
        columns |= {f"{SHARE}{float(score_map.levels[k])!r}": score_map.shares[:, k] for k in inner}
    return columns


def read_score_map(columns: Mapping[str, Array], start: int = 0) -> NormalScoreMap:
    """The map that ``score_map_columns`` spelled.

    Raises:
        ContractError, InvalidInputError: values that are no map, by column and row.
    """
    shift, factor = (numeric(columns[name], name, start) for name in (SHIFT, FACTOR))
    names = sorted((name for name in columns if name.startswith(SHARE)), key=_level)
    if not names:
        return NormalScoreMap.affine(shift, factor)
    inner = np.column_stack([numeric(columns[name], name, start) for name in names])
    ends = np.zeros((len(inner), 1))
    levels = np.array([0.0, *(_level(name) for name in names), 1.0])
    return NormalScoreMap(shift, factor, levels, np.concatenate([ends, inner, ends + 1.0], axis=1))


def _level(name: str) -> float:
    return float(name.removeprefix(SHARE))
