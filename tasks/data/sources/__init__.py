"""What a split may be read from: each source is one function from a file to record batches, registered by its name.

A new source is one file:

    @source("avro", suffixes=(".avro",))
    def read_avro(file: SourceFile) -> Iterator[pa.RecordBatch]:
        ...

Its module is imported where an entry point of the group ``congruence.sources`` names it. All batches have one schema,
the first may have no rows; columns beyond those of ``file.columns`` do no harm. Rows are read once, from end to end:
whatever is asked for later comes from the Parquet files that ``ingest`` makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeAlias

import pyarrow as pa

from congruence.tasks.data.locations import Location

REFERENCE = pa.struct([("file", pa.string()), ("offset", pa.int64()), ("length", pa.int64())])
"""The type of bytes that stay where they are, in a file of the split's file system."""
REASON = "__reason__"
"""A column by which a source says that a row cannot be read, and why; null where it can."""

BATCH_ROWS = 256
"""Rows that a stream holds at once where nothing says how large they are: with images of 100 kB some 25 MB."""
BATCH_BYTES = 2**24
"""Bytes that a stream holds at once where a row's size is known."""
MOST_BATCH_ROWS = 2**13


def batch_rows(row_bytes: float) -> int:
    """How many rows of so many bytes a stream holds at once."""
    return max(BATCH_ROWS, min(MOST_BATCH_ROWS, int(BATCH_BYTES // max(1.0, row_bytes))))


@dataclass(frozen=True)
class SourceFile:
    """One file of a split, or a folder that is read as one.

    Attributes:
        location: of the split; its file system opens the path.
        path: of the file.
        columns: those that are needed; None where they are not known yet.
        as_text: columns whose values are texts, since they are in another file of the split.
        only_first: only the first rows and their types are asked for.
    """

    location: Location
    path: str
    columns: tuple[str, ...] | None = None
    as_text: frozenset[str] = frozenset()
    only_first: bool = False

    def open(self, **options: Any) -> Any:
        """A stream of the file's bytes."""
        return self.location.filesystem.open(self.path, "rb", **options)

    def wanted(self, names: list[str]) -> list[str]:
        """Those of some columns that are needed."""
        asked = set(names if self.columns is None else self.columns)
        return [name for name in names if name in asked]


Read: TypeAlias = Callable[[SourceFile], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Source:
    """How one kind of files is found and read.

    Attributes:
        name: as ``format`` in the settings of a split.
        read: a file from end to end.
        suffixes: of its files.
        is_here: whether a folder is of this kind, where its files' names do not tell.
        paths: what is read one by one; by default the files with one of the suffixes.
        files_behind: of a folder that is read as one, its files: another state of one is another state of all.
        rows_from: batches from a row on, and the row that the first begins with, for pictures that stay in the file.
        key: the column that names the rows where the format itself has one.
        has_types: whether columns have types; if not, a column's type follows from its values in all files.
    """

    name: str
    read: Read
    suffixes: tuple[str, ...] = ()
    is_here: Callable[[Location], bool] | None = None
    paths: Callable[[Location], list[str]] | None = None
    files_behind: Callable[[Location], list[str]] | None = None
    rows_from: Callable[[SourceFile, int], tuple[int, Iterator[pa.RecordBatch]]] | None = None
    key: str | None = None
    has_types: bool = True


_SOURCES: dict[str, Source] = {}
_OWN = ("tables", "text", "arrays", "tars")


def source(name: str, **how: Any) -> Callable[[Read], Read]:
    """Registers a function as the source of that name; the keywords are the attributes of ``Source``."""

    def register(read: Read) -> Read:
        _SOURCES[name] = Source(name, read, **how)
        return read

    return register


def all_sources() -> dict[str, Source]:
    """Returns every source by its name: ours, and those of installed packages."""
    _import_all()
    return dict(_SOURCES)


@cache
def _import_all() -> None:
    for module in _OWN:
        import_module(f"{__name__}.{module}")
    for entry in entry_points(group="congruence.sources"):
        entry.load()
