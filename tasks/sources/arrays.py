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
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt
import pyarrow as pa
from PIL import Image

from congruence.kernels.arrays import Array
from congruence.tasks.sources.errors import SplitError
from congruence.tasks.sources.files import file_state, joint_state
from congruence.tasks.sources.layouts import FileLayout
from congruence.tasks.sources.locations import Location
from congruence.tasks.sources.tables import BATCH_BYTES, BATCH_ROWS, MOST_BATCH_ROWS, Table
from congruence.tasks.sources.unpacked import PIECE_BYTES, UnpackingError, unpacked

logger = logging.getLogger(__name__)


class StoredArray(ABC):
    """An array on disk of which any range of rows can be read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @abstractmethod
    def blocks(self, start: int, stop: int, size: int) -> Iterator[Array]:
        """Rows ``start`` to ``stop``, at most ``size`` at a time."""

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """What tells how to read it without opening it, as JSON."""


class ArrayTable(Table):
    """Arrays of equal length as columns: vectors as lists, images (uint8, height x width [x channels]) as PNG."""

    def __init__(self, location: str, folder: str, arrays: Mapping[str, StoredArray]) -> None:
        self.location = location
        self.folder = folder
        self._arrays = dict(arrays)
        self.rows = _common_rows(arrays, location)
        self.schema = pa.schema([pa.field(name, _arrow_type(array, name, location)) for name, array in arrays.items()])

    def batches(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows in order, read side by side from each array."""
        taken = sum(self._arrays[name].dtype.itemsize * prod(self._arrays[name].shape[1:]) for name in columns)
        size = max(BATCH_ROWS, min(MOST_BATCH_ROWS, BATCH_BYTES // max(1, taken)))
        streams = [self._arrays[name].blocks(start, stop, size) for name in columns]
        for blocks in zip(*streams, strict=True):
            arrays = [
                _to_arrow(block, self.schema.field(name).type) for name, block in zip(columns, blocks, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def place(self, row: int) -> str:
        """The arrays and the index in them."""
        return f"{self.location}, index {row}"

    def positions(self) -> npt.NDArray[np.int64]:
        """The row itself."""
        return np.arange(self.rows)


def open_arrays(location: Location, layouts: Sequence[FileLayout], copies: Path | None = None) -> Table:
    """The table of arrays that were described before. ``copies``: see ``describe_npz``."""
    (layout,) = layouts
    arrays: dict[str, StoredArray] = {}
    for said in layout.arrays:
        in_zarr = said["path"] is None
        arrays[said["name"]] = _ZarrArray.of(location, said) if in_zarr else _NpyArray.of(location, said, copies)
    folder = layout.path if location.is_folder() else location.filesystem._parent(layout.path)
    return ArrayTable(location.uri, folder, arrays)


def describe_npz(location: Location, path: str) -> FileLayout:
    """The members of an .npz file. Stored ones are read in place.

    Compressed ones are decompressed once, into the folder ``copies`` of whichever machine reads them; where there is no
    such folder, from their start for every range of rows.
    """
    state = file_state(location.filesystem, path, location.is_local)
    try:
        with location.filesystem.open(path, "rb") as stream, zipfile.ZipFile(stream) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        arrays = {name: _NpyArray.opened(location, path, f"{name}.npy") for name in names}
    except SplitError:
        raise
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise SplitError(f"{path}: not readable as .npz ({error}); save it again with numpy.savez") from error
    return _layout(location, path, state, arrays)


def describe_npy(location: Location, path: str) -> FileLayout:
    """A folder, glob or file of .npy, each a column named by its file."""
    paths = location.files((".npy",))
    try:
        arrays = {posixpath.basename(one).removesuffix(".npy"): _NpyArray.opened(location, one) for one in paths}
    except SplitError:
        raise
    except (ValueError, EOFError) as error:
        raise SplitError(f"{location.uri}: not readable as .npy ({error}); save it again with numpy.save") from error
    return _layout(location, path, joint_state(location, paths), arrays)


def describe_zarr(location: Location, path: str) -> FileLayout:
    """The arrays of a Zarr group."""
    import zarr  # half a second, for the one format that needs it

    try:
        group = zarr.open_group(_zarr_store(location), mode="r")
    except (FileNotFoundError, ValueError, TypeError) as error:
        raise SplitError(f"{location.uri}: no Zarr group lies here ({error}); check the split's uri") from error
    arrays = {name: _ZarrArray(location, name, array.shape, array.dtype) for name, array in group.arrays()}
    return _layout(location, path, joint_state(location, zarr_files(location)), arrays)


def one_npz(location: Location) -> list[str]:
    """The file of the split; raises SplitError where there are several."""
    paths = location.files((".npz",))
    if len(paths) != 1:
        raise SplitError(f"{location.uri}: holds {len(paths)} .npz files; name the one that is the split")
    return paths


def zarr_files(location: Location) -> list[str]:
    """All files of a Zarr group."""
    return sorted(location.filesystem.find(location.path))


def _layout(location: Location, path: str, state: str, arrays: Mapping[str, StoredArray]) -> FileLayout:
    rows = _common_rows(arrays, location.uri)
    return FileLayout(path, state, rows, arrays=[{"name": name, **array.described()} for name, array in arrays.items()])


def _common_rows(arrays: Mapping[str, StoredArray], location: str) -> int:
    lengths = {name: array.shape[0] if array.shape else 0 for name, array in arrays.items()}
    if not lengths:
        raise SplitError(f"{location}: holds no arrays")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {rows}" for name, rows in lengths.items())
        raise SplitError(f"{location}: the arrays differ in rows ({listed}); row i of each must be the same row")
    return next(iter(lengths.values()))


class _NpyArray(StoredArray):
    """A .npy file, or one inside a zip."""

    def __init__(self, location: Location, path: str, member: str | None = None, copies: Path | None = None) -> None:
        self._filesystem, self._is_local = location.filesystem, location.is_local
        self._path, self._member, self._copies = path, member, copies
        self._compressed = False

    @classmethod
    def opened(cls, location: Location, path: str, member: str | None = None) -> "_NpyArray":
        """The array as its header says."""
        array = cls(location, path, member)
        with array._open() as stream:
            array._header(stream)
        return array

    @classmethod
    def of(cls, location: Location, said: Mapping[str, Any], copies: Path | None) -> "_NpyArray":
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


class _ZarrArray(StoredArray):
    """One array of a Zarr group, opened where it is read."""

    def __init__(self, location: Location, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._location, self._name = location, name
        self.shape, self.dtype = shape, dtype

    @classmethod
    def of(cls, location: Location, said: Mapping[str, Any]) -> "_ZarrArray":
        """The array that ``described`` said."""
        text = said["dtype"].startswith("|T")
        dtype: Any = np.dtypes.StringDType() if text else np.dtype(said["dtype"])
        return cls(location, said["name"], tuple(said["shape"]), dtype)

    def described(self) -> dict[str, Any]:
        """Its shape; where its chunks lie Zarr knows."""
        return {"path": None, "shape": list(self.shape), "dtype": self.dtype.str}

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Array]:
        """Rows in order, some chunks at a time."""
        import zarr

        array: Any = zarr.open_group(_zarr_store(self._location), mode="r")[self._name]
        step = size * max(1, round(array.chunks[0] / size))
        for begin in range(start, stop, step):
            held = np.asarray(array[begin : min(stop, begin + step)])
            for row in range(0, len(held), size):
                yield held[row : row + size]


def _zarr_store(location: Location) -> Any:
    if location.is_local:
        return location.path
    import zarr

    return zarr.storage.FsspecStore.from_url(location.uri, storage_options=dict(location.options), read_only=True)


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
