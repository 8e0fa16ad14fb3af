"""A folder that Hugging Face ``datasets`` wrote with ``save_to_disk``: Arrow streams, read without the library."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.layouts import FileLayout
from congruence.tasks.data.locations import Location
from congruence.tasks.data.positions import Opened
from congruence.tasks.data.tables import BATCH_ROWS, FilesOfBatches, readable_as

_FILE_MAGIC = b"ARROW1"
_readable = partial(readable_as, "an Arrow file", remedy="save the dataset again")


class HuggingFaceTable(FilesOfBatches):
    """The rows of a saved dataset in its own order; mapped on a disk, where batches passed over cost nothing."""

    def __init__(self, location: Location, layouts: Sequence[FileLayout]) -> None:
        self._location = location
        super().__init__(location.uri, location.path, layouts)

    @staticmethod
    def paths(location: Location) -> list[str]:
        """The Arrow files that the dataset names."""
        return [location.child(name) for name in _data_files(location)]

    @staticmethod
    def describe(location: Location, path: str, state: str, _: Path) -> FileLayout:
        """The columns and the rows of each batch."""
        with _readable(path), _source(location, path) as source:
            schema, batches = _read(source)
            pieces = [batch.num_rows for batch in batches]
        return FileLayout(path, state, sum(pieces), schema.remove_metadata(), pieces=pieces)

    def _open(self, path: str, columns: Sequence[str], piece_rows: Sequence[int]) -> Opened:
        return _OpenedArrow(self._location, path, columns, piece_rows)


class _OpenedArrow(Opened):
    def __init__(self, location: Location, path: str, columns: Sequence[str], piece_rows: Sequence[int]) -> None:
        super().__init__(path, piece_rows)
        self._columns = list(columns)
        with _readable(path):
            self._source = _source(location, path)

    def batches_from(self, piece: int) -> Iterator[pa.RecordBatch]:
        """Record batches one after the other; a mapped file's are slices of it."""
        with _readable(self.path):
            self._source.seek(0)
            for batch in islice(_read(self._source)[1], piece, None):
                chosen = batch.select(self._columns)
                yield from (chosen.slice(begin, BATCH_ROWS) for begin in range(0, chosen.num_rows, BATCH_ROWS))

    def close(self) -> None:
        super().close()
        self._source.close()


def _source(location: Location, path: str) -> Any:
    return pa.memory_map(path) if location.is_local else location.filesystem.open(path, "rb")


def _read(source: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    is_file = source.read(len(_FILE_MAGIC)) == _FILE_MAGIC
    source.seek(0)
    if is_file:
        reader = pa.ipc.open_file(source)
        return reader.schema, (reader.get_batch(index) for index in range(reader.num_record_batches))
    stream = pa.ipc.open_stream(source)
    return stream.schema, iter(stream)


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
        raise SplitError(f"{location.uri}: there is no saved dataset here; write it with dataset.save_to_disk")
    try:
        state = json.loads(filesystem.cat_file(location.child("state.json")))
        names = [str(item["filename"]) for item in state["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise SplitError(f"{location.child('state.json')}: damaged ({error}); save the dataset again") from error
    outside = [name for name in names if "/" in name or "\\" in name or name == ".."]
    if outside:
        raise SplitError(f"{location.child('state.json')}: names {outside[0]!r}, which is outside the folder")
    return names
