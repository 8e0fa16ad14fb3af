"""Chosen rows of stored predictions as Parquet files, each a split: see ``tasks.data.stored``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from congruence.tasks.data.columns import needed_columns
from congruence.tasks.data.locations import ContentDigest, combine
from congruence.tasks.data.settings import SplitSettings, StoredColumns
from congruence.tasks.data.sources import SplitSource
from congruence.tasks.data.stored import StoredPart, StoredTable, batches_of

_DIGESTS = b"congruence"


def write_parts(
    table: StoredTable,
    parts: Sequence[StoredPart],
    addresses: Mapping[str, str],
    folder: str,
    options: Mapping[str, Any],
) -> list[SplitSettings]:
    """The parts as splits in ``folder``, written where they are not there yet, in one reading of the table.

    Args:
        table: the rows.
        parts: of it.
        addresses: of the versions by their names.
        folder: a path, or an address of any file system that fsspec knows.
        options: of the folder's file system.

    Raises:
        SplitError: a file of the table changed since it was read.
    """
    filesystem, root = fsspec.core.url_to_fs(folder, **options)
    filesystem.makedirs(root, exist_ok=True)
    writers = [_Writer(table, part, f"{root}/{_part_name(table, part)}.parquet", addresses) for part in parts]
    lacking = [writer for writer in writers if not filesystem.exists(writer.path)]
    if lacking:
        _copy(table, lacking, filesystem)
    found = []
    for part, writer in zip(parts, writers, strict=True):
        with filesystem.open(writer.path, "rb") as stream:
            said = pq.read_metadata(stream).metadata
        stored = {
            addresses[name]: StoredColumns(columns=writer.columns[name], digest=said[_key_of(number)].decode())
            for number, name in enumerate(part.rows)
        }
        split = table.source.split
        root_of_images = split.image_root
        if split.input_kind == "image" and root_of_images is None:
            root_of_images = SplitSource.of(split).location.folder_of([table.files[0][0]])
        at = {"name": part.name, "uri": f"{folder.rstrip('/')}/{writer.path.rpartition('/')[2]}", "format": "parquet"}
        dates = {"since": part.since, "until": part.until, "last": None}
        more = {"stored": stored, "storage_options": dict(options), "image_root": root_of_images}
        found.append(split.model_copy(update={**at, **dates, **more}))
    return found


class _Writer:
    """The file of one part while it is written."""

    def __init__(self, table: StoredTable, part: StoredPart, path: str, addresses: Mapping[str, str]) -> None:
        self.path = path
        self.first, *self.others = part.rows
        self.rows, self.part, self.table = part.rows[self.first], part, table
        self.kept = _kept_columns(table)
        self.columns = {
            name: {f"{addresses[name]} {column}": column for column in table.source.predictions} for name in part.rows
        }
        self.digests = {name: ContentDigest() for name in part.rows}
        self.gathered: dict[str, list[pa.RecordBatch]] = {name: [] for name in self.others}
        self.file: Any = None

    def gather(self, batch: pa.RecordBatch, start: int) -> None:
        """Take the predictions of the other versions out of rows of the table that begin with ``start``."""
        for name in self.others:
            own = np.sort(self.part.rows[name])
            inside = own[np.searchsorted(own, start) : np.searchsorted(own, start + batch.num_rows)] - start
            if len(inside):
                self.gathered[name].append(batch.select(list(self.table.source.predictions)).take(pa.array(inside)))

    def in_order(self) -> None:
        """Put what was gathered into the order of the first version's rows."""
        self.beside = {
            name: pa.Table.from_batches(parts)
            .combine_chunks()
            .take(pa.array(np.searchsorted(np.sort(self.part.rows[name]), self.part.rows[name])))
            for name, parts in self.gathered.items()
        }
        self.gathered = {}

    def write(self, batch: pa.RecordBatch, start: int, stream: Any) -> None:
        """Copy the chosen ones of some rows of the table."""
        first, last = np.searchsorted(self.rows, [start, start + batch.num_rows])
        if first == last:
            return
        source = self.table.source
        chosen = batch.take(pa.array(self.rows[first:last] - start))
        columns = {name: chosen.column(name) for name in self.kept}
        for number, name in enumerate(source.split.target_columns):
            columns[name] = pa.array(self.table.labels[self.rows[first:last], number])
        for name in self.part.rows:
            held = chosen if name == self.first else self.beside[name].slice(first, last - first).combine_chunks()
            for stored, column in self.columns[name].items():
                values = held.column(column)
                values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
                self.digests[name].add_column(values)
                columns[stored] = values
        made = pa.table(columns)
        if self.file is None:
            self.file = pq.ParquetWriter(stream, made.schema, compression="lz4")
        self.file.write_table(made.cast(self.file.schema))

    def close(self) -> None:
        """End the file with what tells its predictions from others."""
        numbered = enumerate(self.digests.values())
        self.file.add_key_value_metadata(
            {_key_of(number).decode(): combine([each.digest()]) for number, each in numbered}
        )
        self.file.close()


def _copy(table: StoredTable, writers: Sequence[_Writer], filesystem: Any) -> None:
    """Two readings where versions share rows: of the predictions that are brought to a row of another version first."""
    source, read = table.source, SplitSource.of(table.source.split)
    names = list(dict.fromkeys([*_kept_columns(table), *source.predictions]))
    if any(writer.others for writer in writers):
        for start, batch in _batches(table, read, source.predictions):
            for writer in writers:
                writer.gather(batch, start)
    for writer in writers:
        writer.in_order()
    streams = [filesystem.open(f"{writer.path}.partial", "wb") for writer in writers]
    for start, batch in _batches(table, read, names):
        for writer, stream in zip(writers, streams, strict=True):
            writer.write(batch, start, stream)
    for writer, stream in zip(writers, streams, strict=True):
        writer.close()
        stream.close()
        filesystem.mv(f"{writer.path}.partial", writer.path)


def _kept_columns(table: StoredTable) -> list[str]:
    """The columns that are copied as they are: all that the split names, but labels."""
    split = table.source.split
    return [name for name in needed_columns(split, SplitSource.of(split)) if name not in split.target_columns]


def _batches(table: StoredTable, read: SplitSource, names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of the table with some of its columns, and the number of the first row of each batch."""
    for (path, state), start in zip(table.files, table.starts, strict=False):
        for _, inside, batch in batches_of(read, [path], names):
            yield start + inside, batch
        read.require_unchanged(path, state)


def _part_name(table: StoredTable, part: StoredPart) -> str:
    """A name that changes with the rows of a part, their labels, and the state of the files that hold them."""
    described = table.source.split.model_dump_json(exclude={"uri", "storage_options", "name"})
    pieces = [described.encode(), repr(list(table.source.predictions)).encode()]
    for name, rows in part.rows.items():
        held = np.searchsorted(table.starts, rows, side="right") - 1
        inside = rows - np.asarray(table.starts)[held]
        used = np.unique(held)
        pieces += [name.encode(), *(" ".join(table.files[number]).encode() for number in used), inside.tobytes()]
        pieces.append(np.searchsorted(used, held).tobytes())
    pieces.append(table.labels[next(iter(part.rows.values()))].tobytes())
    return combine(pieces)


def _key_of(number: int) -> bytes:
    return _DIGESTS + b"." + str(number).encode()
