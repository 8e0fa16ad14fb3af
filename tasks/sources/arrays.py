"""Arrays side by side: the members of an .npz file, a folder of .npy files, a Zarr group. Row i of each is one row."""

import logging
import posixpath
import struct
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.lib.format as npy
import pyarrow as pa
from PIL import Image

from congruence.kernels.arrays import Array
from congruence.tasks.sources.errors import SplitError
from congruence.tasks.sources.files import file_state
from congruence.tasks.sources.locations import Location
from congruence.tasks.sources.tables import BATCH_ROWS, Table
from congruence.tasks.sources.unpacked import PIECE_BYTES, UnpackingError, unpacked

logger = logging.getLogger(__name__)


class StoredArray(ABC):
    """An array on disk of which any range of rows can be read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @abstractmethod
    def blocks(self, start: int, stop: int) -> Iterator[Array]:
        """Rows ``start`` to ``stop``, at most BATCH_ROWS at a time."""


class ArrayTable(Table):
    """Arrays of equal length as columns: vectors as lists, images (uint8, height x width [x channels]) as PNG."""

    def __init__(self, location: str, folder: str, arrays: Mapping[str, StoredArray], files: Sequence[str]) -> None:
        self.location = location
        self.folder = folder
        self._arrays = dict(arrays)
        self._files = list(files)
        lengths = {name: array.shape[0] if array.shape else 0 for name, array in arrays.items()}
        if not lengths:
            raise SplitError(f"{location}: holds no arrays")
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name}: {rows}" for name, rows in lengths.items())
            raise SplitError(f"{location}: the arrays differ in rows ({listed}); row i of each must be the same row")
        self.rows = next(iter(lengths.values()))
        self.schema = pa.schema([pa.field(name, _arrow_type(array, name, location)) for name, array in arrays.items()])

    def batches(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows in order, read side by side from each array."""
        streams = [self._arrays[name].blocks(start, stop) for name in columns]
        for blocks in zip(*streams, strict=True):
            arrays = [
                _to_arrow(block, self.schema.field(name).type) for name, block in zip(columns, blocks, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def place(self, row: int) -> str:
        """The arrays and the index in them."""
        return f"{self.location}, index {row}"

    def files(self) -> list[str]:
        """The files of all arrays."""
        return list(self._files)


def open_npz(location: Location, copies: Path | None = None) -> Table:
    """The members of an .npz file. Stored ones are read in place.

    Compressed ones are decompressed once, into the folder ``copies`` of whichever machine reads them; where there is no
    such folder, from their start for every range of rows.
    """
    (path,) = _one(location.files((".npz",)), location)
    try:
        with location.filesystem.open(path, "rb") as stream, zipfile.ZipFile(stream) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        arrays = {name: _NpyArray(location, path, f"{name}.npy", copies) for name in names}
    except SplitError:
        raise
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise SplitError(f"{path}: not readable as .npz ({error}); save it again with numpy.savez") from error
    return ArrayTable(location.uri, location.filesystem._parent(path), arrays, [path])


def open_npy(location: Location) -> Table:
    """A folder or glob of .npy files, each a column named by its file."""
    paths = location.files((".npy",))
    try:
        arrays = {posixpath.basename(path).removesuffix(".npy"): _NpyArray(location, path) for path in paths}
    except SplitError:
        raise
    except (ValueError, EOFError) as error:
        raise SplitError(f"{location.uri}: not readable as .npy ({error}); save it again with numpy.save") from error
    return ArrayTable(location.uri, location.filesystem._parent(paths[0]), arrays, paths)


def open_zarr(location: Location) -> Table:
    """The arrays of a Zarr group."""
    import zarr  # half a second, for the one format that needs it

    try:
        group = zarr.open_group(_zarr_store(location), mode="r")
    except (FileNotFoundError, ValueError, TypeError) as error:
        raise SplitError(f"{location.uri}: no Zarr group lies here ({error}); check the split's uri") from error
    arrays = {name: _ZarrArray(location, name, array) for name, array in group.arrays()}
    return ArrayTable(location.uri, location.path, arrays, location.filesystem.find(location.path))


class _NpyArray(StoredArray):
    """A .npy file, or one inside a zip."""

    def __init__(self, location: Location, path: str, member: str | None = None, copies: Path | None = None) -> None:
        self._filesystem, self._is_local = location.filesystem, location.is_local
        self._path, self._member, self._copies = path, member, copies
        self._compressed = False
        with self._open() as stream:
            self._header(stream)

    def blocks(self, start: int, stop: int) -> Iterator[Array]:
        """Rows in order."""
        with self._open_copy() if self._compressed and self._copies is not None else self._open() as stream:
            yield from self._blocks(stream, start, stop)

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
            logger.warning("%s is decompressed anew for every shard, for want of a place (%s)", self._path, error)
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
        self.shape, fortran, self.dtype = read(stream)
        self._offset = stream.tell()
        self._row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))
        where = f"{self._path}{'/' + self._member if self._member else ''}"
        if self.dtype.hasobject:
            raise SplitError(f"{where}: holds Python objects, which are never unpickled; save plain numbers or strings")
        if fortran and len(self.shape) > 1:
            raise SplitError(f"{where}: is stored by columns; save numpy.ascontiguousarray(array)")

    def _blocks(self, stream: Any, start: int, stop: int) -> Iterator[Array]:
        width = self._row_bytes
        stream.seek(self._offset + start * width)
        for begin in range(start, stop, BATCH_ROWS):
            rows = min(BATCH_ROWS, stop - begin)
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


class _ZarrArray(StoredArray):
    """One array of a Zarr group, opened where it is read."""

    def __init__(self, location: Location, name: str, array: Any) -> None:
        self._location, self._name = location, name
        self.shape, self.dtype = array.shape, array.dtype

    def blocks(self, start: int, stop: int) -> Iterator[Array]:
        """Rows in order, some chunks at a time."""
        import zarr

        array: Any = zarr.open_group(_zarr_store(self._location), mode="r")[self._name]
        step = BATCH_ROWS * max(1, round(array.chunks[0] / BATCH_ROWS))
        for begin in range(start, stop, step):
            held = np.asarray(array[begin : min(stop, begin + step)])
            for row in range(0, len(held), BATCH_ROWS):
                yield held[row : row + BATCH_ROWS]


def _zarr_store(location: Location) -> Any:
    if location.is_local:
        return location.path
    import zarr

    return zarr.storage.FsspecStore.from_url(location.uri, storage_options=dict(location.options), read_only=True)


def _one(paths: list[str], location: Location) -> list[str]:
    if len(paths) != 1:
        raise SplitError(f"{location.uri}: holds {len(paths)} .npz files; name the one that is the split")
    return paths


def _arrow_type(array: StoredArray, name: str, location: str) -> Any:
    kind, rank = array.dtype.kind, len(array.shape)
    if rank == 1 and kind in "biuf":
        return pa.from_numpy_dtype(array.dtype)
    if rank == 1 and kind in "UST":
        return pa.string()
    if rank == 2 and kind in "biuf":
        return pa.list_(pa.from_numpy_dtype(array.dtype), array.shape[1])
    if array.dtype == np.uint8 and (rank == 3 or (rank == 4 and array.shape[3] in (1, 3, 4))):
        return pa.binary()
    raise SplitError(
        f"{location}: array {name!r} of {array.dtype} with shape {array.shape} is no column; use (n,), (n, d) or, for "
        "images, uint8 (n, height, width) or (n, height, width, channels)"
    )


def _to_arrow(block: Array, kind: Any) -> Any:
    if block.dtype.byteorder == ">":
        block = block.astype(block.dtype.newbyteorder("="))
    if pa.types.is_binary(kind):
        return pa.array([_png(image) for image in block], kind)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(block).reshape(-1)), kind.list_size)
    if pa.types.is_string(kind):
        texts = [text.decode(errors="replace") if isinstance(text, bytes) else str(text) for text in block.tolist()]
        return pa.array(texts, kind)
    return pa.array(block, kind)


def _png(image: Array) -> bytes:
    stream = BytesIO()
    Image.fromarray(image.squeeze(-1) if image.ndim == 3 and image.shape[-1] == 1 else image).save(
        stream, "PNG", compress_level=0
    )
    return stream.getvalue()
