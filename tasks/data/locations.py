"""Where the files of a split lie, and digests of what they hold."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import cached_property
from hashlib import blake2b
from typing import Any
from urllib.parse import unquote

import fsspec
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.runtime.errors import SplitError
from congruence.tasks.runtime.files import is_local

_STATES = (
    "ETag", "etag", "e_tag", "md5Hash", "content_md5", "mtime", "LastModified", "last_modified", "updated", "created",
)  # fmt: skip

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

_FIELD = re.compile(r"\{date(?::(?P<format>[^}]*))?\}")

_PARTS = {"%Y": r"\d{4}", "%m": r"\d{2}", "%d": r"\d{2}", "%j": r"\d{3}"}


@dataclass(frozen=True)
class DatedPath:
    """A path with ``{date}`` (``2026-03-01``) or ``{date:%Y/%m/%d}`` in it, and other wildcards beside.

    Attributes:
        path: as it is written.
        form: of the date, as ``strptime`` reads it.
    """

    path: str
    form: str

    @classmethod
    def of(cls, path: str) -> DatedPath | None:
        """The dates of a path, None where it has none.

        Raises:
            SplitError: several dates, or a date without year, month or day.
        """
        fields = list(_FIELD.finditer(path))
        if not fields:
            return None
        form = fields[0]["format"] or "%Y-%m-%d"
        if len(fields) > 1:
            raise SplitError(f"{path}: has {{date}} twice; write it once, for example {{date:%Y/%m/%d}}")
        if "%Y" not in form or not ("%j" in form or ("%m" in form and "%d" in form)):
            raise SplitError(f"{path}: {{date:{form}}} names no day; write for example {{date:%Y-%m-%d}}")
        return cls(path, form)

    @property
    def glob(self) -> str:
        """The pattern of all dates."""
        return _FIELD.sub(lambda _: re.sub(r"(%[Ymdj])+", "*", self.form), self.path)

    def date_of(self, path: str) -> date:
        """The date that a path begins with which this pattern matches.

        Raises:
            SplitError: none.
        """
        match = self._expression.match(path)
        try:
            return datetime.strptime(match["date"] if match else "", self.form).date()
        except ValueError:
            raise SplitError(
                f"{path}: has no date of the form {self.form} where {self.path} has one; rename it, or make the "
                "pattern of uri narrower"
            ) from None

    def within(self, paths: Sequence[str], window: SplitSettings | None) -> list[str]:
        """Returns the paths whose dates are those that ``last``, ``since`` and ``until`` of a split leave."""
        dates = [self.date_of(path) for path in paths]
        if not dates or window is None:
            return list(paths)
        first, last = window.since or date.min, window.until or date.max
        if window.last is not None:
            first = max(first, max(dates) - timedelta(days=window.last - 1))
        return [path for path, when in zip(paths, dates, strict=True) if first <= when <= last]

    @property
    def _expression(self) -> re.Pattern[str]:
        before, after = _FIELD.split(self.path)[0], self.path[_FIELD.search(self.path).end() :]  # type: ignore[union-attr]
        form = re.escape(self.form).replace("\\%", "%")
        for part, digits in _PARTS.items():
            form = form.replace(part, digits)
        return re.compile(f"{_as_expression(before)}(?P<date>{form}){_as_expression(after)}")


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


def _as_expression(glob: str) -> str:
    text = re.escape(glob).replace(r"\*\*", ".*").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    return re.sub(r"\\\[(.*?)\\\]", r"[\1]", text)


ROW_BYTES = 16

_NULL_BITS = np.uint64(0x7FF8_0000_0000_DEAD)

_EXACT = 2**53


def digest_of(data: Any) -> bytes:
    """The 16-byte digest of one row's content."""
    return blake2b(data, digest_size=ROW_BYTES).digest()


def combine(parts: Iterable[bytes]) -> str:
    """One hexadecimal digest of ``parts`` in order, each marked off by its length."""
    state = blake2b(digest_size=ROW_BYTES)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


class ContentDigest:
    """The digest of values that come in blocks: of their lengths, and of what they hold, each as one stream.

    Numbers of any width count as their float64 value, so that a column that turns from integers to floats when rows
    are appended keeps the digests of its earlier rows.
    """

    def __init__(self) -> None:
        self._values, self._lengths = blake2b(digest_size=ROW_BYTES), blake2b(digest_size=ROW_BYTES)

    def update(self, values: Any, lengths: npt.NDArray[np.int64] | None = None) -> None:
        """More bytes, in rows of these lengths where they differ."""
        self._values.update(values)
        if lengths is not None:
            self._lengths.update(np.ascontiguousarray(lengths, dtype="<i8").data)

    def add_column(self, array: Any) -> None:
        """The rows of an Arrow array."""
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if is_fixed(array.type):
            self.update(number_bits(array).data)
        elif is_list(array.type):
            self.update(b"", _lengths(pc.list_value_length(array)))
            self.add_column(array.flatten())
        elif is_text(array.type) or is_bytes(array.type):
            whole = array.cast(pa.large_string() if is_text(array.type) else pa.large_binary())
            self.update(_joined(whole.fill_null("" if is_text(array.type) else b"")), _lengths(pc.binary_length(array)))
        elif pa.types.is_fixed_size_binary(array.type) and not array.null_count:
            self.update(fixed_bytes(array))
        else:
            self.add_column(pa.array([repr(value) for value in array.to_pylist()], pa.string()))

    def digest(self) -> bytes:
        """Of everything so far."""
        return digest_of(self._lengths.digest() + self._values.digest())


def row_codes(array: Any) -> npt.NDArray[np.uint64]:
    """A 64-bit number for each row, (n,): equal where the values are, in every block alike, and rarely elsewhere."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if is_fixed(array.type):
        return number_bits(array)
    if is_text(array.type) or is_bytes(array.type):
        texts = array.to_numpy(zero_copy_only=False)
    else:
        texts = np.array([repr(value) for value in array.to_pylist()], object)
    return np.asarray(pd.util.hash_array(texts, categorize=False), np.uint64)


def number_bits(array: Any) -> npt.NDArray[np.uint64]:
    """The bits of each value's float64 value, (n,); of integers beyond 2^53 their own, of missing ones a NaN's."""
    if pa.types.is_null(array.type):
        return np.full(len(array), _NULL_BITS)
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int64() if array.type.bit_width == 64 else pa.int32())
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_integer(array.type):
        integers = array.fill_null(0).to_numpy(zero_copy_only=False)
        bits = integers.astype(np.float64).view(np.uint64)
        large = (integers > _EXACT) | (integers < -_EXACT)
        bits[large] = integers[large].astype(np.uint64, casting="unsafe")
    else:
        floats = array.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy(zero_copy_only=False)
        bits = np.array(floats, dtype=np.float64).view(np.uint64)
        missing = missing | np.isnan(floats)
    bits[missing] = _NULL_BITS
    return np.asarray(bits.astype("<u8", copy=False))


def fixed_bytes(column: Any) -> bytes:
    """The bytes of a column of fixed width, row after row."""
    width = column.type.byte_width
    _, data = column.buffers()
    return bytes(memoryview(data)[column.offset * width : (column.offset + len(column)) * width])


def fixed_column(data: bytes, rows: int) -> Any:
    """The column of ROW_BYTES bytes a row that ``data`` holds, row after row."""
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(ROW_BYTES), rows, [None, pa.py_buffer(data)])


def is_number(kind: Any) -> bool:
    """Whether values of this Arrow type are numbers, true and false, or missing without exception."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    )


def as_numbers(column: Any) -> npt.NDArray[np.float64]:
    """A column of numbers as float64, NaN where it is null."""
    numbers: npt.NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers


def is_fixed(kind: Any) -> bool:
    """Whether ``number_bits`` takes values of this Arrow type."""
    return is_number(kind) or bool(pa.types.is_temporal(kind))


def is_text(kind: Any) -> bool:
    """Whether values of this Arrow type are text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: Any) -> bool:
    """Whether values of this Arrow type are bytes of any length."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_list(kind: Any) -> bool:
    """Whether values of this Arrow type are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _lengths(lengths: Any) -> npt.NDArray[np.int64]:
    """The lengths of rows, -1 where one is missing."""
    found = lengths.cast(pa.int64())
    return np.asarray(found.fill_null(-1).to_numpy(zero_copy_only=False))


def _joined(array: Any) -> Any:
    """The bytes of all rows of a large text or binary array one after the other."""
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return memoryview(data)[bounds[0] : bounds[-1]] if data is not None and len(array) else b""
