"""Arrays side by side: the members of an .npz file, a folder of .npy files, a Zarr group. Row i of each is one row."""

import posixpath
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from congruence.tasks.data.array_columns import arrow_type, to_arrow
from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.files import file_state, joint_state
from congruence.tasks.data.layouts import FileLayout
from congruence.tasks.data.locations import Location
from congruence.tasks.data.npy_array import NpyArray
from congruence.tasks.data.stored_array import StoredArray
from congruence.tasks.data.tables import BATCH_BYTES, BATCH_ROWS, MOST_BATCH_ROWS, Table
from congruence.tasks.data.zarr_array import ZarrArray, zarr_files, zarr_store


class ArrayTable(Table):
    """Arrays of equal length as columns: vectors as lists, images (uint8, height x width [x channels]) as PNG."""

    def __init__(self, location: str, folder: str, arrays: Mapping[str, StoredArray]) -> None:
        self.location = location
        self.folder = folder
        self._arrays = dict(arrays)
        self.rows = _common_rows(arrays, location)
        self.schema = pa.schema([pa.field(name, arrow_type(array, name, location)) for name, array in arrays.items()])

    def batches(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows in order, read side by side from each array."""
        taken = sum(self._arrays[name].dtype.itemsize * prod(self._arrays[name].shape[1:]) for name in columns)
        size = max(BATCH_ROWS, min(MOST_BATCH_ROWS, BATCH_BYTES // max(1, taken)))
        streams = [self._arrays[name].blocks(start, stop, size) for name in columns]
        for blocks in zip(*streams, strict=True):
            arrays = [
                to_arrow(block, self.schema.field(name).type) for name, block in zip(columns, blocks, strict=True)
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
        arrays[said["name"]] = ZarrArray.of(location, said) if in_zarr else NpyArray.of(location, said, copies)
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
        arrays = {name: NpyArray.opened(location, path, f"{name}.npy") for name in names}
    except SplitError:
        raise
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise SplitError(f"{path}: not readable as .npz ({error}); save it again with numpy.savez") from error
    return _layout(location, path, state, arrays)


def describe_npy(location: Location, path: str) -> FileLayout:
    """A folder, glob or file of .npy, each a column named by its file."""
    paths = location.files((".npy",))
    try:
        arrays = {posixpath.basename(one).removesuffix(".npy"): NpyArray.opened(location, one) for one in paths}
    except SplitError:
        raise
    except (ValueError, EOFError) as error:
        raise SplitError(f"{location.uri}: not readable as .npy ({error}); save it again with numpy.save") from error
    return _layout(location, path, joint_state(location, paths), arrays)


def describe_zarr(location: Location, path: str) -> FileLayout:
    """The arrays of a Zarr group."""
    import zarr  # half a second, for the one format that needs it

    try:
        group = zarr.open_group(zarr_store(location), mode="r")
    except (FileNotFoundError, ValueError, TypeError) as error:
        raise SplitError(f"{location.uri}: there is no Zarr group here ({error}); check the split's uri") from error
    arrays = {name: ZarrArray(location, name, array.shape, array.dtype) for name, array in group.arrays()}
    return _layout(location, path, joint_state(location, zarr_files(location)), arrays)


def one_npz(location: Location) -> list[str]:
    """The file of the split; raises SplitError where there are several."""
    paths = location.files((".npz",))
    if len(paths) != 1:
        raise SplitError(f"{location.uri}: holds {len(paths)} .npz files; name the one that is the split")
    return paths


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
