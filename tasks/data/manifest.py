"""CSV and JSON-lines manifests: a table as text, with images beside it or features in it."""

import csv
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.layouts import FileLayout, joined_kinds
from congruence.tasks.data.locations import Location
from congruence.tasks.data.marked_files import MarkedFiles, Row, observed
from congruence.tasks.data.typing_rows import ColumnTypes, RawText, parse_object

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

    def _read(self, path: str, place: Sequence[int], columns: Sequence[str]) -> Iterator[Row]:  # noqa: ARG002
        return ((f"line {line + 1}", values) for _, line, values in self._records(self._filesystem, path, *place))

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


def _csv_rows(lines: _Lines, header: list[str], path: str) -> Iterator[_Record]:
    offset, number = lines.offset, lines.number
    for fields in _csv_reader(lines, path):
        if fields:
            if len(fields) != len(header):
                raise SplitError(
                    f"{path}, line {number + 1}: has {len(fields)} fields, but the header names {len(header)}"
                )
            yield offset, number, {name: RawText(field) for name, field in zip(header, fields, strict=True)}
        offset, number = lines.offset, lines.number


def _json_rows(lines: _Lines, path: str) -> Iterator[_Record]:
    offset, number = lines.offset, lines.number
    for text in lines:
        if text.strip():
            yield offset, number, parse_object(text, f"{path}, line {number + 1}")
        offset, number = lines.offset, lines.number
