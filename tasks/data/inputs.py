"""From a split's columns to what the encoder reads: image bytes, a text, or a vector of features.

An image file that a path names lies below the split's folder, and is read in one piece of bounded size.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from congruence.tasks.data.locations import (
    ROW_BYTES,
    ContentDigest,
    digest_of,
    file_state,
    fixed_column,
    is_bytes,
    is_list,
    is_text,
)
from congruence.tasks.data.sources import REASON, REFERENCE, SplitSource
from congruence.tasks.encoders.base import InvalidRow
from congruence.tasks.runtime.errors import SplitError, changed

_FAULTS_OF_THE_NAME = (errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.EINVAL)


@dataclass(frozen=True)
class ImageFolder:
    """The folder below which every path of a split must stay, symbolic links followed."""

    filesystem: Any
    root: str
    local: bool
    max_bytes: int

    def read(self, name: str) -> bytes:
        """The content of the file ``name`` below the root.

        Raises:
            InvalidRow: the path leaves the root, or no regular file of bounded size lies there.
        """
        path = self._resolve(name)
        try:
            if not self.local:
                self._require_bounded(int(self.filesystem.info(path)["size"]), name)
                return bytes(self.filesystem.cat_file(path))
            return self._read_local(path, name)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InvalidRow(f"file {name!r} does not exist") from error
        except IsADirectoryError as error:
            raise InvalidRow(f"{name!r} is a folder, not an image file") from error
        except PermissionError as error:
            raise InvalidRow(f"file {name!r} may not be read: permission denied") from error

    def state(self, name: str) -> str:
        """What tells whether the file changed without reading it: size, times and inode, or the object's ETag."""
        try:
            path = self._resolve(name)
            return file_state(self.filesystem, path, self.local)
        except InvalidRow as invalid:
            return invalid.reason
        except OSError as error:
            return type(error).__name__

    def _resolve(self, name: str) -> str:
        if not name or "\x00" in name:
            raise InvalidRow(f"{name!r} is not a file name")
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\", "~")) or "://" in name or parts[0].endswith(":"):
            raise InvalidRow(f"path {name!r} is absolute; paths are relative to the image root and stay below it")
        if ".." in parts:
            raise InvalidRow(f"path {name!r} leaves the image root")
        if not self.local:
            return posixpath.join(self.root, name)
        root = os.path.realpath(self.root)
        try:
            path = os.path.realpath(os.path.join(root, name))
        except (OSError, ValueError) as error:
            raise InvalidRow(f"path {name!r} cannot be resolved: {error}") from error
        if os.path.commonpath([root, path]) != root:
            raise InvalidRow(f"path {name!r} is a link that leaves the image root")
        return path

    def _read_local(self, path: str, name: str) -> bytes:
        # The path is already free of links; O_NOFOLLOW refuses one put there since, O_NONBLOCK a pipe that never ends.
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _FAULTS_OF_THE_NAME:
                raise InvalidRow(f"file {name!r} cannot be opened: {error.strerror}") from error
            raise
        with os.fdopen(descriptor, "rb") as stream:
            state = os.fstat(descriptor)
            if stat.S_ISDIR(state.st_mode):
                raise IsADirectoryError
            if not stat.S_ISREG(state.st_mode):
                raise InvalidRow(f"{name!r} is not a regular file")
            self._require_bounded(state.st_size, name)
            return stream.read()

    def _require_bounded(self, size: int, name: str) -> None:
        if size > self.max_bytes:
            raise InvalidRow(f"file {name!r} has {size} bytes, more than max_input_bytes = {self.max_bytes}")


RawInput: TypeAlias = bytes | str | npt.NDArray[np.float64]
Reader: TypeAlias = Callable[[], RawInput]
"""Loads one row when it is called, so that slow reads happen in the threads that decode; raises InvalidRow."""

DIGEST, STATE = "__digest__", "__state__"
"""Columns of what was ingested: 16 bytes of each picture's content, and of the state of the file that it lies in."""
_TURNED = (2048, 64)
"""Rows and columns that are turned at a time: column by column, many columns take seven times as long."""


class InputColumns(ABC):
    """The columns that hold the encoder's input, and how a row of them becomes one.

    Attributes:
        columns: of the source.
        stay: whether they stay in the source's files, of which any rows can be read.
        added: columns that ingesting adds.
    """

    stay = False
    added: Sequence[tuple[str, pa.DataType]] = ()

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = list(columns)

    @property
    def digested(self) -> list[str]:
        """The columns of what was ingested that tell one input from another."""
        return [name for name, _ in self.added if name == DIGEST] or self.columns

    @abstractmethod
    def readers(self, batch: pa.RecordBatch) -> Iterator[Reader]:
        """One reader for each row of ``batch``: its columns, REASON where there is one, and those that were added."""

    def ingested(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Rows of the source as they are kept, with the columns of ``schema``."""
        return batch.select(schema.names)

    def digest(self, batch: pa.RecordBatch, *into: ContentDigest) -> None:
        """Adds the content of the rows of ``batch``, which has the ``digested`` columns."""
        for state in into:
            state.add_column(batch.column(0))


class Texts(InputColumns):
    """A column of texts."""

    def readers(self, batch: pa.RecordBatch) -> Iterator[Reader]:
        for value in batch.column(0).to_pylist():
            yield invalid_row(f"column {self.columns[0]!r} holds no text") if value is None else partial(_itself, value)


class Pictures(InputColumns):
    """Encoded images in one column.

    Its type says where they are: bytes in the table, paths below a folder, a reference to bytes in a file (as tars
    have), or a struct with the bytes, or with a path where they are null, as Hugging Face ``datasets`` has.
    """

    def __init__(self, column: str, kind: pa.DataType, folder: ImageFolder, *, stay: bool) -> None:
        super().__init__([column])
        self._kind, self._folder, self.stay = kind, folder, stay
        self.has_paths = is_text(kind) or (pa.types.is_struct(kind) and kind != REFERENCE)
        self.added = [(DIGEST, pa.binary(ROW_BYTES))] + [(STATE, pa.binary(ROW_BYTES))] * self.has_paths

    def readers(self, batch: pa.RecordBatch) -> Iterator[Reader]:
        column = batch.column(self.columns[0])
        names = batch.schema.names
        nothing = [None] * len(column)
        reasons = batch.column(REASON).to_pylist() if REASON in names else nothing
        digests = batch.column(DIGEST).to_pylist() if self.has_paths and DIGEST in names else nothing
        for value, reason, digest in zip(column, reasons, digests, strict=True):
            yield partial(self._read, value, digest) if reason is None else invalid_row(reason)

    def ingested(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        with ThreadPoolExecutor(max_workers=8) as threads:
            digests = b"".join(threads.map(_digest_of_read, self.readers(batch)))
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns[DIGEST] = fixed_column(digests, batch.num_rows)
        if self.has_paths:
            columns[STATE] = fixed_column(self.states(batch), batch.num_rows)
        if self.stay:
            columns[self.columns[0]] = self._left_there(batch.column(self.columns[0]))
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def states(self, batch: pa.RecordBatch) -> bytes:
        """A digest of the state of the file behind each row, row after row; of rows without one always the same."""
        paths = batch.column(self.columns[0])
        if pa.types.is_struct(paths.type):
            paths = _paths_alone(paths)
        known = paths.to_pylist()
        with ThreadPoolExecutor(max_workers=1 if self._folder.local else 32) as threads:
            states = threads.map(lambda path: b"" if path is None else self._folder.state(path).encode(), known)
            return b"".join(map(digest_of, states))

    def _left_there(self, column: Any) -> Any:
        """The column without the bytes of pictures, which stay in the source; paths are kept."""
        if not pa.types.is_struct(column.type):
            return pa.nulls(len(column), column.type)
        paths = _paths_alone(column)
        without = [paths if each.name == "path" else pa.nulls(len(column), each.type) for each in column.type]
        return pa.StructArray.from_arrays(without, fields=list(column.type))

    def _read(self, value: Any, digest: bytes | None) -> RawInput:
        if pa.types.is_struct(self._kind) and self._kind != REFERENCE and value.is_valid:
            value = value["bytes"] if value["bytes"].is_valid else value["path"]
        if not value.is_valid:
            raise InvalidRow(f"column {self.columns[0]!r} holds no {'path' if self.has_paths else 'image'}")
        if is_text(value.type):
            read = partial(self._folder.read, value.as_py())
            return read() if digest is None else read_as_ingested(read, digest, value.as_py())
        size = value["length"].as_py() if value.type == REFERENCE else value.as_buffer().size
        if size > self._folder.max_bytes:
            raise InvalidRow(f"the image has {size} bytes, more than max_input_bytes = {self._folder.max_bytes}")
        if value.type == REFERENCE:
            return read_reference(self._folder.filesystem, **value.as_py())
        return bytes(value.as_py())


def read_reference(filesystem: Any, file: str, offset: int, length: int) -> bytes:
    """The bytes that a reference stands for.

    Raises:
        SplitError: the file ends before.
    """
    data = bytes(filesystem.cat_file(file, start=offset, end=offset + length)) if length else b""
    if len(data) < length:
        raise SplitError(f"{file}: is cut off at byte {offset + len(data)}; fetch the file again")
    return data


def read_as_ingested(read: Reader, digest: bytes, path: str) -> RawInput:
    """What ``read`` loads from a file of its own, if that is the content that was ingested with that ``digest``.

    Raises:
        InvalidRow: it could not be read then either.
        SplitChangedError: it is another content, or can no longer be read.
    """
    try:
        value = read()
    except InvalidRow as invalid:
        if digest_of(_no_input(invalid)) != digest:
            raise changed(path, f"cannot be read any more ({invalid.reason})") from None
        raise
    if digest_of(value) != digest:
        raise changed(path)
    return value


def _no_input(invalid: InvalidRow) -> bytes:
    """What is digested in place of an input that cannot be read."""
    return f"invalid: {invalid.reason}".encode()


def _digest_of_read(read: Reader) -> bytes:
    try:
        return digest_of(read())
    except InvalidRow as invalid:
        return digest_of(_no_input(invalid))


def _paths_alone(column: Any) -> Any:
    """Of a struct with bytes or a path the path, null where there are bytes."""
    return pc.if_else(pc.struct_field(column, "bytes").is_valid(), None, pc.struct_field(column, "path"))


def invalid_row(reason: str) -> Reader:
    """The reader of a row that is known to be no input."""
    return partial(_raise, reason)


def _raise(reason: str) -> RawInput:
    raise InvalidRow(reason)


def _itself(value: RawInput) -> RawInput:
    return value


Matrix: TypeAlias = npt.NDArray[np.float64]


class Features(InputColumns):
    """Numeric columns, or one column of vectors."""

    def readers(self, batch: pa.RecordBatch) -> Iterator[Reader]:
        vectors = self.vectors(batch)
        reasons = self.unusable(*vectors)
        for row, (vector, length) in enumerate(zip(*vectors, strict=True)):
            yield invalid_row(reasons[row]) if row in reasons else partial(_itself, vector[:length])

    def digest(self, batch: pa.RecordBatch, *into: ContentDigest) -> None:
        matrix, lengths = self.vectors(batch)
        values = matrix[np.arange(matrix.shape[1]) < lengths[:, None]] if (lengths < matrix.shape[1]).any() else matrix
        missing = np.isnan(values)
        values = np.where(missing, np.nan, values) if missing.any() else values  # whatever bits a NaN had
        for state in into:
            state.update(np.ascontiguousarray(values, dtype="<f8").data.cast("B"), lengths)

    def matrix(self, batch: pa.RecordBatch, *, missing: bool = False) -> tuple[Matrix, dict[int, str]]:
        """The vectors as (rows, d), NaN where a row holds none or a shorter one; and what is ``unusable``."""
        matrix, lengths = self.vectors(batch)
        reasons = self.unusable(matrix, lengths, missing=missing)
        if missing:  # the end of a shorter vector is none that lacks values
            for row in np.flatnonzero(lengths < matrix.shape[1]).tolist():
                reasons.setdefault(row, f"the features have shape ({lengths[row]},); expected ({matrix.shape[1]},)")
        return matrix, reasons

    def vectors(self, batch: pa.RecordBatch) -> tuple[Matrix, npt.NDArray[np.int64]]:
        """The vectors of the rows of ``batch``, (rows, d), NaN beyond the end of shorter ones, and their lengths."""
        if len(self.columns) > 1 or not is_list(batch.schema.field(self.columns[0]).type):
            matrix = np.empty((batch.num_rows, len(self.columns)))
            for first in range(0, len(self.columns), _TURNED[1]):
                names = self.columns[first : first + _TURNED[1]]
                rows = np.stack([_floats(batch.column(name)) for name in names])
                for start in range(0, batch.num_rows, _TURNED[0]):
                    there = slice(start, start + _TURNED[0])
                    matrix[there, first : first + len(names)] = rows[:, there].T
            return matrix, np.full(batch.num_rows, len(self.columns))
        column = batch.column(self.columns[0])
        values = _floats(column.flatten())
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        width = int(lengths.max(initial=0))
        if (lengths == width).all():
            return values.reshape(len(lengths), width), lengths
        matrix = np.full((len(lengths), width), np.nan)
        matrix[np.arange(width) < lengths[:, None]] = values
        return matrix, lengths

    def unusable(self, matrix: Matrix, lengths: npt.NDArray[np.int64], *, missing: bool = False) -> dict[int, str]:
        """Rows without values or with one that is not finite, and why; with ``missing`` those with an infinite one."""
        usable = ~np.isinf(matrix) if missing else np.isfinite(matrix)
        usable |= np.arange(matrix.shape[1]) >= lengths[:, None]
        found = {}
        for row in np.flatnonzero(~usable.all(axis=1) | (lengths == 0)).tolist():
            if not lengths[row]:
                found[row] = f"column {self.columns[0]!r} holds no features"
                continue
            first, more = int(np.argmin(usable[row])), int((~usable[row]).sum()) - 1
            name = repr(self.columns[first]) if len(self.columns) > 1 else f"{self.columns[0]!r}[{first}]"
            found[row] = f"feature {name} is {matrix[row, first]}" + (f", and {more} more" if more else "")
        return found


def to_standardise_by(matrix: Matrix, lengths: npt.NDArray[np.int64], left_out: Collection[int]) -> Matrix:
    """The vectors of the commonest length without an infinite value, (rows, d), NaN where a value is missing."""
    chosen = np.asarray(~np.isinf(matrix).any(axis=1))
    chosen[list(left_out)] = False
    width = int(np.bincount(lengths[chosen]).argmax()) if chosen.any() else 0
    chosen &= lengths == width
    return matrix if chosen.all() and width == matrix.shape[1] else matrix[chosen, :width]


def _floats(column: pa.Array) -> npt.NDArray[np.float64]:
    # A cast costs as much as all the rest, and numpy gives floating-point numbers the same values.
    exact = column if pa.types.is_floating(column.type) else column.cast(pa.float64(), safe=False)
    return np.asarray(exact.to_numpy(zero_copy_only=False), np.float64)


def input_columns(source: SplitSource, schema: pa.Schema, folder: ImageFolder) -> InputColumns:
    """How columns of ``schema`` become encoder inputs, by the kind of input and the columns' types.

    Pictures stay in files of which any rows can be read.

    Raises:
        SplitError: a column whose type cannot hold such an input.
    """
    kind, columns = source.settings.input_kind, source.settings.input_columns
    if kind == "features":
        return Features(columns)
    column, found = columns[0], schema.field(columns[0]).type
    if kind == "text" and is_text(found):
        return Texts(columns)
    is_either = pa.types.is_struct(found) and {"bytes", "path"} <= {field.name for field in found}
    if kind == "image" and (is_text(found) or is_bytes(found) or is_either or found == REFERENCE):
        return Pictures(column, found, folder, stay=source.source.seeks and (is_bytes(found) or is_either))
    expected = "encoded image bytes or paths" if kind == "image" else "text"
    where = f"{source.location.uri}: column {column!r} (input)"
    raise SplitError(f"{where} holds {found}, not {expected}; check input_kind")
