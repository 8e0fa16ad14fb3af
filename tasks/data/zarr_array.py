"""An array of a Zarr group."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.tasks.data.locations import Location
from congruence.tasks.data.stored_array import StoredArray


class ZarrArray(StoredArray):
    """One array of a Zarr group, opened where it is read."""

    def __init__(self, location: Location, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._location, self._name = location, name
        self.shape, self.dtype = shape, dtype

    @classmethod
    def of(cls, location: Location, said: Mapping[str, Any]) -> "ZarrArray":
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


def zarr_files(location: Location) -> list[str]:
    """All files of a Zarr group."""
    return sorted(location.filesystem.find(location.path))
