"""Which source a split is read from, by its settings or by what lies at its address, and its files."""

from __future__ import annotations

import atexit
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from congruence.tasks.data.digests import combine
from congruence.tasks.data.errors import SplitChangedError, SplitError, changed
from congruence.tasks.data.locations import DateWindow, Location
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.sources import Source, SourceFile, all_sources

_MOST_WAITING = 2
_waiting: dict[tuple[Any, ...], tuple[int, Iterator[pa.RecordBatch]]] = {}
"""Where reading of pictures ended in files: who reads on from there decodes nothing twice."""
_guard = threading.Lock()
atexit.register(_waiting.clear)  # what waits in an open file ends while there still is an Arrow


@dataclass(frozen=True)
class SplitSource:
    """The source of a split, and where it lies."""

    source: Source
    location: Location

    @classmethod
    def of(cls, settings: SplitSettings) -> SplitSource:
        """The source of the split.

        Raises:
            SplitError: it cannot be inferred, or nothing lies there.
        """
        window = DateWindow(settings.last, settings.since, settings.until)
        location = Location.of(settings.uri, settings.storage_options, window)
        sources = all_sources()
        if settings.format not in ("auto", *sources):
            raise SplitError(f"format: {settings.format!r} is none of auto, {', '.join(sorted(sources))}")
        return cls(_detected(location) if settings.format == "auto" else sources[settings.format], location)

    def paths(self) -> list[str]:
        """What is read one by one: files, or the folder of arrays that are read as one."""
        return self.source.paths(self.location) if self.source.paths else self.location.files(self.source.suffixes)

    def state(self, path: str) -> str:
        """What tells that a file changed, without reading it."""
        if self.source.files_behind is None:
            return self.location.state(path)
        states = (f"{file} {self.location.state(file)}" for file in self.source.files_behind(self.location))
        return combine(state.encode() for state in states)

    def require_unchanged(self, path: str, state: str) -> None:
        """The file is in the state that it was ingested in.

        Raises:
            SplitChangedError: it is another one, or gone.
        """
        if not self.location.is_local:  # object stores remember what they listed
            self.location.filesystem.invalidate_cache()
        try:
            found = self.state(path)
        except FileNotFoundError:
            raise _gone(path) from None
        if found != state:
            raise changed(path)

    def batches(self, path: str, **asked: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a file from end to end, with the columns that its folders say; see ``SourceFile``.

        Dictionaries are the values that they stand for, as are extension types.
        """
        file = SourceFile(self.location, path, **asked)
        said = {name: value for name, value in self.location.partitions(path).items() if file.wanted([name])}
        try:
            for batch in self.source.read(file):
                yield _plain(batch, said, file.as_text)
        except FileNotFoundError:
            raise _gone(path) from None

    def schema(self, path: str) -> pa.Schema:
        """The columns of a file as its first rows show them; more may come where rows need not have all of them."""
        return next(self.batches(path, only_first=True)).schema

    def full_schema(self, path: str) -> pa.Schema:
        """The columns of a file as all of its rows show them."""
        return next(self.batches(path)).schema

    def rows_in_place(
        self, path: str, state: str, columns: Sequence[str], start: int, stop: int
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a file that stay in it.

        Raises:
            SplitError: the file is damaged, gone, or has fewer rows.
        """
        file = SourceFile(self.location, path, columns=tuple(columns))
        identity = (os.getpid(), path, state, *columns)
        with _guard:
            at, batches = _waiting.pop(identity, (-1, iter(())))
        try:
            if at != start:
                assert self.source.rows_from is not None
                at, batches = self.source.rows_from(file, start)
            while at < stop:
                batch = next(batches, None)
                if batch is None:
                    raise SplitError(f"{path}: has fewer rows than when it was ingested; run again")
                end = at + batch.num_rows
                if end > start:
                    yield _plain(batch.slice(max(0, start - at), min(stop, end) - max(start, at)), {}, frozenset())
                if end > stop:
                    batches = chain([batch.slice(stop - at)], batches)
                at = min(end, stop)
        except FileNotFoundError:
            raise _gone(path) from None
        with _guard:
            _waiting[identity] = (at, batches)
            while len(_waiting) > _MOST_WAITING:
                del _waiting[next(iter(_waiting))]


def _plain(batch: pa.RecordBatch, said: dict[str, str | None], as_text: frozenset[str]) -> pa.RecordBatch:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name, value in said.items():
        is_integer = re.fullmatch("0|-?[1-9][0-9]{0,17}", value or "") is not None and name not in as_text
        kind = pa.int64() if is_integer else pa.string()
        scalar = pa.scalar(int(str(value)) if is_integer else value, kind)
        columns.setdefault(name, pa.repeat(scalar, batch.num_rows))
    for name, column in columns.items():
        values = column.storage if isinstance(column, pa.ExtensionArray) else column
        columns[name] = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _gone(path: str) -> SplitChangedError:
    return SplitChangedError(f"{path}: is gone since the split was opened; put it back, and run again")


def _detected(location: Location) -> Source:
    sources = all_sources().values()
    for source in sources:
        if source.suffixes and location.path.endswith(source.suffixes):
            return source
    if location.is_folder():
        return _detected_in_folder(location, list(sources))
    if not location.is_glob and not location.filesystem.exists(location.path):
        raise SplitError(f"{location.uri}: no such file or folder; check the split's uri")
    raise SplitError(f"{location.uri}: the format does not show in the name; set format, for example to parquet or csv")


def _detected_in_folder(location: Location, sources: list[Source]) -> Source:
    for source in sources:
        if source.is_here is not None and source.is_here(location):
            return source
    paths = location.files(tuple(suffix for source in sources for suffix in source.suffixes))
    found = {
        source.name: source for source in sources if source.suffixes for path in paths if path.endswith(source.suffixes)
    }
    if len(found) > 1:
        raise SplitError(f"{location.uri}: the folder mixes {', '.join(sorted(found))} files; set format")
    return next(iter(found.values()))
