"""CSV and JSON-lines manifests: a table as text, with images beside it or features in it."""

import csv
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.layouts import FileLayout, joined_kinds
from congruence.tasks.data.locations import Location
from congruence.tasks.data.marked_files import MarkedFiles, observed
from congruence.tasks.data.tables import BATCH_ROWS
from congruence.tasks.data.typing_rows import ColumnTypes, RawText, parse_object, typed_batch

_CSV_FIELD_LIMIT = 2**24
_Record = tuple[int, int, dict[str, Any]]
"""Byte, line and values of a row."""


class ManifestTable(MarkedFiles):
    """The rows of text files in the order of their paths. One pass over each file finds types and where rows begin."""

    def __init__(self, location: Location, layouts: Sequence[FileLayout]) -> None:
        super().__init__(location, layouts)
        self.schema = ColumnTypes(joined_kinds(layouts)).schema()

    @classmethod
    def describe(cls, location: Location, path: str, state: str, _: Path) -> FileLayout:
        """One pass over the file."""
        records = cls._records(location.filesystem, path)
        return observed(path, state, (((offset, line), values) for offset, line, values in records))

    def batches(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows in order, parsed from the nearest known row before ``start``."""
        records = self._rows_from(start, self._read)
        for begin in range(start, stop, BATCH_ROWS):
            rows = [values for _, _, values in islice(records, min(BATCH_ROWS, stop - begin))]
            if len(rows) < min(BATCH_ROWS, stop - begin):
                raise SplitError(f"{self.location}: has fewer rows than when it was opened; open the split again")
            yield typed_batch(rows, self.schema, columns)

    def place(self, row: int) -> str:
        """The file and the line in it."""
        _, line, _ = next(self._rows_from(row, self._read))
        return f"{self._path_of(row)}, line {line + 1}"

    def _read(self, path: str, place: Sequence[int]) -> Iterator[_Record]:
        return self._records(self._filesystem, path, *place)

    @staticmethod
    @abstractmethod
    def _records(filesystem: Any, path: str, offset: int = 0, line: int = 0) -> Iterator[_Record]:
        """The rows of a file; ``offset`` and ``line`` say where one begins, 0 the file."""


class JsonLinesTable(ManifestTable):
    """A JSON object a line."""

    @staticmethod
    def _records(filesystem: Any, path: str, offset: int = 0, line: int = 0) -> Iterator[_Record]:
        with filesystem.open(path, "rb") as stream:
            lines = _Lines(stream, path)
            lines.seek(offset, line)
            yield from _json_rows(lines, path)


class CsvTable(ManifestTable):
    """Fields under a header."""

    @staticmethod
    def _records(filesystem: Any, path: str, offset: int = 0, line: int = 0) -> Iterator[_Record]:
        with filesystem.open(path, "rb") as stream:
            lines = _Lines(stream, path)
            header = _csv_header(lines, path)
            if offset:
                lines.seek(offset, line)
            yield from _csv_rows(lines, header, path)


class _Lines:
    """The decoded lines of a stream, with the byte and the line number where the next one begins."""

    def __init__(self, stream: Any, path: str) -> None:
        self._stream = stream
        self._path = path
        self.offset = 0
        self.number = 0

    def seek(self, offset: int, number: int) -> None:
        self._stream.seek(offset)
        self.offset, self.number = offset, number

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        raw = self._stream.readline()
        if not raw:
            raise StopIteration
        try:
            text = raw.decode("utf-8-sig" if self.offset == 0 else "utf-8")
        except UnicodeDecodeError as error:
            raise SplitError(
                f"{self._path}, line {self.number + 1}: is not UTF-8 ({error}); save it as UTF-8"
            ) from error
        self.offset += len(raw)
        self.number += 1
        return str(text)


def _csv_reader(lines: _Lines, path: str) -> Iterator[list[str]]:
    csv.field_size_limit(_CSV_FIELD_LIMIT)
    try:
        yield from csv.reader(lines, strict=True)
    except csv.Error as error:
        raise SplitError(f"{path}, line {lines.number}: is not CSV ({error}); quote the field") from error


def _csv_header(lines: _Lines, path: str) -> list[str]:
    header = next(_csv_reader(lines, path), [])
    repeated = sorted({name for name in header if header.count(name) > 1})
    if not header or repeated:
        what = f"names the column {repeated[0]!r} twice" if repeated else "is empty"
        raise SplitError(f"{path}: {what}; the first line names each column once")
    return header


def _csv_rows(lines: _Lines, header: list[str], path: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    offset, number = lines.offset, lines.number
    for fields in _csv_reader(lines, path):
        if fields:
            if len(fields) != len(header):
                raise SplitError(
                    f"{path}, line {number + 1}: has {len(fields)} fields, but the header names {len(header)}"
                )
            yield offset, number, {name: RawText(field) for name, field in zip(header, fields, strict=True)}
        offset, number = lines.offset, lines.number


def _json_rows(lines: _Lines, path: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    offset, number = lines.offset, lines.number
    for text in lines:
        if text.strip():
            yield offset, number, parse_object(text, f"{path}, line {number + 1}")
        offset, number = lines.offset, lines.number
