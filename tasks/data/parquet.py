"""Parquet: one file, a folder of files, or a glob."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from congruence.tasks.data.layouts import FileLayout
from congruence.tasks.data.locations import Location
from congruence.tasks.data.positions import Opened
from congruence.tasks.data.tables import BATCH_BYTES, BATCH_ROWS, MOST_BATCH_ROWS, FilesOfBatches, readable_as

_BUFFERS = 2**24
"""Bytes read ahead in all columns together; more columns have smaller buffers."""
_readable = partial(readable_as, "Parquet", remedy="write the file again")


class ParquetTable(FilesOfBatches):
    """The rows of Parquet files in the order of their paths; the pieces are row groups."""

    def __init__(self, location: Location, layouts: Sequence[FileLayout]) -> None:
        self._filesystem = location.filesystem
        super().__init__(location.uri, location.folder_of([layout.path for layout in layouts]), layouts)

    @staticmethod
    def describe(location: Location, path: str, state: str, _: Path) -> FileLayout:
        """What the file's footer says."""
        with _readable(path), location.filesystem.open(path, "rb") as stream:
            file = pq.ParquetFile(stream, pre_buffer=False)
            metadata = file.metadata
            groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            return FileLayout(path, state, sum(groups), file.schema_arrow.remove_metadata(), pieces=groups)

    def _open(self, path: str, columns: Sequence[str], piece_rows: Sequence[int]) -> Opened:
        return _OpenedParquet(self._filesystem, path, columns, piece_rows)


class _OpenedParquet(Opened):
    def __init__(self, filesystem: Any, path: str, columns: Sequence[str], piece_rows: Sequence[int]) -> None:
        super().__init__(path, piece_rows)
        self._columns = list(columns)
        self._source = filesystem.open(path, "rb")
        try:
            with _readable(path):
                buffer = min(2**20, max(2**14, _BUFFERS // max(1, len(columns))))
                self._file = pq.ParquetFile(
                    self._source, pre_buffer=False, buffer_size=buffer, page_checksum_verification=True
                )
        except BaseException:
            self._source.close()
            raise
        metadata = self._file.metadata
        groups = range(metadata.num_row_groups)
        self.held_bytes = max((sum(self._last_pages(metadata.row_group(group))) for group in groups), default=0)

    def batches_from(self, piece: int) -> Iterator[pa.RecordBatch]:
        """Row groups one after the other, none held whole."""
        with _readable(self.path):
            for group in range(piece, self._file.metadata.num_row_groups):
                rows = self._batch_rows(group)
                for batch in self._file.iter_batches(batch_size=rows, row_groups=[group], columns=self._columns):
                    yield batch.select(self._columns)

    def close(self) -> None:
        super().close()
        self._file.close()
        self._source.close()

    def _batch_rows(self, group: int) -> int:
        """As many rows as memory allows by what the footer says that the columns take."""
        metadata = self._file.metadata.row_group(group)
        fitting: int = BATCH_BYTES * metadata.num_rows // max(1, sum(self._sizes(metadata)))
        return max(BATCH_ROWS, min(MOST_BATCH_ROWS, fitting))

    def _last_pages(self, group: Any) -> list[int]:
        """Bytes of each column's dictionary and of its page that is being read, decompressed: 1 MiB each at most."""
        return [min(size, 2**21) for size in self._sizes(group)]

    def _sizes(self, group: Any) -> list[int]:
        """Bytes of each column that is read, decompressed."""
        chunks = [group.column(number) for number in range(group.num_columns)]
        return [c.total_uncompressed_size for c in chunks if c.path_in_schema.split(".")[0] in self._columns]
