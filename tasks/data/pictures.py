"""Pictures of a split: in its columns, in files that these name by paths, or in tars that they refer to.

An image file that a path names lies below the split's folder, and is read in one piece of bounded size.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from congruence.tasks.data.inputs import (
    DIGEST,
    ROW_BYTES,
    STATE,
    InputColumns,
    RawInput,
    Reader,
    digest_of,
    fixed_column,
    invalid_row,
    is_bytes,
    is_text,
)
from congruence.tasks.data.sources import REASON, REFERENCE, Location, SplitSource, file_state
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


def image_folder(source: SplitSource) -> ImageFolder:
    """The folder that paths of images start from.

    Raises:
        SplitError: the settings name one that is not there.
    """
    settings, location = source.settings, source.location
    if settings.image_root is None:
        root = location.path
        if settings.input_kind == "image" and not location.is_folder():
            root = location.folder_of(source.paths())
        return ImageFolder(location.filesystem, root, location.is_local, settings.max_input_bytes)
    named = Location.of(settings.image_root, settings.storage_options)
    if settings.input_kind == "image" and not named.is_folder():
        raise SplitError(f"image_root {settings.image_root}: no such folder; give the one that image paths start from")
    return ImageFolder(named.filesystem, named.path, named.is_local, settings.max_input_bytes)


def pictures_of(source: SplitSource, column: str, kind: pa.DataType) -> Pictures:
    """How a column of a source becomes encoded images; they stay in files of which any rows can be read.

    Raises:
        SplitError: its type cannot hold them.
    """
    is_either = pa.types.is_struct(kind) and {"bytes", "path"} <= {field.name for field in kind}
    wanted = source.settings.input_kind
    if wanted != "image" or not (is_text(kind) or is_bytes(kind) or is_either or kind == REFERENCE):
        expected = "encoded image bytes or paths" if wanted == "image" else "text"
        where = f"{source.location.uri}: column {column!r} (input)"
        raise SplitError(f"{where} holds {kind}, not {expected}; check input_kind")
    stay = source.source.seeks and (is_bytes(kind) or is_either)
    return Pictures(column, kind, image_folder(source), stay=stay)
