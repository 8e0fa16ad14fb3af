"""Parquet: one file, a folder of files, or a glob."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from congruence.tasks.sources.errors import SplitError
from congruence.tasks.sources.locations import Location
from congruence.tasks.sources.tables import BATCH_ROWS, FilesOfBatches


class ParquetTable(FilesOfBatches):
    """The rows of Parquet files in the order of their paths; the pieces are row groups."""

    def __init__(self, location: Location) -> None:
        self._filesystem = location.filesystem
        paths = location.files((".parquet", ".pq"))
        folder = location.path if location.is_folder() else self._filesystem._parent(paths[0])
        super().__init__(location.uri, folder, paths)

    def _describe(self, file: pq.ParquetFile) -> tuple[pa.Schema, list[int]]:
        metadata = file.metadata
        groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        return file.schema_arrow.remove_metadata(), groups

    def _in_order(self, file: pq.ParquetFile) -> Iterator[tuple[pq.ParquetFile, int]]:
        return ((file, group) for group in range(file.metadata.num_row_groups))

    def _read(
        self, piece: tuple[pq.ParquetFile, int], columns: Sequence[str], start: int, stop: int
    ) -> Iterator[pa.RecordBatch]:
        file, group = piece
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
