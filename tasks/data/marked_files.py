"""Text and tar files one after the other, read on from the known rows in them: none can be entered anywhere else."""

from __future__ import annotations

import bisect
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.layouts import FileLayout
from congruence.tasks.data.locations import Location
from congruence.tasks.data.tables import BATCH_ROWS, Table
from congruence.tasks.data.typing_rows import ColumnTypes, typed_batch

Row = tuple[str, Mapping[str, Any]]
"""Where in its file a row lies, in words, and its values."""


def observed(path: str, state: str, rows: Iterable[tuple[Sequence[int], Mapping[str, Any]]]) -> FileLayout:
    """The layout of a file by one pass over the place and the values of each row."""
    types, marks, count = ColumnTypes(), [], 0
    for place, values in rows:
        if count % BATCH_ROWS == 0:
            marks.append((count, *place))
        types.observe(values)
        count += 1
    return FileLayout(path, state, count, kinds=types.kinds, marks=marks)


class MarkedFiles(Table):
    """The rows of such files in the order of their paths."""

    def __init__(self, location: Location, layouts: Sequence[FileLayout]) -> None:
        self.location = location.uri
        self._filesystem = location.filesystem
        self._paths = [layout.path for layout in layouts]
        self.folder = location.folder_of(self._paths)
        self._marks: list[tuple[int, ...]] = []  # row of the split, file, and the place in it
        self.rows = 0
        for number, layout in enumerate(layouts):
            self._marks += [(self.rows + row, number, *place) for row, *place in layout.marks]
            self.rows += layout.rows

    def batches(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows in order, read on from the nearest known row before ``start``."""
        found = self._rows_from(start, columns)
        for begin in range(start, stop, BATCH_ROWS):
            rows = [values for _, values in islice(found, min(BATCH_ROWS, stop - begin))]
            if len(rows) < min(BATCH_ROWS, stop - begin):
                raise SplitError(f"{self.location}: has fewer rows than when it was opened; open the split again")
            yield typed_batch(rows, self.schema, columns)

    def place(self, row: int) -> str:
        where, _ = next(self._rows_from(row, ()))
        return f"{self._paths[self._mark(row)[1]]}, {where}"

    @abstractmethod
    def _read(self, path: str, place: Sequence[int], columns: Sequence[str]) -> Iterator[Row]:
        """The rows of a file from a place on, which begins with a byte; from the file's start where it is empty."""

    def _rows_from(self, row: int, columns: Sequence[str]) -> Iterator[Row]:
        first, number, *place = self._mark(row)
        yield from islice(self._read(self._paths[number], place, columns), row - first, None)
        for path in self._paths[number + 1 :]:
            yield from self._read(path, (), columns)

    def _mark(self, row: int) -> tuple[int, ...]:
        return self._marks[bisect.bisect_right(self._marks, row, key=lambda mark: mark[0]) - 1]
