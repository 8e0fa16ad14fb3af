"""CSV files and JSON lines, perhaps compressed: read by Arrow in blocks, once for types and once for values.

The type of a column that arrives as texts, or as JSON values, follows from all of its values.
"""

from __future__ import annotations

import csv
import io
import json
import re
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from congruence.kernels.threads import available_threads
from congruence.tasks.data.sources import REFERENCE, SourceFile, source
from congruence.tasks.runtime.errors import SplitError

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


class RawText(str):
    """A value whose type is not known from its notation: ``12`` may be a number or a name. Empty means missing."""


def widen(kinds: dict[str, str], name: str, kind: str) -> None:
    """Have the kind of a column hold values of this kind, too: integers with floats are floats, other mixtures text."""
    kinds[name] = _join(kinds.get(name, "null"), kind)


def kind_of_texts(texts: Any, decimal_comma: bool = False) -> str:
    """The kind of a column of texts, by the notation of all of them."""
    found = _kind_as_written(texts, decimal_comma)
    return found if found != "text" else _kind_as_written(_cleaned(texts), decimal_comma)


def _kind_as_written(texts: Any, decimal_comma: bool) -> str:
    if texts.null_count == len(texts):
        return "null"
    if pc.all(pc.match_substring_regex(texts, _INTEGER)).as_py():
        return "int" if _casts(texts, pa.int64()) else "text"
    if not pc.any(pc.match_substring_regex(texts, _CODE)).as_py():
        if _casts(texts, pa.float64()):
            return "float"
        if decimal_comma and _casts(pc.replace_substring(texts, ",", "."), pa.float64()):
            return "decimal comma"
    return "bool" if pc.all(pc.is_in(pc.utf8_lower(texts.drop_null()), _BOOLS)).as_py() else "text"


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
    """The kind of a column of JSON values, which are texts where they are of several kinds."""
    raw = [value for value in values if isinstance(value, RawText)]
    others = [value for value in values if value is not None and not isinstance(value, RawText)]
    of_raw = kind_of_texts(pa.array(map(str, raw), pa.string())) if raw else "null"
    if not others:
        return of_raw
    if all(isinstance(value, tuple) for value in others):
        return _join(of_raw, "reference")
    try:
        return _join(of_raw, kind_of_type(pa.array(others).type) or "text")
    except (pa.ArrowException, OverflowError):
        return "text"


def values_as(values: Sequence[Any], kind: str) -> Any:
    """JSON values as a column of a kind that holds them."""
    are_raw = any(isinstance(value, RawText) for value in values)
    if are_raw or kind == "text":
        values = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    return texts_as(pa.array(values, pa.string()), kind) if are_raw else pa.array(values, _ARROW[kind])


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


def _join(left: str, right: str) -> str:
    if left == right or right == "null":
        return left
    if left == "null":
        return right
    pair = {left, right}
    if pair == {"int", "float"}:
        return "float"
    return "decimal comma" if pair == {"int", "decimal comma"} else "text"


_BLOCK = 2**23
_MOST_FIELD = 2**24
_LET_GO_S = 5.0
_COMPRESSED = ("", ".gz", ".bz2", ".xz", ".zst")
_LONG_NUMBER = re.compile(rb"[0-9]{19}")


@source("csv", suffixes=tuple(f"{end}{packed}" for end in (".csv", ".tsv") for packed in _COMPRESSED), has_types=False)
def read_csv(file: SourceFile) -> Iterator[pa.RecordBatch]:
    """Fields under a header, between commas, semicolons, tabs or bars; with semicolons numbers may have commas."""
    delimiter, header = _header(file)
    kinds, comma = dict.fromkeys(header, "null"), delimiter in ";\t"
    with ThreadPoolExecutor(available_threads()) as threads:
        for block in islice(_texts(file, delimiter, header), 1 if file.only_first else None):
            asked = [name for name in file.wanted(header) if kinds[name] != "text" and name not in file.as_text]
            found = threads.map(lambda name, block=block: kind_of_texts(block.column(name), comma), asked)
            for name, kind in zip(asked, found, strict=True):
                widen(kinds, name, kind)
        kinds.update(dict.fromkeys(file.as_text.intersection(header), "text"))
        nothing = pa.RecordBatch.from_pylist([], pa.schema([(name, pa.string()) for name in header]))
        yield _converted(nothing, file.wanted(header), kinds, threads)
        for block in islice(_texts(file, delimiter, header), 1 if file.only_first else None):
            yield _converted(block, file.wanted(header), kinds, threads)


def _converted(
    block: pa.RecordBatch, names: list[str], kinds: Mapping[str, str], threads: ThreadPoolExecutor
) -> pa.RecordBatch:
    arrays = list(threads.map(lambda name: texts_as(block.column(name), kinds[name]), names))
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _header(file: SourceFile) -> tuple[str, list[str]]:
    """What lies between the fields, and the columns."""
    with _decoded(file) as stream:
        outside_quotes = re.sub(r'"[^"]*"', "", stream.readline(_MOST_FIELD))
        delimiter = max(",;\t|", key=outside_quotes.count)
        stream.seek(0)
        header = next(csv.reader(_lines(stream), delimiter=delimiter), [])
    repeated = sorted({name for name in header if header.count(name) > 1})
    if not header or repeated:
        what = f"names the column {repeated[0]!r} twice" if repeated else "is empty"
        raise SplitError(f"{file.path}: {what}; the first line names each column once")
    if not _is_utf8(header):
        raise SplitError(f"{file.path}, header: is not UTF-8; save it as UTF-8")
    return delimiter, header


def _texts(file: SourceFile, delimiter: str, header: list[str]) -> Iterator[pa.RecordBatch]:
    """The fields as they are written, null where there is nothing."""
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    types = dict.fromkeys(header, pa.string())
    convert = pa.csv.ConvertOptions(column_types=types, strings_can_be_null=True, null_values=[""])
    read = pa.csv.ReadOptions(block_size=_BLOCK)
    with file.open(compression="infer") as opened:
        stream, is_let_go = _UntilEnough(opened), Event()
        weakref.finalize(stream, is_let_go.set)
        blocks: Iterable[pa.RecordBatch] = ()
        try:
            blocks = pa.csv.open_csv(stream, read, parse, convert)
            yield from blocks
        except pa.ArrowInvalid as error:
            if "Empty CSV file" not in str(error) and "cannot infer number of columns" not in str(error):
                raise _csv_fault(file, delimiter, header, error) from error
        finally:
            stream.is_enough = True
            with suppress(pa.ArrowInvalid):  # of a last row that is cut
                deque(blocks, maxlen=0)
            del blocks, stream
            is_let_go.wait(_LET_GO_S)  # Arrow's thread lets go of the file a moment after its last block


class _UntilEnough(io.RawIOBase):
    """A file that ends where nobody wants more of it: Arrow reads ahead on a thread, and an exit meanwhile aborts."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.is_enough = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return b"" if self.is_enough else bytes(self._stream.read(size))


def _csv_fault(file: SourceFile, delimiter: str, header: list[str], error: Exception) -> SplitError:
    """What is wrong with a CSV file that Arrow cannot read, with the row."""
    row = -1
    csv.field_size_limit(_MOST_FIELD)
    try:
        with _decoded(file) as stream:
            fields_of_rows = filter(None, csv.reader(_lines(stream), delimiter=delimiter, strict=True))
            for row, fields in enumerate(fields_of_rows, -1):
                if len(fields) != len(header):
                    said = f"has {len(fields)} fields, but the header names {len(header)}"
                    return SplitError(f"{file.path}, row {row}: {said}; it begins with {fields[0][:40]!r}")
                if not _is_utf8(fields):
                    return SplitError(f"{file.path}, row {row}: is not UTF-8; save it as UTF-8")
    except csv.Error as fault:
        return SplitError(f"{file.path}, row {row + 1}: is not CSV ({fault}); quote the field")
    return SplitError(f"{file.path}: is not CSV ({error}); quote its fields")


def _is_utf8(fields: list[str]) -> bool:
    return not any("\udc80" <= character <= "\udcff" for field in fields for character in field)


def _decoded(file: SourceFile) -> io.TextIOWrapper:
    return io.TextIOWrapper(file.open(compression="infer"), encoding="utf-8-sig", errors="surrogateescape", newline="")


def _lines(stream: io.TextIOWrapper) -> Iterator[str]:
    while line := stream.readline(_MOST_FIELD):
        yield line


_JSON_ENDINGS = tuple(f"{end}{packed}" for end in (".jsonl", ".ndjson") for packed in _COMPRESSED)


@source("jsonl", suffixes=_JSON_ENDINGS, has_types=False)
def read_json_lines(file: SourceFile) -> Iterator[pa.RecordBatch]:
    """A JSON object a line."""
    kinds: dict[str, str] = {}
    for start, block in islice(_blocks_of_lines(file), 1 if file.only_first else None):
        for name, kind in _json_kinds(file, block, start):
            widen(kinds, name, kind)
    kinds.update(dict.fromkeys(file.as_text.intersection(kinds), "text"))
    schema = pa.schema([(name, _ARROW[kinds[name]]) for name in file.wanted(list(kinds))])
    yield pa.RecordBatch.from_pylist([], schema)
    for start, block in islice(_blocks_of_lines(file), 1 if file.only_first else None):
        yield from _json_batches(file, block, start, kinds, schema)


def _blocks_of_lines(file: SourceFile) -> Iterator[tuple[int, bytes]]:
    """Whole lines of some megabytes, each block with the number of its first row."""
    start = 0
    with file.open(compression="infer") as stream:
        while block := stream.read(_BLOCK):
            block += stream.readline()
            if start == 0:
                block = block.removeprefix(b"\xef\xbb\xbf")
            yield start, block
            start += sum(1 for line in block.splitlines() if line.strip())


def _json_kinds(file: SourceFile, block: bytes, start: int) -> Iterable[tuple[str, str]]:
    """The kinds of a block's columns: by Arrow where it sees one for each, else value by value."""
    if _LONG_NUMBER.search(block) is None:
        try:
            schema = pa.json.read_json(io.BytesIO(block)).schema
        except pa.ArrowInvalid:
            pass
        else:
            found = {field.name: kind_of_type(field.type) for field in schema}
            if None not in found.values():
                return [(name, str(kind)) for name, kind in found.items()]
    rows = _json_rows(file, block, start)
    names = dict.fromkeys(name for row in rows for name in row)
    return [(name, kind_of_values([row.get(name) for row in rows])) for name in names]


def _json_batches(
    file: SourceFile, block: bytes, start: int, kinds: Mapping[str, str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        yield from pa.json.read_json(io.BytesIO(block), parse_options=options).select(schema.names).to_batches()
    except pa.ArrowInvalid:
        yield rows_as(_json_rows(file, block, start), kinds, schema.names)


def _json_rows(file: SourceFile, block: bytes, start: int) -> list[dict[str, Any]]:
    lines = [line for line in block.splitlines() if line.strip()]
    return [parse_object(line, f"{file.path}, row {start + number}") for number, line in enumerate(lines)]


def parse_object(data: bytes, place: str) -> dict[str, Any]:
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
