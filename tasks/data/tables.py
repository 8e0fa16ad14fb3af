"""What every format of a split offers: typed columns, a number of rows, and any range of rows as a stream."""

import bisect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any

import pyarrow as pa

from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.layouts import FileLayout
from congruence.tasks.data.positions import Opened, Positions

BATCH_ROWS = 256
"""Rows that a stream holds at once where nothing says how large they are: with images of 100 kB some 25 MB."""
BATCH_BYTES = 2**24
"""Bytes that a stream holds at once where a row's size is known."""
MOST_BATCH_ROWS = 2**16


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
        """Rows ``start`` to ``stop`` of ``columns`` in order, some at a time, bounded in memory."""

    @abstractmethod
    def place(self, row: int) -> str:
        """The file and the row in it, as a person would look it up."""


class FilesOfBatches(Table):
    """Files of alike columns one after the other, each a sequence of pieces (row groups, record batches) of known rows.

    A format says how a file is opened, what its pieces are, and how the rows of one are read. The place where a stream
    ended is kept open for a while (see Positions): who reads on from there decodes nothing twice.
    """

    def __init__(self, location: str, folder: str, layouts: Sequence[FileLayout]) -> None:
        self.location = location
        self.folder = folder
        self._paths = [layout.path for layout in layouts]
        self._states = [layout.state for layout in layouts]
        self._piece_rows = [list(layout.pieces) for layout in layouts]
        for layout in layouts:
            assert layout.schema is not None
            if layout is layouts[0]:
                self.schema = layout.schema
            elif not layout.schema.equals(self.schema):
                difference = _difference(self.schema, layout.schema, self._paths[0])
                raise SplitError(f"{layout.path}: {difference}; write both files alike")
        self._starts = [0, *accumulate(layout.rows for layout in layouts)]
        self.rows = self._starts[-1]

    @abstractmethod
    def _open(self, path: str, columns: Sequence[str], piece_rows: Sequence[int]) -> Opened:
        """The file, opened for reading some columns; raises SplitError where it is damaged, while it is read too."""

    def _opened(self, path: str, columns: Sequence[str], piece_rows: Sequence[int]) -> Opened:
        try:
            return self._open(path, columns, piece_rows)
        except FileNotFoundError as error:
            raise SplitError(f"{path}: is gone since the split was opened; put it back, and run again") from error

    def batches(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows in order; pieces outside of the range are passed over, and one batch held at a time."""
        for number, path in enumerate(self._paths):
            first = self._starts[number]
            if first >= stop or self._starts[number + 1] <= start:
                continue
            begin, end = max(0, start - first), min(self._starts[number + 1], stop) - first
            pieces = self._piece_rows[number]
            kept = Positions.of_this_process()
            identity = (type(self).__name__, path, self._states[number], tuple(columns))
            with kept.borrowed(identity, begin, partial(self._opened, path, columns, pieces)) as opened:
                yield from opened.rows(begin, end)

    def place(self, row: int) -> str:
        number = bisect.bisect_right(self._starts, row) - 1
        return f"{self._paths[number]}, row {row - self._starts[number]}"

    @property
    def paths_of_files(self) -> list[str]:
        """The files in order."""
        return list(self._paths)


@contextmanager
def readable_as(form: str, path: str, remedy: str) -> Iterator[None]:
    """What Arrow says of a damaged file, with its name and the remedy; a network or a right that is missing passes."""
    try:
        yield
    except (ConnectionError, TimeoutError, PermissionError):
        raise
    except (pa.ArrowInvalid, OSError) as error:
        raise SplitError(f"{path}: not readable as {form} ({error}); {remedy}") from error


def _difference(expected: Any, found: Any, first: str) -> str:
    for field in expected:
        if field.name not in found.names:
            return f"lacks column {field.name!r} of {first}"
        if found.field(field.name).type != field.type:
            return f"column {field.name!r} is {found.field(field.name).type}, but {field.type} in {first}"
    extra = [name for name in found.names if name not in expected.names]
    return f"has the column {extra[0]!r} that {first} lacks" if extra else f"orders its columns unlike {first}"
