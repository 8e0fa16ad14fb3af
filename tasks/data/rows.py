"""The files that a split is ingested to: Parquet in row groups of which any range of rows is read."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from congruence.tasks.data.digests import is_text
from congruence.tasks.data.errors import SplitError
from congruence.tasks.runtime.files import whole_file

GROUP_ROWS, GROUP_BYTES = 2**13, 2**26
"""A row group has at most so many rows, and so many bytes where its rows are large: what is read at once."""


def write_rows(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """The rows of one file of the source as one Parquet file, there whole or not at all."""
    texts = [field.name for field in schema if is_text(field.type)]
    with (
        whole_file(path) as stream,
        pq.ParquetWriter(
            stream, schema, compression="lz4", use_dictionary=texts, write_statistics=False, write_page_checksum=True
        ) as writer,
    ):
        for group in _groups(batches, schema):
            writer.write_table(group, row_group_size=len(group))


def _groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for begin in range(0, batch.num_rows, GROUP_ROWS):
            piece = batch.slice(begin, GROUP_ROWS)
            if held and (rows + piece.num_rows > GROUP_ROWS or size + piece.nbytes > GROUP_BYTES):
                taken = min(piece.num_rows, GROUP_ROWS - rows) if size + piece.nbytes <= GROUP_BYTES else 0
                yield pa.Table.from_batches([*held, piece.slice(0, taken)], schema)
                held, rows, size, piece = [], 0, 0, piece.slice(taken)
            held.append(piece)
            rows, size = rows + piece.num_rows, size + piece.nbytes
    if rows:
        yield pa.Table.from_batches(held, schema)


def row_count(path: Path) -> int:
    """The number of rows of a file.

    Raises:
        SplitError: the file is damaged, or gone.
    """
    with _readable(path):
        return _opened(path)[1][-1]


def read_schema(path: Path) -> pa.Schema:
    """The columns of a file.

    Raises:
        SplitError: the file is damaged.
    """
    with _readable(path):
        return _opened(path)[0].schema.to_arrow_schema().remove_metadata()


def read_rows(path: Path, schema: pa.Schema, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Rows ``start`` to ``stop`` of a file in order, the columns of ``schema``, at most a row group at a time.

    Raises:
        SplitError: the file is damaged, or gone.
    """
    with _readable(path):
        metadata, starts = _opened(path)
        with pq.ParquetFile(path, metadata=metadata, page_checksum_verification=True) as file:
            for group in range(bisect.bisect_right(starts, start) - 1, bisect.bisect_left(starts, stop)):
                begin, end = starts[group], starts[group + 1]
                table = file.read_row_group(group, schema.names).combine_chunks()
                for batch in table.slice(max(0, start - begin), min(stop, end) - max(start, begin)).to_batches():
                    yield typed(batch, schema)


def typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``schema``, by name, with its types."""
    arrays = [batch.column(field.name).cast(field.type, safe=False) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def joined_schema(schemas: Iterable[pa.Schema]) -> tuple[pa.Schema, set[str]]:
    """The columns of several files with types that hold the values of all of them, and those of which no type does."""
    fields: dict[str, pa.DataType] = {}
    apart: set[str] = set()
    for schema in schemas:
        for field in schema:
            known = fields.get(field.name, field.type)
            joined = _joined_type(known, field.type)
            fields[field.name] = known if joined is None else joined
            apart |= {field.name} if joined is None else set()
    return pa.schema(list(fields.items())), apart


def _joined_type(left: Any, right: Any) -> Any:
    """The type of both, None where there is none."""
    if pa.types.is_binary(left) or pa.types.is_binary(right):  # Arrow would take texts for bytes
        return left if left == right else None
    try:
        schemas = [pa.schema([("", kind)]) for kind in (left, right)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowTypeError:
        return None


def _opened(path: Path) -> tuple[Any, list[int]]:
    """The footer of a file, and the rows that its groups begin with."""
    state = os.stat(path)
    return _opened_once(str(path), state.st_mtime_ns, state.st_ino)


@lru_cache(128)
def _opened_once(path: str, time: int, inode: int) -> tuple[Any, list[int]]:  # noqa: ARG001 - of that file alone
    metadata = pq.read_metadata(path)
    groups = (metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    return metadata, [0, *accumulate(groups)]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise SplitError(f"{path}: is gone; run again, and the split is read from its source") from error
    except (pa.ArrowInvalid, OSError, KeyError, ValueError) as error:
        if isinstance(error, (SplitError, PermissionError, ConnectionError, TimeoutError)):
            raise
        raise SplitError(
            f"{path}: is damaged ({error}); delete the file, and run again: the split is read from its source"
        ) from error
