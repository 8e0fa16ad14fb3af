"""What the columns of a split are used for, whether they can be, and how its rows were sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from congruence.kernels.arrays import Array
from congruence.tasks.data.inputs import ImageFolder, InputColumns, input_columns
from congruence.tasks.data.locations import Location, is_list, is_number, is_text, row_codes
from congruence.tasks.data.settings import SampleDesign, SplitSettings
from congruence.tasks.data.sources import SplitSource
from congruence.tasks.data.sources.text import kind_of_texts
from congruence.tasks.runtime.errors import SplitError, unknown_column


def checked_inputs(source: SplitSource, schema: pa.Schema, path: str) -> InputColumns:
    """How the input's columns are read, after a look at the types of all columns that the settings name.

    A column without any value passes: what is wrong with its rows is said of each.

    Args:
        source: of the split.
        schema: the columns that there are.
        path: a file that has them.

    Raises:
        SplitError: a column that does not exist, or whose type cannot hold what it should.
    """
    settings, where = source.settings, source.location.uri
    types = dict(zip(schema.names, schema.types, strict=True))
    for name, role in _roles(settings):
        if name not in types:
            available = [other for other in source.full_schema(path).names if not other.startswith("__")]
            raise unknown_column(name, role, available, where if source.paths() == [path] else path)
    for name in settings.target_columns:
        if not is_number(types[name]) or pa.types.is_boolean(types[name]):
            remedy = "convert it to numbers or name another column"
            said = no_numbers(types[name], first_text(source, path, name), remedy)
            raise SplitError(f"{where}: column {name!r} (target) {said}")
    for name in settings.input_columns if settings.input_kind == "features" else ():
        vector = len(settings.input_columns) == 1 and is_list(types[name])
        if not is_number(types[name].value_type if vector else types[name]):
            remedy = (
                "leave it out of input (a model that reads it as it is names it under model_inputs), or give its "
                "numbers in columns"
            )
            said = no_numbers(types[name], first_text(source, path, name), remedy)
            raise SplitError(f"{where}: column {name!r} (input) {said}")
    for name, role in _roles(settings):
        if name in settings.target_columns and role not in ("target", "model_inputs", "key"):
            raise SplitError(f"{where}: column {name!r} ({role}) is the target; name another column, or leave it out")
    for name in settings.slices:
        if pa.types.is_nested(types[name]):
            raise SplitError(
                f"{where}: column {name!r} (slices) holds {types[name]}, by which rows cannot be grouped; name a "
                "column of single values"
            )
    for role, name in settings.design_columns.items():
        problem = None if pa.types.is_null(types[name]) else design_type_problem(role, types[name])
        if problem is not None:
            raise SplitError(f"{where}: column {name!r} ({role}) {problem}")
    return input_columns(source, schema, image_folder(source))


def image_folder(source: SplitSource) -> ImageFolder:
    """The folder that paths of images start from.

    Raises:
        SplitError: the settings name one that is not there.
    """
    settings, location = source.settings, source.location
    if settings.image_root is None:
        root = location.path
        if settings.input_kind == "image" and not location.is_folder():
            root = location.folder_of(source.paths())
        return ImageFolder(location.filesystem, root, location.is_local, settings.max_input_bytes)
    named = Location.of(settings.image_root, settings.storage_options)
    if settings.input_kind == "image" and not named.is_folder():
        raise SplitError(f"image_root {settings.image_root}: no such folder; give the one that image paths start from")
    return ImageFolder(named.filesystem, named.path, named.is_local, settings.max_input_bytes)


def _roles(settings: SplitSettings) -> list[tuple[str, str]]:
    return [
        *((name, "input") for name in settings.input_columns),
        *((name, "target") for name in settings.target_columns),
        *((name, "model_inputs") for name in settings.model_inputs or []),
        *((name, "slices") for name in settings.slices),
        *((name, role) for role, name in settings.design_columns.items()),
        *([(settings.key, "key")] if settings.key else []),
    ]


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


def as_numbers(column: Any) -> npt.NDArray[np.float64]:
    """A column of numbers as float64, NaN where it is null."""
    numbers: npt.NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers


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
