"""Columns of groups, times, weights and exposures, and what is wrong with a column that cannot be what it should."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from congruence.kernels.arrays import Array
from congruence.tasks.data.inputs import as_numbers, is_number, is_text, row_codes
from congruence.tasks.data.settings import SampleDesign
from congruence.tasks.data.sources import SplitSource
from congruence.tasks.data.sources.text import kind_of_texts


def no_numbers(kind: pa.DataType, example: str, remedy: str = "convert it to numbers") -> str:
    """What is said of a column that should hold numbers; ``example`` tells of its first value that is none."""
    if is_text(kind) and not example:
        return f"holds numbers written as text ({kind}); convert it to numbers"
    return f"holds {'text' if is_text(kind) else kind}, not numbers{example}; {remedy}"


def first_text(source: SplitSource, path: str, name: str) -> str:
    """Where the first value of a column that is no number stands; "" where all are."""
    start = 0
    for batch in source.batches(path, columns=(name,)):
        found = first_of_no_number(batch.column(name))
        if found is not None:
            row, value = found
            shown = value[:40] if isinstance(value, (str, bytes)) else value
            return f", for example {shown!r} at {path}, row {start + row}"
        start += batch.num_rows
    return ""


def first_of_no_number(values: Any) -> tuple[int, Any] | None:
    """The first value of a column that is no number, not even one that is written as text, and its row."""
    are_texts = is_text(values.type)
    if are_texts and kind_of_texts(values) not in ("text", "bool"):
        return None
    for row, value in enumerate(values.to_pylist()):
        if value is not None and not (are_texts and kind_of_texts(pa.array([value])) in ("int", "float", "null")):
            return row, value
    return None


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
    if role == "time" and not (number or text or is_moment(kind)):
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
    return unread_time(column) if role == "time" and is_text(column.type) else None


def unread_time(column: Any) -> tuple[int, str] | None:
    """The first row of a column of times that holds a text which is none, and what it is; None where there is none."""
    unread = np.isnat(moments(column)) & column.is_valid().to_numpy(zero_copy_only=False)
    if not unread.any():
        return None
    row = int(np.argmax(unread))
    return row, f"is {column[row].as_py()[:40]!r}, no ISO 8601 time such as 2024-05-31 or 2024-05-31T12:00"


def _times(column: Any) -> Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_text(column.type) or is_moment(column.type):
        return moments(column).view(np.int64)
    if pa.types.is_integer(column.type):
        return np.asarray(column.cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False))
    return as_numbers(column)


def moments(column: Any) -> npt.NDArray[np.datetime64]:
    """Timestamps, dates or ISO 8601 texts as ``datetime64[us]`` in UTC, NaT where a text is none of these."""
    if not is_text(column.type):
        found = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False)
        return np.asarray(found.to_numpy(zero_copy_only=False), "datetime64[us]")
    texts = pd.Series(column.to_numpy(zero_copy_only=False))
    times = pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce").dt.tz_localize(None)
    return np.asarray(times.to_numpy("datetime64[us]"))


def is_moment(kind: pa.DataType) -> bool:
    """Whether values of this Arrow type are timestamps or dates."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))
