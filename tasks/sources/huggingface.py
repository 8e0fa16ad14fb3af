"""A folder that Hugging Face ``datasets`` wrote with ``save_to_disk``: Arrow streams, read without the library."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import pyarrow as pa

from congruence.tasks.sources.errors import SplitError
from congruence.tasks.sources.locations import Location
from congruence.tasks.sources.tables import FilesOfBatches, sliced

_FILE_MAGIC = b"ARROW1"
_Opened: TypeAlias = tuple[pa.Schema, Iterator[pa.RecordBatch]]


class HuggingFaceTable(FilesOfBatches):
    """The rows of a saved dataset in its own order; mapped on a disk, where batches passed over cost nothing."""

    def __init__(self, location: Location) -> None:
        self._filesystem = location.filesystem
        self._local = location.is_local
        super().__init__(location.uri, location.path, [location.child(name) for name in _data_files(location)])

    def _describe(self, file: _Opened) -> tuple[pa.Schema, list[int]]:
        schema, batches = file
        return schema.remove_metadata(), [batch.num_rows for batch in batches]

    def _in_order(self, file: _Opened) -> Iterator[pa.RecordBatch]:
        return file[1]

    def _read(self, piece: pa.RecordBatch, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        return sliced(piece.select(list(columns)), start, stop)

    @contextmanager
    def _open(self, path: str) -> Iterator[_Opened]:
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
