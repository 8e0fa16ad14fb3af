"""A folder that Hugging Face ``datasets`` wrote with ``save_to_disk``: Arrow streams, read without the library."""

import bisect
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import pyarrow as pa

from congruence.tasks.sources.errors import SplitError
from congruence.tasks.sources.locations import Location
from congruence.tasks.sources.tables import Table, sliced

_FILE_MAGIC = b"ARROW1"


class HuggingFaceTable(Table):
    """The rows of a saved dataset in its own order."""

    def __init__(self, location: Location) -> None:
        self.location = location.uri
        self.folder = location.path
        self._filesystem = location.filesystem
        self._local = location.is_local
        self._paths = [location.child(name) for name in _data_files(location)]
        self._batch_rows: list[list[int]] = []
        for number, path in enumerate(self._paths):
            with self._record_batches(path) as (schema, batches):
                self._batch_rows.append([batch.num_rows for batch in batches])
            if number == 0:
                self.schema = schema.remove_metadata()
            elif not schema.remove_metadata().equals(self.schema):
                raise SplitError(f"{path}: its columns differ from those of {self._paths[0]}; save the dataset again")
        self._starts = [0, *accumulate(sum(rows) for rows in self._batch_rows)]
        self.rows = self._starts[-1]

    def batches(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows in order; on a disk the files are mapped, so that skipped batches cost nothing."""
        for number, path in enumerate(self._paths):
            first = self._starts[number]
            if first >= stop or self._starts[number + 1] <= start:
                continue
            with self._record_batches(path) as (_, batches):
                for batch in batches:
                    begin, end = max(0, start - first), min(batch.num_rows, stop - first)
                    if begin < end:
                        yield from sliced(batch.select(list(columns)), begin, end)
                    first += batch.num_rows
                    if first >= stop:
                        break

    def place(self, row: int) -> str:
        """The file and the row in it."""
        number = bisect.bisect_right(self._starts, row) - 1
        return f"{self._paths[number]}, row {row - self._starts[number]}"

    def files(self) -> list[str]:
        """The Arrow files."""
        return list(self._paths)

    @contextmanager
    def _record_batches(self, path: str) -> Iterator[tuple[Any, Iterator[pa.RecordBatch]]]:
        try:
            with pa.memory_map(path) if self._local else self._filesystem.open(path, "rb") as source:
                is_file = source.read(len(_FILE_MAGIC)) == _FILE_MAGIC
                source.seek(0)
                if is_file:
                    reader = pa.ipc.open_file(source)
                    yield reader.schema, (reader.get_batch(index) for index in range(reader.num_record_batches))
                else:
                    stream = pa.ipc.open_stream(source)
                    yield stream.schema, iter(stream)
        except (ConnectionError, TimeoutError, PermissionError):
            raise
        except (pa.ArrowInvalid, OSError) as error:
            raise SplitError(f"{path}: not readable as an Arrow file ({error}); save the dataset again") from error


def is_saved_dataset(location: Location) -> bool:
    """Whether ``datasets`` wrote the folder."""
    return any(location.filesystem.exists(location.child(name)) for name in ("state.json", "dataset_dict.json"))


def _data_files(location: Location) -> list[str]:
    filesystem = location.filesystem
    if filesystem.exists(location.child("dataset_dict.json")):
        splits = json.loads(filesystem.cat_file(location.child("dataset_dict.json")))["splits"]
        raise SplitError(
            f"{location.uri}: holds the splits {', '.join(splits)}; append one, as in {location.uri}/{splits[0]}"
        )
    if not filesystem.exists(location.child("state.json")):
        raise SplitError(f"{location.uri}: no saved dataset lies here; write it with dataset.save_to_disk")
    try:
        state = json.loads(filesystem.cat_file(location.child("state.json")))
        names = [str(item["filename"]) for item in state["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise SplitError(f"{location.child('state.json')}: damaged ({error}); save the dataset again") from error
    outside = [name for name in names if "/" in name or "\\" in name or name == ".."]
    if outside:
        raise SplitError(f"{location.child('state.json')}: names {outside[0]!r}, which lies outside of the folder")
    return names
