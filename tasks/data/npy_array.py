"""A .npy file, or one inside a zip, of which any rows are read where they lie."""

import logging
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.lib.format as npy

from congruence.kernels.arrays import Array
from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.files import file_state
from congruence.tasks.data.locations import Location
from congruence.tasks.data.stored_array import StoredArray
from congruence.tasks.data.unpacked import PIECE_BYTES, UnpackingError, unpacked

logger = logging.getLogger(__name__)


class NpyArray(StoredArray):
    """A .npy file, or one inside a zip."""

    def __init__(self, location: Location, path: str, member: str | None = None, copies: Path | None = None) -> None:
        self._filesystem, self._is_local = location.filesystem, location.is_local
        self._path, self._member, self._copies = path, member, copies
        self._compressed = False

    @classmethod
    def opened(cls, location: Location, path: str, member: str | None = None) -> "NpyArray":
        """The array as its header says."""
        array = cls(location, path, member)
        with array._open() as stream:
            array._header(stream)
        return array

    @classmethod
    def of(cls, location: Location, said: Mapping[str, Any], copies: Path | None) -> "NpyArray":
        """The array that ``described`` said."""
        array = cls(location, said["path"], said["member"], copies)
        array._compressed = said["compressed"]
        array._take(tuple(said["shape"]), np.dtype(said["dtype"]), said["offset"])
        return array

    def described(self) -> dict[str, Any]:
        """Where its rows begin."""
        return {
            "path": self._path,
            "member": self._member,
            "compressed": self._compressed,
            "shape": list(self.shape),
            "dtype": self.dtype.str,
            "offset": self._offset,
        }

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Array]:
        """Rows in order."""
        with self._open_copy() if self._compressed and self._copies is not None else self._open() as stream:
            yield from self._blocks(stream, start, stop, size)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        with self._filesystem.open(self._path, "rb") as stream:
            if self._member is None:
                yield stream
                return
            with zipfile.ZipFile(stream) as archive:
                member = archive.getinfo(self._member)
                self._compressed = member.compress_type != zipfile.ZIP_STORED
                if not self._compressed:
                    yield _InPlace(stream, _data_offset(stream, member))
                    return
                try:
                    with archive.open(member) as inner:
                        yield inner
                except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                    raise SplitError(
                        f"{self._path}, member {self._member!r}: is damaged ({error}); fetch or save it again"
                    ) from error

    @contextmanager
    def _open_copy(self) -> Iterator[Any]:
        assert self._copies is not None
        try:
            state = file_state(self._filesystem, self._path, self._is_local)
            size = self._offset + self.shape[0] * self._row_bytes
            copy = unpacked(self._copies, f"{self._path}/{self._member}", state, size, self._pieces(size))
        except UnpackingError as error:
            logger.warning(
                "%s is decompressed again for every shard: there is nowhere to store it (%s)", self._path, error
            )
            with self._open() as stream:
                yield stream
            return
        with copy.open("rb") as stream:
            yield stream

    def _pieces(self, size: int) -> Iterator[bytes]:
        """The member's first ``size`` bytes."""
        with self._open() as stream:
            while piece := stream.read(min(size, PIECE_BYTES)):
                size -= len(piece)
                yield piece

    def _header(self, stream: Any) -> None:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        self._take(shape, dtype, stream.tell())
        where = f"{self._path}{'/' + self._member if self._member else ''}"
        if self.dtype.hasobject:
            raise SplitError(f"{where}: holds Python objects, which are never unpickled; save plain numbers or strings")
        if fortran and len(self.shape) > 1:
            raise SplitError(f"{where}: is stored by columns; save numpy.ascontiguousarray(array)")

    def _take(self, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int) -> None:
        self.shape, self.dtype, self._offset = shape, dtype, offset
        self._row_bytes = dtype.itemsize * prod(shape[1:])

    def _blocks(self, stream: Any, start: int, stop: int, size: int) -> Iterator[Array]:
        width = self._row_bytes
        stream.seek(self._offset + start * width)
        for begin in range(start, stop, size):
            rows = min(size, stop - begin)
            data = stream.read(rows * width)
            if len(data) < rows * width:
                raise SplitError(f"{self._path}: ends at row {begin + len(data) // max(width, 1)}; the file is cut off")
            yield np.frombuffer(data, self.dtype).reshape(rows, *self.shape[1:])


class _InPlace:
    """An uncompressed zip member, read and sought in the zip itself (zipfile reads through all bytes that it skips)."""

    def __init__(self, stream: Any, offset: int) -> None:
        self._stream, self._offset = stream, offset
        stream.seek(offset)

    def read(self, size: int) -> bytes:
        return bytes(self._stream.read(size))

    def seek(self, position: int) -> None:
        self._stream.seek(self._offset + position)

    def tell(self) -> int:
        return int(self._stream.tell()) - self._offset


def _data_offset(stream: Any, member: zipfile.ZipInfo) -> int:
    """Where the member's bytes begin: its local header is 30 bytes, then the name, then extra fields."""
    stream.seek(member.header_offset + 26)
    name, extra = struct.unpack("<HH", stream.read(4))
    return member.header_offset + 30 + int(name) + int(extra)
