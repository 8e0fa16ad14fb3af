"""Types of columns that arrive as texts or as JSON values, from all of their values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from congruence.tasks.data.sources import REFERENCE

_ARROW = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "decimal comma": pa.float64(),
    "vector": pa.list_(pa.float64()),
    "text": pa.string(),
    "reference": REFERENCE,
}
_MISSING = pa.array(
    ["", "NA", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "NULL", "null", "None", "NaN", "nan", "-NaN", "-nan", "<NA>"]
)
"""What stands for a missing number in files that pandas, R and spreadsheets write."""
_BOOLS = pa.array(["true", "false"])
_INTEGER = r"^(0|-?[1-9][0-9]{0,18})$"
_CODE = r"^[+-]?(0[0-9xX]|[0-9]{19,}$)"
"""What a float may not be read from: codes such as 007, whose zeros say that they are no numbers, and long ids."""
_INT64 = 2**63


class RawText(str):
    """A value whose type is not known from its notation: ``12`` may be a number or a name. Empty means missing."""


class ColumnKinds(dict[str, str]):
    """The narrowest kind of each column that holds every value seen, in the order in which they were first seen.

    Integers and floats widen to floats; any other mixture is text.
    """

    def observe(self, name: str, kind: str) -> None:
        """A column holds values of this kind, too."""
        self[name] = _join(self.get(name, "null"), kind)

    def types(self, as_text: frozenset[str] = frozenset()) -> dict[str, pa.DataType]:
        """The Arrow type of each column."""
        return {name: pa.string() if name in as_text else _ARROW[kind] for name, kind in self.items()}


def kind_of_texts(texts: Any, decimal_comma: bool = False) -> str:
    """The kind of a column of texts, by the notation of all of them."""
    if texts.null_count == len(texts):
        return "null"
    found = _kind_as_written(texts, decimal_comma)
    return found if found != "text" else _kind_as_written(_cleaned(texts), decimal_comma)


def _kind_as_written(texts: Any, decimal_comma: bool) -> str:
    if texts.null_count == len(texts):
        return "null"
    if _all(pc.match_substring_regex(texts, _INTEGER)):
        return "int" if _casts(texts, pa.int64()) else "text"
    if not _any(pc.match_substring_regex(texts, _CODE)):
        if _casts(texts, pa.float64()):
            return "float"
        if decimal_comma and _casts(pc.replace_substring(texts, ",", "."), pa.float64()):
            return "decimal comma"
    return "bool" if _all(pc.is_in(pc.utf8_lower(texts.drop_null()), _BOOLS)) else "text"


def texts_as(texts: Any, kind: str) -> Any:
    """A column of texts as values of a kind that holds them."""
    if kind == "text":
        return pc.if_else(pc.equal(pc.utf8_trim_whitespace(texts), ""), None, texts)
    if kind == "null":
        return pa.nulls(len(texts))
    if kind in ("int", "float"):
        try:
            return texts.cast(_ARROW[kind])
        except pa.ArrowInvalid:
            return _cleaned(texts).cast(_ARROW[kind])
    cleaned = _cleaned(texts)
    if kind == "bool":
        return pc.equal(pc.utf8_lower(cleaned), "true")
    return pc.replace_substring(cleaned, ",", ".").cast(pa.float64())


def kind_of_values(values: Sequence[Any]) -> str:
    """The kind of a column of JSON values."""
    raw = [value for value in values if isinstance(value, RawText)]
    of_raw = kind_of_texts(pa.array(map(str, raw), pa.string())) if raw else "null"
    return reduce(_join, (_kind(value) for value in values if not isinstance(value, RawText)), of_raw)


def values_as(values: Sequence[Any], kind: str) -> Any:
    """JSON values as a column of a kind that holds them."""
    if any(isinstance(value, RawText) for value in values):
        given = [None if value is None else value if isinstance(value, str) else json.dumps(value) for value in values]
        return texts_as(pa.array(given, pa.string()), kind)
    if kind == "text":
        values = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    return pa.array(values, _ARROW[kind])


def kind_of_type(kind: Any) -> str | None:
    """The kind that Arrow's JSON reader found in a block, None where its values must be looked at one by one."""
    if pa.types.is_null(kind) or pa.types.is_boolean(kind):
        return "null" if pa.types.is_null(kind) else "bool"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "int" if pa.types.is_integer(kind) else "float"
    if pa.types.is_string(kind) or pa.types.is_temporal(kind):
        return "text"
    is_vector = pa.types.is_list(kind) and kind_of_type(kind.value_type) in ("null", "int", "float", "bool")
    return "vector" if is_vector else None


def rows_as(rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, str], names: Sequence[str]) -> pa.RecordBatch:
    """Columns of rows of JSON values; a value that a row lacks is null."""
    arrays = [values_as([row.get(name) for row in rows], kinds[name]) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _cleaned(texts: Any) -> Any:
    trimmed = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.is_in(trimmed, _MISSING), None, trimmed)


def _casts(texts: Any, kind: Any) -> bool:
    try:
        texts.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _all(mask: Any) -> bool:
    return bool(pc.all(mask).as_py())


def _any(mask: Any) -> bool:
    return bool(pc.any(mask).as_py())


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -_INT64 <= value < _INT64 else "text"
    if isinstance(value, float):
        return "float"
    if isinstance(value, tuple):
        return "reference"
    if isinstance(value, list) and all(isinstance(item, (int, float)) or item is None for item in value):
        return "vector"
    return "text"


def _join(left: str, right: str) -> str:
    if left == right or right == "null":
        return left
    if left == "null":
        return right
    pair = {left, right}
    if pair == {"int", "float"}:
        return "float"
    return "decimal comma" if pair == {"int", "decimal comma"} else "text"
