"""How the rows of a split were sampled: which belong together, their order, and what each counts for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from congruence.kernels.arrays import Array
from congruence.tasks.data.digests import is_number, is_text, row_codes
from congruence.tasks.data.shards import SampleDesign


def read_design(named: Mapping[str, str], table: pa.Table) -> SampleDesign:
    """The columns of ``table`` that ``named`` gives by role."""
    found = {}
    for role, name in named.items():
        column = table.column(name).combine_chunks()
        found[role] = (
            row_codes(column).view(np.int64)
            if role == "groups"
            else _times(column)
            if role == "time"
            else as_numbers(column)
        )
    return SampleDesign(**found)


def design_type_problem(role: str, kind: pa.DataType) -> str | None:
    """What is wrong with a column of this type in that role, and the remedy; None where nothing is."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    text, moment = is_text(kind), pa.types.is_temporal(kind)
    number = is_number(kind)
    if role in ("weight", "exposure") and (not number or pa.types.is_boolean(kind)):
        return f"holds {kind}; convert it to numbers or name another column"
    if role == "time" and not (number or text or _is_moment(kind)):
        return f"holds {kind}; give timestamps, dates, ISO 8601 texts or numbers"
    if role == "groups" and not (number or text or moment):
        return f"holds {kind}; give texts or numbers that are equal where rows belong together"
    return None


def design_problem(role: str, column: Any) -> tuple[int, str] | None:
    """The first row whose value cannot be used in that role, and why; None where there is none."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    missing = column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    if missing.any():
        remedy = {
            "groups": "say which rows it belongs to, or give it a value that no other row has",
            "time": "give every row a time",
            "weight": "give every row a weight, 0 where it is not to count",
            "exposure": "give every row its exposure",
        }[role]
        return int(np.argmax(missing)), f"is empty; {remedy}"
    if role in ("weight", "exposure"):
        values = as_numbers(column)
        bad = ~np.isfinite(values) | (values < 0.0 if role == "weight" else values <= 0.0)
        if bad.any():
            row = int(np.argmax(bad))
            least = "of at least 0" if role == "weight" else "above 0"
            return row, f"is {values[row]:g}; give a finite number {least}"
    if role == "time" and is_text(column.type):
        unread = np.asarray(_parsed(column).isna())
        if unread.any():
            row = int(np.argmax(unread))
            return row, f"is {column[row].as_py()[:40]!r}, no ISO 8601 time such as 2024-05-31 or 2024-05-31T12:00"
    return None


def as_numbers(column: Any) -> npt.NDArray[np.float64]:
    """A column of numbers as float64, NaN where it is null."""
    numbers: npt.NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers


def _times(column: Any) -> Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_text(column.type):
        return np.asarray(_parsed(column).to_numpy().astype("datetime64[us]").astype(np.int64))
    if _is_moment(column.type):
        moments = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False)
        return np.asarray(moments.cast(pa.int64()).to_numpy(zero_copy_only=False))
    if pa.types.is_integer(column.type):
        return np.asarray(column.cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False))
    return as_numbers(column)


def _parsed(column: Any) -> pd.Series:
    times = pd.Series(column.to_numpy(zero_copy_only=False))
    return pd.to_datetime(times, format="ISO8601", utc=True, errors="coerce").dt.tz_localize(None)


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))
