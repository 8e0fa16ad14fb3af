"""Parquet, Arrow and Feather files, and the folders that Hugging Face ``datasets`` saves."""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from congruence.tasks.data.locations import Location
from congruence.tasks.data.sources import SourceFile, batch_rows, source
from congruence.tasks.runtime.errors import SplitError

_BUFFERS = 2**24
"""Bytes read ahead in all columns together; more columns have smaller buffers."""
_ARROW_FILE = b"ARROW1"


def parquet_rows_from(file: SourceFile, row: int) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Batches from the beginning of the row group that holds a row, and the first row of it."""
    with _readable(file, "Parquet", "write the file again"), file.open() as stream:
        metadata = pq.read_metadata(stream)
    starts = [0, *accumulate(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))]
    group = max(0, bisect.bisect_right(starts, row) - 1)
    return starts[group], _parquet_batches(file, group)


@source("parquet", suffixes=(".parquet", ".pq"), rows_from=parquet_rows_from)
def read_parquet(file: SourceFile) -> Iterator[pa.RecordBatch]:
    """Row groups, in batches by the size that the footer says."""
    return _parquet_batches(file, 0)


def _parquet_batches(file: SourceFile, first_group: int) -> Iterator[pa.RecordBatch]:
    with _readable(file, "Parquet", "write the file again"), file.open() as stream:
        metadata = pq.read_metadata(stream)
        whole = metadata.schema.to_arrow_schema()
        names = file.wanted(whole.names)
        buffer = min(2**20, max(2**14, _BUFFERS // max(1, len(names))))
        parquet = pq.ParquetFile(stream, metadata=metadata, buffer_size=buffer, page_checksum_verification=True)
        yield pa.RecordBatch.from_pylist([], pa.schema([whole.field(name) for name in names]))
        for group in range(first_group, metadata.num_row_groups):
            rows = _batch_rows(metadata.row_group(group), names)
            for batch in parquet.iter_batches(rows, row_groups=[group], columns=names):
                yield batch.select(names).replace_schema_metadata(None)


def _batch_rows(group: Any, names: list[str]) -> int:
    """As many rows as memory allows by what the footer says that the columns take."""
    chunks, asked = [group.column(number) for number in range(group.num_columns)], set(names)
    size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] in asked)
    return batch_rows(size / max(1, group.num_rows))


def arrow_rows_from(file: SourceFile, row: int) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Batches from the one that holds a row, and the first row of it; mapped, so that those before cost nothing."""
    batches, start = _arrow_batches(file), 0
    for batch in batches:
        if start + batch.num_rows > row:
            return start, chain([batch], batches)
        start += batch.num_rows
    return start, iter(())


@source("arrow", suffixes=(".arrow", ".feather", ".ipc"), rows_from=arrow_rows_from)
def read_arrow(file: SourceFile) -> Iterator[pa.RecordBatch]:
    """The record batches of an Arrow file or stream; Feather is the former."""
    return _arrow_batches(file)


def _arrow_batches(file: SourceFile) -> Iterator[pa.RecordBatch]:
    with (
        _readable(file, "an Arrow file", "save the dataset again"),
        pa.memory_map(file.path) if file.location.is_local else file.open() as stream,
    ):
        is_file = stream.read(len(_ARROW_FILE)) == _ARROW_FILE
        stream.seek(0)
        reader = pa.ipc.open_file(stream) if is_file else pa.ipc.open_stream(stream)
        batches = (reader.get_batch(at) for at in range(reader.num_record_batches)) if is_file else iter(reader)
        names = file.wanted(reader.schema.names)
        for batch in chain([pa.RecordBatch.from_pylist([], reader.schema)], batches):
            chosen = batch.select(names).replace_schema_metadata(None)
            rows = batch_rows(chosen.nbytes / max(1, chosen.num_rows))
            yield from (chosen.slice(begin, rows) for begin in range(0, max(1, chosen.num_rows), rows))


def _is_saved_dataset(location: Location) -> bool:
    return any(location.filesystem.exists(location.child(name)) for name in ("state.json", "dataset_dict.json"))


def _dataset_files(location: Location) -> list[str]:
    """The Arrow files that a saved dataset names, in its own order."""
    filesystem, state_file = location.filesystem, location.child("state.json")
    if filesystem.exists(location.child("dataset_dict.json")):
        splits = json.loads(filesystem.cat_file(location.child("dataset_dict.json")))["splits"]
        raise SplitError(
            f"{location.uri}: holds the splits {', '.join(splits)}; append one, as in {location.uri}/{splits[0]}"
        )
    if not filesystem.exists(state_file):
        raise SplitError(f"{location.uri}: there is no saved dataset here; write it with dataset.save_to_disk")
    try:
        names = [str(item["filename"]) for item in json.loads(filesystem.cat_file(state_file))["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise SplitError(f"{state_file}: damaged ({error}); save the dataset again") from error
    outside = [name for name in names if "/" in name or "\\" in name or name == ".."]
    if outside:
        raise SplitError(f"{state_file}: names {outside[0]!r}, which is outside the folder")
    return [location.child(name) for name in names]


source("huggingface", is_here=_is_saved_dataset, paths=_dataset_files, rows_from=arrow_rows_from)(read_arrow)


@contextmanager
def _readable(file: SourceFile, form: str, remedy: str) -> Iterator[None]:
    """What Arrow says of a damaged file, with its name and the remedy; a network or a right that is missing passes."""
    try:
        yield
    except (ConnectionError, TimeoutError, PermissionError, FileNotFoundError):
        raise
    except (pa.ArrowInvalid, OSError) as error:
        raise SplitError(f"{file.path}: not readable as {form} ({error}); {remedy}") from error
