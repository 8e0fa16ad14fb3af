"""Rows as a model's signature asks for them: what is usual, or loses nothing, is converted; the rest is refused."""

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
from congruence.tasks.contract.reading import _shown, without_categories
from congruence.tasks.runtime.errors import ContractError

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
