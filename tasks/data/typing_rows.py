"""Types for columns that arrive as text or JSON, from all of their values, so that every shard has the same ones."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from congruence.tasks.data.errors import SplitError

_ARROW = {
    "null": pa.float64(),
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "vector": pa.list_(pa.float64()),
    "text": pa.string(),
    "bytes": pa.binary(),
}
_INT64 = 2**63


class RawText(str):
    """A value whose type is not known from its notation: ``12`` may be a number or a name. Empty means missing."""


class ColumnTypes:
    """The narrowest type of each column that holds every value seen: integer, float, vector, text or bytes.

    Integers and floats widen to floats; any other mixture is text.
    """

    def __init__(self, kinds: Mapping[str, str] | None = None) -> None:
        self._kinds: dict[str, str] = dict(kinds or {})

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each column, in the order in which they were first seen."""
        return dict(self._kinds)

    def join(self, kinds: Mapping[str, str]) -> None:
        """Take the kinds of other rows' columns into account."""
        for name, kind in kinds.items():
            self._kinds[name] = _join(self._kinds.get(name, "null"), kind)

    def observe(self, values: Mapping[str, Any]) -> None:
        """Take one row's values into account."""
        for name, value in values.items():
            self._kinds[name] = _join(self._kinds.get(name, "null"), _kind(value))

    def schema(self) -> pa.Schema:
        """The columns in the order in which they were first seen."""
        return pa.schema([pa.field(name, _ARROW[kind]) for name, kind in self._kinds.items()])


def typed_batch(rows: Iterable[Mapping[str, Any]], schema: pa.Schema, columns: Iterable[str]) -> pa.RecordBatch:
    """``columns`` of ``rows`` with the types of ``schema``; a value that a row lacks is null."""
    listed = list(rows)
    kinds = {name: schema.field(name).type for name in columns}
    arrays = [pa.array([_fit(row.get(name), kind) for row in listed], kind) for name, kind in kinds.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(kinds))


def parse_object(data: bytes | str, place: str) -> dict[str, Any]:
    """A JSON object; raises SplitError naming ``place`` for anything else."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise SplitError(f"{place}: is not JSON ({error}); write one JSON object") from error
    if not isinstance(value, dict):
        raise SplitError(
            f"{place}: holds a JSON {type(value).__name__}, expected an object with one field for each column"
        )
    return value


def _parse(text: str) -> Any:
    """A number where ``text`` is one, None where it is empty, else the text."""
    stripped = text.strip()
    if not stripped:
        return None
    try:
        return int(stripped) if _looks_integral(stripped) else float(stripped) if _looks_decimal(stripped) else text
    except ValueError:
        return text


def _looks_integral(text: str) -> bool:
    digits = text.lstrip("+-")
    return digits.isascii() and digits.isdigit() and len(digits) < 19 and not _is_code(digits)


def _looks_decimal(text: str) -> bool:
    return text.isascii() and "_" not in text and not _is_code(text.lstrip("+-"))


def _is_code(digits: str) -> bool:
    """Whether this is a code such as 007, whose leading zeros say that it is no number."""
    return len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()


def _kind(value: Any) -> str:
    if isinstance(value, RawText):
        value = _parse(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -_INT64 <= value < _INT64 else "float"
    if isinstance(value, float):
        return "float"
    if isinstance(value, bytes):
        return "bytes"
    if isinstance(value, list) and all(isinstance(item, (int, float)) or item is None for item in value):
        return "vector"
    return "text"


def _join(left: str, right: str) -> str:
    if left == right or right == "null":
        return left
    if left == "null":
        return right
    return "float" if {left, right} == {"int", "float"} else "text"


def _fit(value: Any, kind: Any) -> Any:
    is_text = pa.types.is_string(kind)
    if isinstance(value, RawText):
        return (str(value) if value.strip() else None) if is_text else _parse(value)
    if value is None or isinstance(value, str) or not is_text:
        return value
    return value.decode(errors="replace") if isinstance(value, bytes) else json.dumps(value)
