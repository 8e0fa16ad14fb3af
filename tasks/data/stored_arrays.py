"""Arrays on disk of which any rows are read: .npy files and the arrays of a Zarr group."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.lib.format as npy

from congruence.kernels.arrays import Array
from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.locations import Location


class StoredArray(ABC):
    """An array on disk, opened where it is read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @abstractmethod
    def blocks(self, start: int, stop: int, size: int) -> Iterator[Array]:
        """Rows ``start`` to ``stop``, at most ``size`` at a time."""


class NpyArray(StoredArray):
    """A .npy file of this machine's file system, whose rows begin at the byte ``offset``."""

    def __init__(self, path: str | Path, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int) -> None:
        self.path, self.shape, self.dtype, self.offset = path, shape, dtype, offset

    @classmethod
    def opened(cls, path: str | Path, where: str) -> "NpyArray":
        """The array as the file's header says.

        Raises:
            SplitError: it holds Python objects, or is stored by columns; ``where`` names it.
            ValueError, EOFError: it is no .npy file.
        """
        with open(path, "rb") as stream:
            version = npy.read_magic(stream)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, by_columns, dtype = read(stream)
            offset = stream.tell()
        if dtype.hasobject:
            raise SplitError(f"{where}: holds Python objects, which are never unpickled; save plain numbers or strings")
        if by_columns and len(shape) > 1:
            raise SplitError(f"{where}: is stored by columns; save numpy.ascontiguousarray(array)")
        return cls(path, shape, dtype, offset)

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Array]:
        width = self.dtype.itemsize * prod(self.shape[1:])
        with open(self.path, "rb") as stream:  # not mapped: one that is cut off meanwhile would end the process
            stream.seek(self.offset + start * width)
            for begin in range(start, stop, size):
                rows = min(size, stop - begin)
                data = stream.read(rows * width)
                if len(data) < rows * width:
                    ends = begin + len(data) // max(width, 1)
                    raise SplitError(f"{self.path}: ends at row {ends}; the file is cut off")
                yield np.frombuffer(data, self.dtype).reshape(rows, *self.shape[1:])


class ZarrArray(StoredArray):
    """One array of a Zarr group; where its chunks lie Zarr knows."""

    def __init__(self, location: Location, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self._location, self._name, self.shape = location, name, shape
        self.dtype = np.dtypes.StringDType() if dtype.startswith("|T") else np.dtype(dtype)

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Array]:
        import zarr  # half a second, for the one format that needs it

        array: Any = zarr.open_group(zarr_store(self._location), mode="r")[self._name]
        step = size * max(1, round(array.chunks[0] / size))
        for begin in range(start, stop, step):
            held = np.asarray(array[begin : min(stop, begin + step)])
            for row in range(0, len(held), size):
                yield held[row : row + size]


def zarr_store(location: Location) -> Any:
    """What Zarr opens a group at this location by."""
    if location.is_local:
        return location.path
    import zarr

    return zarr.storage.FsspecStore.from_url(location.uri, storage_options=dict(location.options), read_only=True)
