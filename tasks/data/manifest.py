"""CSV and JSON-lines manifests: a table as text, with images beside it or features in it."""

import bisect
import csv
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.files import file_state
from congruence.tasks.data.layouts import FileLayout, joined_kinds, positions_of_marks
from congruence.tasks.data.locations import Location
from congruence.tasks.data.tables import BATCH_ROWS, Table
from congruence.tasks.data.typing_rows import ColumnTypes, RawText, parse_object, typed_batch

_CSV_FIELD_LIMIT = 2**24


class ManifestTable(Table):
    """The rows of text files in the order of their paths. One pass over each file finds types and where rows begin."""

    def __init__(self, location: Location, layouts: Sequence[FileLayout], suffix: str) -> None:
        self.location = location.uri
        self._filesystem = location.filesystem
        self._is_csv = suffix == ".csv"
        self._paths = [layout.path for layout in layouts]
        self.folder = location.folder_of(self._paths)
        self._marks: list[tuple[int, int, int, int]] = []  # row of the split, file, byte, line
        self.rows = 0
        for number, layout in enumerate(layouts):
            self._marks += [(self.rows + row, number, offset, line) for row, offset, line in layout.marks]
            self.rows += layout.rows
        self.schema = ColumnTypes(joined_kinds(layouts)).schema()

    @staticmethod
    def paths(location: Location, suffix: str) -> list[str]:
        """The manifests."""
        return location.files((suffix,))

    @staticmethod
    def describe(location: Location, path: str, suffix: str) -> FileLayout:
        """One pass over the file."""
        state = file_state(location.filesystem, path, location.is_local)
        types, marks, rows = ColumnTypes(), [], 0
        for offset, line, values in _records(location.filesystem, path, suffix == ".csv", 0, 0):
            if rows % BATCH_ROWS == 0:
                marks.append((rows, offset, line))
            types.observe(values)
            rows += 1
        return FileLayout(path, state, rows, kinds=types.kinds, marks=marks)

    def batches(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows in order, parsed from the nearest known row before ``start``."""
        records = self._from(start)
        for begin in range(start, stop, BATCH_ROWS):
            rows = list(islice(records, min(BATCH_ROWS, stop - begin)))
            if len(rows) < min(BATCH_ROWS, stop - begin):
                raise SplitError(f"{self.location}: has fewer rows than when it was opened; open the split again")
            yield typed_batch(rows, self.schema, columns)

    def place(self, row: int) -> str:
        """The file and the line in it."""
        _, number, offset, line = self._mark(row)
        distance = row - self._mark(row)[0]
        for _, found, _ in islice(self._records(number, offset, line), distance, distance + 1):
            line = found
        return f"{self._paths[number]}, line {line + 1}"

    def positions(self) -> npt.NDArray[np.int64]:
        """The byte of the nearest known row before."""
        return positions_of_marks([(mark[0], mark[2]) for mark in self._marks], self.rows)

    def _mark(self, row: int) -> tuple[int, int, int, int]:
        return self._marks[bisect.bisect_right(self._marks, (row, len(self._paths), 0, 0)) - 1]

    def _from(self, row: int) -> Iterator[dict[str, Any]]:
        first, number, offset, line = self._mark(row)
        skip = row - first
        while number < len(self._paths):
            records = islice(self._records(number, offset, line), skip, None)
            yield from (values for _, _, values in records)
            number, offset, line, skip = number + 1, 0, 0, 0

    def _records(self, number: int, offset: int, line: int) -> Iterator[tuple[int, int, dict[str, Any]]]:
        return _records(self._filesystem, self._paths[number], self._is_csv, offset, line)


def _records(
    filesystem: Any, path: str, is_csv: bool, offset: int, line: int
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Byte, line and values of each row of a file; ``offset`` and ``line`` say where a row begins, 0 the file."""
    with filesystem.open(path, "rb") as stream:
        lines = _Lines(stream, path)
        header = _csv_header(lines, path) if is_csv else []
        if offset:
            lines.seek(offset, line)
        yield from _csv_rows(lines, header, path) if is_csv else _json_rows(lines, path)


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
