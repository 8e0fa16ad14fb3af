"""Columns of a model: what it returns, and what its signature takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.types import DataType
from mlflow.types.schema import Schema

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.normal_score_map import IDENTITY_LEVELS, NormalScoreMap
from congruence.tasks.runtime.errors import ContractError


def output_columns(output: Any, rows: int) -> dict[str, Array]:
    """The columns of a DataFrame, Series, dict of arrays, array, tensor or list, each of ``rows`` rows.

    The columns of an unnamed matrix are "0", "1", ...; values stay as they are until ``numeric`` reads them.

    Raises:
        ContractError: another type, repeated names, or another number of rows.
    """
    columns = _named(output)
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


def _named(output: Any) -> dict[str, Array]:
    if isinstance(output, pd.DataFrame):
        names = [str(name) for name in output.columns]
        repeated = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if repeated:
            raise ContractError(f"output column {repeated[0]!r} occurs more than once; give every column its own name")
        return {name: _series(output.iloc[:, index]) for index, name in enumerate(names)}
    if isinstance(output, pd.Series):
        return {str(output.name if output.name is not None else 0): _series(output)}
    if isinstance(output, Mapping):
        return {str(name): _array(values) for name, values in output.items()}
    array = _array(output)
    if array.ndim == 2 and array.dtype.kind != "O":
        return {str(index): array[:, index] for index in range(array.shape[1])}
    return {"0": array}


def _series(series: pd.Series[Any]) -> Array:
    if isinstance(series.dtype, np.dtype):
        return np.asarray(series.to_numpy())
    # Nullable and Arrow columns: a missing number becomes NaN, which ``numeric`` reports with its row.
    numbers = pd.api.types.is_numeric_dtype(series.dtype)
    return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan) if numbers else series.to_numpy(dtype=object))


def _array(values: Any) -> Array:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()  # NumPy has no such type
    if isinstance(values, pd.Series):
        return _series(values)
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths: ``numeric`` names the first that differs
        array = np.empty(len(values), dtype=object)
        array[:] = list(values)
    if array.dtype.kind not in "biufOUS":
        raise ContractError(
            f"predict returned {type(values).__name__}; return a DataFrame, a dict of arrays, an array or a tensor "
            "of numbers"
        )
    return array


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
        return NormalScoreMap(shift, factor, IDENTITY_LEVELS, np.tile(IDENTITY_LEVELS, (len(shift), 1)))
    inner = np.column_stack([numeric(columns[name], name, start) for name in names])
    ends = np.zeros((len(inner), 1))
    levels = np.array([0.0, *(_level(name) for name in names), 1.0])
    return NormalScoreMap(shift, factor, levels, np.concatenate([ends, inner, ends + 1.0], axis=1))


def _level(name: str) -> float:
    return float(name.removeprefix(SHARE))


_WORDS = {
    DataType.boolean: "true or false (boolean)",
    DataType.integer: "whole numbers of 32 bits (integer)",
    DataType.long: "whole numbers (long)",
    DataType.float: "numbers of 32 bits (float)",
    DataType.double: "numbers (double)",
    DataType.string: "texts (string)",
    DataType.binary: "bytes (binary)",
    DataType.datetime: "dates (datetime)",
}
_NUMBERS = (DataType.double, DataType.float, DataType.long, DataType.integer, DataType.boolean)
_PICTURES = {b"\x89PNG": ".png", b"\xff\xd8": ".jpg", b"GIF8": ".gif", b"RIFF": ".webp", b"BM": ".bmp", b"II*": ".tif"}
_LOG_AGAIN = "or log the model again with an input_example that is like these rows"


def to_signature(frame: pd.DataFrame, schema: Schema) -> tuple[pd.DataFrame, dict[str, str]]:
    """Returns ``frame`` in the types of ``schema``, and what was changed on the way, by column.

    Numbers become wider or narrower ones, with the largest rounding said; whole ones that came as floating-point
    numbers whole ones; 0 and 1 booleans; dates with a zone dates in UTC without one; texts in ISO 8601 dates.

    Raises:
        ContractError: a column cannot be converted; names it, its type, the first value, and what to do.
    """
    frame = without_categories(frame.reset_index(drop=True))
    notes: dict[str, str] = {}
    changed: dict[str, Any] = {}
    for item in schema.inputs:
        name, kind = str(item.name), getattr(item, "type", None)
        if kind not in _CONVERSIONS or name not in frame.columns:
            continue
        column = frame[name]
        found, note = _CONVERSIONS[kind](column, name)
        if found is not column:
            changed[name] = found
        if note:
            notes[name] = f"input column {name!r} {note}"
    return (frame.assign(**changed) if changed else frame), notes


def pictures_as_files(frame: pd.DataFrame, schema: Schema, folder: Path) -> tuple[pd.DataFrame, dict[str, str]]:
    """Returns ``frame`` with paths of files in ``folder`` where a signature asks for texts and the cells are bytes.

    A model of pictures that was logged with their paths is given paths; what was changed is said by column.
    """
    changed: dict[str, Any] = {}
    for item in schema.inputs:
        name = str(item.name)
        if getattr(item, "type", None) != DataType.string or not isinstance(frame[name].iloc[0], bytes):
            continue
        changed[name] = paths = []
        for row, content in enumerate(frame[name]):
            ending = next((end for start, end in _PICTURES.items() if content.startswith(start)), "")
            paths.append(str(folder / f"{name}-{row}{ending}"))
            Path(paths[-1]).write_bytes(content)
    said = "is given as paths of files that hold its bytes: the signature asks for texts"
    return frame.assign(**changed), {name: f"input column {name!r} {said}" for name in changed}


def to_tensor(frame: pd.DataFrame, dtype: np.dtype[Any]) -> Array:
    """Returns the rows as a matrix, or what is in the cells of its one column stacked; missing numbers are NaN.

    Raises:
        ContractError: a value that ``dtype`` cannot hold.
    """
    if frame.shape[1] == 1 and frame.dtypes.iloc[0].kind == "O" and not _is_number(frame.iloc[0, 0]):
        return np.stack([np.asarray(row) for row in frame.iloc[:, 0]]).astype(dtype)
    columns = [_floats(frame[name], str(name), f"a tensor of {dtype}") for name in frame.columns]
    matrix = columns[0][:, None] if len(columns) == 1 else np.column_stack(columns)
    if dtype.kind in "iu" and not np.isfinite(matrix).all():
        row, place = np.argwhere(~np.isfinite(matrix))[0]
        raise ContractError(
            f"input column {str(frame.columns[place])!r}: row {row} has no value, and the signature asks for a tensor "
            f"of {dtype}, which knows no missing ones; leave such rows out, {_LOG_AGAIN}"
        )
    return matrix.astype(dtype)


def _to_number(kind: DataType) -> Callable[[pd.Series[Any], str], tuple[Any, str]]:
    """To floating-point numbers, whole numbers or booleans, where no value but its rounding is lost."""
    wanted = np.dtype(kind.to_numpy())

    def convert(column: pd.Series[Any], name: str) -> tuple[Any, str]:
        if column.dtype == wanted:
            return column, ""
        whole = wanted.kind == "i" and isinstance(column.dtype, np.dtype) and column.dtype.kind in "iub"
        values = column.to_numpy() if whole else _floats(column, name, _WORDS[kind])
        with np.errstate(over="ignore", invalid="ignore"):
            found = values.astype(wanted)
        bad, why, note = np.zeros(len(values), bool), "", ""
        if kind == DataType.double:
            note = _beyond(column)
        elif kind == DataType.float:
            bad, why = np.isinf(found) & np.isfinite(values), "it is too large for 32 bits"
            exact = np.isclose(values, 0.0, atol=0.0) | ~np.isfinite(values)
            rounding = np.where(exact, 0.0, np.abs(found - values) / np.where(exact, 1.0, np.abs(values)))
            largest = 0.0 if bad.any() else float(rounding.max(initial=0.0))
            if largest:
                note = f"is given in 32 bits, as the signature says: rounded by up to {largest:.1g} of its value"
        elif kind == DataType.boolean:
            bad, why = ~np.isin(values, (0.0, 1.0)), "only 0 and 1 are"
        elif whole:
            limits = np.iinfo(wanted)
            bad = np.asarray((values > limits.max) | (values.astype(np.float64) < limits.min))
            why = f"it is too large for {wanted.itemsize * 8} bits"
        else:
            most = min(2.0**53, 2.0 ** (wanted.itemsize * 8 - 1))
            bad = ~(np.isfinite(values) & (values == np.round(values)) & (np.abs(values) < most))
            why = "it is no whole number: whole numbers know no missing values"
        if bad.any():
            raise _refused(name, column, int(np.argmax(bad)), kind, why)
        return pd.Series(found), note

    return convert


def _to_string(column: pd.Series[Any], name: str) -> tuple[Any, str]:
    if column.dtype.kind in "iu":
        texts = column.astype(object).map(lambda cell: None if pd.isna(cell) else str(cell))
        return (
            texts,
            f"is given as texts such as {texts.iloc[0]!r}: if these are codes, see that they had no zeros before them",
        )
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "bfM":
        raise _refused(name, column, 0, DataType.string, "it has more than one spelling as a text")
    return column, ""


def _to_datetime(column: pd.Series[Any], name: str) -> tuple[Any, str]:
    zone = getattr(column.dtype, "tz", None)
    if zone is not None:
        there = "" if str(zone) == "UTC" else f" (it has {zone})"
        return column.dt.tz_convert("UTC").dt.tz_localize(None), f"is given in UTC without a zone{there}"
    if isinstance(column.dtype, np.dtype) and column.dtype.kind == "M":
        return column, ""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
        raise _refused(name, column, 0, DataType.datetime, "a number does not say since when it counts, nor what")
    try:
        return _to_datetime(pd.to_datetime(column, format="ISO8601"), name)
    except (TypeError, ValueError) as error:
        place = next((row for row, value in enumerate(column) if _is_no_date(value)), 0)
        raise _refused(name, column, place, DataType.datetime, "it is no date in ISO 8601, as 2026-03-01") from error


_CONVERSIONS: Mapping[Any, Callable[[pd.Series[Any], str], tuple[Any, str]]] = {
    **{kind: _to_number(kind) for kind in _NUMBERS},
    DataType.string: _to_string,
    DataType.datetime: _to_datetime,
}


def _floats(column: pd.Series[Any], name: str, wanted: str) -> Array:
    """Numbers, booleans and decimals as float64, missing ones as NaN."""
    if column.dtype.kind in "biuf":
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    cells: Iterable[Any] = column
    bad = next((row for row, cell in enumerate(cells) if not _is_number(cell)), None)
    if bad is not None:
        raise ContractError(
            f"input column {name!r} holds {_held(column)}, and the signature asks for {wanted}: row {bad} is "
            f"{_shown(column.iloc[bad])}; store numbers in that column, {_LOG_AGAIN}"
        )
    return np.array([np.nan if pd.isna(cell) else float(cell) for cell in cells])


def _beyond(column: pd.Series[Any]) -> str:
    """Whole numbers beyond 2^53 are rounded as floating-point ones."""
    if column.dtype.kind not in "iu":
        return ""
    values = column.dropna().to_numpy(dtype=np.dtype(str(column.dtype).lower()))
    lost = values != values.astype(np.float64).astype(values.dtype)
    return "holds whole numbers beyond 2^53, which are rounded to 53 bits" if lost.any() else ""


def _is_number(cell: Any) -> bool:
    if cell is None or cell is pd.NA or isinstance(cell, Decimal):
        return True
    return isinstance(cell, (int, float, np.number, np.bool_))


def _is_no_date(value: Any) -> bool:
    try:
        pd.to_datetime([value], format="ISO8601")
    except (TypeError, ValueError):
        return True
    return False


def _refused(name: str, column: pd.Series[Any], row: int, kind: DataType, why: str) -> ContractError:
    return ContractError(
        f"input column {name!r} holds {_held(column)}, and the signature asks for {_WORDS[kind]}: row {row} is "
        f"{_shown(column.iloc[row])}, and {why}; store the column as the model was given it, {_LOG_AGAIN}"
    )


def _held(column: pd.Series[Any]) -> str:
    kind = column.dtype.kind
    return {"O": "texts or objects", "i": "whole numbers", "u": "whole numbers", "f": "numbers", "M": "dates"}.get(
        kind, str(column.dtype)
    ) + (f" ({column.dtype})" if kind in "iufM" else "")
