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

import atexit
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import entry_points
from itertools import chain
from typing import Any, TypeAlias
from urllib.parse import unquote

import fsspec
import pyarrow as pa

from congruence.tasks.data.inputs import combine
from congruence.tasks.data.settings import DatedPath, SplitSettings
from congruence.tasks.runtime.errors import SplitChangedError, SplitError, changed
from congruence.tasks.runtime.files import is_local

REFERENCE = pa.struct([("file", pa.string()), ("offset", pa.int64()), ("length", pa.int64())])
"""The type of bytes that stay where they are, in a file of the split's file system."""
REASON = "__reason__"
"""A column by which a source says that a row cannot be read, and why; null where it can."""

BATCH_ROWS = 256
"""Rows that a stream holds at once where nothing says how large they are: with images of 100 kB some 25 MB."""


_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_STATES = (
    "ETag", "etag", "e_tag", "md5Hash", "content_md5", "mtime", "LastModified", "last_modified", "updated", "created",
)  # fmt: skip


@dataclass(frozen=True)
class Location:
    """A URI, its file system, and its path there."""

    uri: str
    filesystem: Any
    path: str
    options: Mapping[str, Any] = field(repr=False)
    dates: DatedPath | None = None
    window: SplitSettings | None = None
    """Says which dates are read: all by default."""

    @classmethod
    def of(cls, uri: str, storage_options: Mapping[str, Any], window: SplitSettings | None = None) -> Location:
        """The location of ``uri``; raises SplitError where no installed file system answers to its protocol."""
        try:
            filesystem, path = fsspec.core.url_to_fs(uri, **storage_options)
        except (ImportError, ValueError) as error:
            raise SplitError(f"{uri}: {error}; use a path or install the file system, for example s3fs") from error
        path = path.rstrip("/") or path
        return cls(uri, filesystem, path, dict(storage_options), DatedPath.of(path), window)

    @property
    def is_local(self) -> bool:
        """Whether the files lie in this machine's own file system."""
        return is_local(self.filesystem)

    @cached_property
    def is_glob(self) -> bool:
        """Whether the path is a pattern: what exists under that name is taken as it is."""
        if self.dates is not None:
            return True
        return any(character in self.path for character in "*?[") and not self.filesystem.exists(self.path)

    def is_folder(self) -> bool:
        """Whether a folder lies here."""
        return bool(self.filesystem.isdir(self.path))

    def child(self, name: str) -> str:
        """The path of ``name`` in the folder that lies here."""
        return f"{self.path.rstrip('/')}/{name}"

    def folder_of(self, paths: Sequence[str]) -> str:
        """The folder that lies here, or that the first of its files lies in."""
        folder: str = self.path if self.is_folder() else self.filesystem._parent(paths[0])
        return folder

    def files(self, suffixes: Sequence[str]) -> list[str]:
        """The file, or the folder's or glob's files that end in one of ``suffixes``, sorted by path.

        Hidden files and those that begin with an underscore are markers of other programs and do not count.
        Raises SplitError where nothing lies, or where a network or a store does not answer.
        """
        try:
            return self._files(suffixes)
        except Exception as error:  # what file systems raise has no class in common
            if self.is_local or isinstance(error, SplitError):
                raise
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise SplitError(f"{self.uri}: is not reached ({said}); check the address and storage_options") from error

    def _files(self, suffixes: Sequence[str]) -> list[str]:
        if not self.is_local:
            self.filesystem.invalidate_cache()  # files are known by their state, so that must not be one of before
        if self.is_glob:
            pattern = self.path if self.dates is None else self.dates.glob
            found = [path for path in self.filesystem.glob(pattern) if not self.filesystem.isdir(path)]
            found = found if self.dates is None else self.dates.within(found, self.window)
        elif self.filesystem.isdir(self.path):
            found = [path for path in self.filesystem.find(self.path) if path.endswith(tuple(suffixes))]
            found = [path for path in found if not re.search("(^|/)[._]", path[len(self.path) :].lstrip("/"))]
        elif self.filesystem.exists(self.path):
            return [self.path]
        else:
            raise SplitError(f"{self.uri}: no such file or folder; check the path")
        if not found:
            raise SplitError(f"{self.uri}: holds no file that ends in {' or '.join(suffixes)}; check uri and format")
        return sorted(found)

    def partitions(self, path: str) -> dict[str, str | None]:
        """The columns that folders between here and a file say, as in ``country=de/part.parquet``."""
        fixed = re.split(r"[^/]*[*?\[{]", self.path, maxsplit=1)[0] if self.is_glob else self.path
        folders = path[len(fixed) :].split("/")[:-1] if path.startswith(fixed) else []
        named = (folder.partition("=") for folder in folders if "=" in folder)
        return {unquote(name): None if value == _NO_VALUE else unquote(value) for name, _, value in named}


def file_state(filesystem: Any, path: str, local: bool) -> str:
    """The state of a file as its file system tells it, to every machine alike; raises OSError where there is none.

    Size, times and inode, which a file renamed over it does not share; of an object its size and ETag, or where its
    store has none what else it says of the content.
    """
    if local:
        found = os.stat(path)
        return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"
    info = filesystem.info(path)  # a listing says less than a request of its own: only what both say is compared
    name = next((name for name in _STATES if info.get(name)), None)
    return f"{info['size']} {info[name]}" if name is not None else str(filesystem.ukey(path))


@dataclass(frozen=True)
class SourceFile:
    """One file of a split, or a folder that is read as one.

    Attributes:
        location: of the split; its file system opens the path.
        path: of the file.
        columns: those that are needed; None where they are not known yet.
        as_text: columns whose values are texts, since they are in another file of the split.
        only_first: only the first rows and their types are asked for.
        start: the row to begin with, where the source ``seeks``.
    """

    location: Location
    path: str
    columns: tuple[str, ...] | None = None
    as_text: frozenset[str] = frozenset()
    only_first: bool = False
    start: int = 0

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
        seeks: whether ``read`` may begin with any row: pictures then stay in the file.
        key: the column that names the rows where the format itself has one.
        has_types: whether columns have types; if not, a column's type follows from its values in all files.
    """

    name: str
    read: Read
    suffixes: tuple[str, ...] = ()
    is_here: Callable[[Location], bool] | None = None
    paths: Callable[[Location], list[str]] | None = None
    files_behind: Callable[[Location], list[str]] | None = None
    seeks: bool = False
    key: str | None = None
    has_types: bool = True


_SOURCES: dict[str, Source] = {}
_OWN = ("tables", "text", "tars")


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


_GONE = "{}: is gone since the split was opened; put it back, and run again"
_MOST_WAITING = 2
_waiting: dict[tuple[Any, ...], Iterator[pa.RecordBatch]] = {}
"""By the row where reading of pictures ended in a file: who reads on from there decodes nothing twice."""
_guard = threading.Lock()
atexit.register(_waiting.clear)  # what waits in an open file ends while there still is an Arrow


@dataclass(frozen=True)
class SplitSource:
    """The source of a split, where it lies, and what the split takes of it."""

    settings: SplitSettings
    source: Source
    location: Location

    @classmethod
    def of(cls, settings: SplitSettings) -> SplitSource:
        """The source of the split.

        Raises:
            SplitError: it cannot be inferred, or nothing lies there.
        """
        location = Location.of(settings.uri, settings.storage_options, settings)
        sources = all_sources()
        if settings.format not in ("auto", *sources):
            raise SplitError(f"format: {settings.format!r} is none of auto, {', '.join(sorted(sources))}")
        found = _detected(location) if settings.format == "auto" else sources[settings.format]
        return cls(settings, found, location)

    @property
    def key(self) -> str | None:
        """The column that names the rows, None where their numbers do."""
        return self.settings.key or self.source.key

    @property
    def described_columns(self) -> list[str]:
        """The columns that a split's digest covers beside the encoder's input: all that the settings name."""
        settings, key = self.settings, [self.key] if self.key else []
        named = [*settings.model_input_columns, *settings.slices, *settings.design_columns.values()]
        plain = [name for name in named if name not in settings.input_columns]
        return list(dict.fromkeys([*key, *settings.target_columns, *plain]))

    @property
    def needed_columns(self) -> list[str]:
        """Every column of the source that is read, once."""
        settings = self.settings
        return list(dict.fromkeys([*self.described_columns, *settings.input_columns, *settings.stored_columns]))

    def paths(self) -> list[str]:
        """What is read one by one: files, or the folder of arrays that are read as one."""
        return self.source.paths(self.location) if self.source.paths else self.location.files(self.source.suffixes)

    def state(self, path: str) -> str:
        """What tells that a file changed, without reading it."""
        behind, local = self.source.files_behind, self.location.is_local
        if behind is None:
            return file_state(self.location.filesystem, path, local)
        states = (f"{file} {file_state(self.location.filesystem, file, local)}" for file in behind(self.location))
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
            raise SplitChangedError(_GONE.format(path)) from None
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
            raise SplitChangedError(_GONE.format(path)) from None

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
        at, identity = start, (os.getpid(), path, state, *columns)
        with _guard:
            batches = _waiting.pop((*identity, start), None)
        try:
            if batches is None:
                batches = self.source.read(SourceFile(self.location, path, columns=tuple(columns), start=start))
            while at < stop:
                batch = next(batches, None)
                if batch is None:
                    raise SplitError(f"{path}: has fewer rows than when it was ingested; run again")
                if batch.num_rows:
                    yield _plain(batch.slice(0, stop - at), {}, frozenset())
                if at + batch.num_rows > stop:
                    batches = chain([batch.slice(stop - at)], batches)
                at = min(at + batch.num_rows, stop)
        except FileNotFoundError:
            raise SplitChangedError(_GONE.format(path)) from None
        with _guard:
            _waiting[(*identity, at)] = batches
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


def _detected(location: Location) -> Source:
    """The source that the name of what lies there tells, or of a folder what is in it."""
    sources = list(all_sources().values())
    for source in sources:
        if source.suffixes and location.path.endswith(source.suffixes):
            return source
    if not location.is_folder():
        if not location.is_glob and not location.filesystem.exists(location.path):
            raise SplitError(f"{location.uri}: no such file or folder; check the path")
        raise SplitError(
            f"{location.uri}: the format does not show in the name; set format, for example to parquet or csv, or save "
            "the table as .parquet, .csv or .jsonl"
        )
    for source in sources:
        if source.is_here is not None and source.is_here(location):
            return source
    paths = location.files(tuple(suffix for source in sources for suffix in source.suffixes))
    found = {source.name: source for source in sources for path in paths if path.endswith(source.suffixes)}
    if len(found) > 1:
        raise SplitError(f"{location.uri}: the folder mixes {', '.join(sorted(found))} files; set format")
    return next(iter(found.values()))
