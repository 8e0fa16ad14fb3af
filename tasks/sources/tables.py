"""What every format of a split offers: typed columns, a number of rows, and any range of rows as a stream."""

import bisect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any

import pyarrow as pa

from congruence.tasks.sources.errors import SplitError

BATCH_ROWS = 256
"""Rows that a stream holds at once: with images of 100 kB some 25 MB."""


class Table(ABC):
    """Rows in a fixed order. Holds no data and no open file, so that it travels to workers cheaply.

    ``schema`` gives the columns and their Arrow types, ``rows`` their number, ``folder`` the path that relative
    image paths start from when the settings name no other.
    """

    location: str
    folder: str
    schema: pa.Schema
    rows: int
    key: str | None = None
    """The column that names the rows where the format itself has one."""

    @abstractmethod
    def batches(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows ``start`` to ``stop`` of ``columns`` in order, at most BATCH_ROWS at a time."""

    @abstractmethod
    def place(self, row: int) -> str:
        """The file and the row in it, as a person would look it up."""

    @abstractmethod
    def files(self) -> list[str]:
        """The paths of all files that hold the table: their state tells whether anything changed."""


class FilesOfBatches(Table):
    """Files of alike columns one after the other, each a sequence of pieces (row groups, record batches) of known rows.

    A format says how a file is opened, what its pieces are, and how the rows of one are read.
    """

    def __init__(self, location: str, folder: str, paths: Sequence[str]) -> None:
        self.location = location
        self.folder = folder
        self._paths = list(paths)
        self._piece_rows: list[list[int]] = []
        for number, path in enumerate(self._paths):
            with self._open(path) as file:
                schema, rows = self._describe(file)
            self._piece_rows.append(rows)
            if number == 0:
                self.schema = schema
            elif not schema.equals(self.schema):
                raise SplitError(f"{path}: {_difference(self.schema, schema, self._paths[0])}; write both files alike")
        self._starts = [0, *accumulate(sum(rows) for rows in self._piece_rows)]
        self.rows = self._starts[-1]

    @abstractmethod
    def _open(self, path: str) -> AbstractContextManager[Any]:
        """The file, opened; raises SplitError where it is damaged, in the body of the ``with`` too."""

    @abstractmethod
    def _describe(self, file: Any) -> tuple[pa.Schema, list[int]]:
        """The columns of an opened file, without metadata, and the rows of each of its pieces."""

    @abstractmethod
    def _in_order(self, file: Any) -> Iterator[Any]:
        """The pieces of an opened file, which may be read only from first to last."""

    @abstractmethod
    def _read(self, piece: Any, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows ``start`` to ``stop``, counted within a piece, at most BATCH_ROWS at a time."""

    def batches(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows in order; pieces outside of the range are passed over, and one piece's columns held at a time."""
        for number, path in enumerate(self._paths):
            first = self._starts[number]
            if first >= stop or self._starts[number + 1] <= start:
                continue
            with self._open(path) as file:
                for piece, rows in zip(self._in_order(file), self._piece_rows[number], strict=False):
                    begin, end = max(0, start - first), min(rows, stop - first)
                    if begin < end:
                        yield from self._read(piece, columns, begin, end)
                    first += rows
                    if first >= stop:
                        break
            if first < min(stop, self._starts[number + 1]):
                raise SplitError(f"{path}: has fewer rows than when it was opened; open the split again")

    def place(self, row: int) -> str:
        """The file and the row in it."""
        number = bisect.bisect_right(self._starts, row) - 1
        return f"{self._paths[number]}, row {row - self._starts[number]}"

    def files(self) -> list[str]:
        """The files, in order."""
        return list(self._paths)


def _difference(expected: Any, found: Any, first: str) -> str:
    for field in expected:
        if field.name not in found.names:
            return f"lacks column {field.name!r} of {first}"
        if found.field(field.name).type != field.type:
            return f"column {field.name!r} is {found.field(field.name).type}, but {field.type} in {first}"
    extra = [name for name in found.names if name not in expected.names]
    return f"has the column {extra[0]!r} that {first} lacks" if extra else f"orders its columns unlike {first}"


def sliced(batch: pa.RecordBatch, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Rows ``start`` to ``stop`` of ``batch`` in pieces of at most BATCH_ROWS."""
    for begin in range(start, stop, BATCH_ROWS):
        yield batch.slice(begin, min(BATCH_ROWS, stop - begin))
