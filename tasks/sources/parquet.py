"""Parquet: one file, a folder of files, or a glob."""

import bisect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from congruence.tasks.sources.errors import SplitError
from congruence.tasks.sources.locations import Location
from congruence.tasks.sources.tables import BATCH_ROWS, Table


class ParquetTable(Table):
    """The rows of Parquet files in the order of their paths."""

    def __init__(self, location: Location) -> None:
        self.location = location.uri
        self._filesystem = location.filesystem
        self._paths = location.files((".parquet", ".pq"))
        self.folder = location.path if location.is_folder() else self._filesystem._parent(self._paths[0])
        self._row_groups: list[list[int]] = []
        for number, path in enumerate(self._paths):
            with self._open(path) as file:
                metadata, schema = file.metadata, file.schema_arrow.remove_metadata()
                self._row_groups.append([metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)])
            if number == 0:
                self.schema = schema
            elif not schema.equals(self.schema):
                raise SplitError(f"{path}: {_difference(self.schema, schema, self._paths[0])}; write both files alike")
        self._starts = [0, *accumulate(sum(groups) for groups in self._row_groups)]
        self.rows = self._starts[-1]

    def batches(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows in order; at most one row group's columns are buffered at a time."""
        for number, path in enumerate(self._paths):
            first = self._starts[number]
            if first >= stop or self._starts[number + 1] <= start:
                continue
            with self._open(path) as file:
                for group, rows in enumerate(self._row_groups[number]):
                    if first < stop and first + rows > start:
                        yield from self._row_group(file, group, columns, start - first, stop - first)
                    first += rows

    def place(self, row: int) -> str:
        """The file and the row in it."""
        number = bisect.bisect_right(self._starts, row) - 1
        return f"{self._paths[number]}, row {row - self._starts[number]}"

    def files(self) -> list[str]:
        """The Parquet files."""
        return list(self._paths)

    @staticmethod
    def _row_group(
        file: pq.ParquetFile, group: int, columns: Sequence[str], start: int, stop: int
    ) -> Iterator[pa.RecordBatch]:
        position = 0
        for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=[group], columns=list(columns)):
            begin, end = max(0, start - position), min(batch.num_rows, stop - position)
            if begin < end:
                yield batch.slice(begin, end - begin).select(list(columns))
            position += batch.num_rows
            if position >= stop:
                return

    @contextmanager
    def _open(self, path: str) -> Iterator[pq.ParquetFile]:
        try:
            with self._filesystem.open(path, "rb") as stream:
                yield pq.ParquetFile(stream, pre_buffer=False, buffer_size=2**20)
        except (ConnectionError, TimeoutError, PermissionError):
            raise
        except (pa.ArrowInvalid, OSError) as error:
            raise SplitError(f"{path}: not readable as Parquet ({error}); write the file again") from error


def _difference(expected: Any, found: Any, first: str) -> str:
    for field in expected:
        if field.name not in found.names:
            return f"lacks column {field.name!r} of {first}"
        if found.field(field.name).type != field.type:
            return f"column {field.name!r} is {found.field(field.name).type}, but {field.type} in {first}"
    extra = [name for name in found.names if name not in expected.names]
    return f"has the column {extra[0]!r} that {first} lacks" if extra else f"orders its columns unlike {first}"
