"""Arrays side by side: the members of an .npz file, a folder of .npy files, a Zarr group. Row i of each is one row."""

import posixpath
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from congruence.tasks.data.array_columns import arrow_type, to_arrow
from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.layouts import FileLayout, layout_name
from congruence.tasks.data.locations import Location
from congruence.tasks.data.stored_arrays import NpyArray, StoredArray, ZarrArray, zarr_store
from congruence.tasks.data.tables import BATCH_BYTES, BATCH_ROWS, MOST_BATCH_ROWS, Table
from congruence.tasks.runtime.files import whole_file

_PIECE_BYTES = 2**22


class ArrayTable(Table):
    """Arrays of equal length as columns: vectors as lists, images (uint8, height x width [x channels]) as PNG."""

    def __init__(self, location: str, folder: str, rows: int, arrays: Mapping[str, StoredArray]) -> None:
        self.location = location
        self.folder = folder
        self.rows = rows
        self._arrays = dict(arrays)
        self.schema = pa.schema([pa.field(name, arrow_type(array, name, location)) for name, array in arrays.items()])

    def batches(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        taken = sum(self._arrays[name].dtype.itemsize * prod(self._arrays[name].shape[1:]) for name in columns)
        size = max(BATCH_ROWS, min(MOST_BATCH_ROWS, BATCH_BYTES // max(1, taken)))
        streams = [self._arrays[name].blocks(start, stop, size) for name in columns]
        for blocks in zip(*streams, strict=True):
            arrays = [
                to_arrow(block, self.schema.field(name).type) for name, block in zip(columns, blocks, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def place(self, row: int) -> str:
        return f"{self.location}, index {row}"


def open_arrays(location: Location, layouts: Sequence[FileLayout], folder: Path) -> Table:
    """The table of arrays that were described before, with copies in ``folder``."""
    (layout,) = layouts
    arrays: dict[str, StoredArray] = {}
    for said in layout.arrays:
        shape, dtype = tuple(said["shape"]), said["dtype"]
        file = folder / said["copy"] if "copy" in said else said.get("file")
        if file is None:
            arrays[said["name"]] = ZarrArray(location, said["name"], shape, dtype)
        else:
            arrays[said["name"]] = NpyArray(file, shape, np.dtype(dtype), said["offset"])
    parent = layout.path if location.is_folder() else location.filesystem._parent(layout.path)
    return ArrayTable(location.uri, parent, layout.rows, arrays)


def describe_npz(location: Location, path: str, state: str, folder: Path) -> FileLayout:
    """The members of an .npz file, each copied to a .npy file in ``folder``, of which any rows can be read."""
    with (
        _readable_as(".npz", path, "numpy.savez"),
        location.filesystem.open(path, "rb") as stream,
        zipfile.ZipFile(stream) as archive,
    ):
        members = [name for name in archive.namelist() if name.endswith(".npy")]
        arrays = [
            {
                "name": member.removesuffix(".npy"),
                "copy": (copy := f"{layout_name(path, state)}.{number}.npy"),
                **_copied(partial(archive.open, member), folder / copy, f"{path}, member {member!r}"),
            }
            for number, member in enumerate(members)
        ]
    return _layout(location, path, state, arrays)


def describe_npy(location: Location, path: str, state: str, folder: Path) -> FileLayout:
    """A folder, glob or file of .npy, each a column named by its file; those elsewhere are copied to ``folder``."""
    arrays: list[dict[str, Any]] = []
    with _readable_as(".npy", location.uri, "numpy.save"):
        for number, file in enumerate(location.files((".npy",))):
            if location.is_local:
                found = {"file": file, **_described(Path(file), file)}
            else:
                copy = f"{layout_name(path, state)}.{number}.npy"
                found = {"copy": copy, **_copied(partial(location.filesystem.open, file, "rb"), folder / copy, file)}
            arrays.append({"name": posixpath.basename(file).removesuffix(".npy"), **found})
    return _layout(location, path, state, arrays)


def describe_zarr(location: Location, path: str, state: str, folder: Path) -> FileLayout:  # noqa: ARG001
    """The arrays of a Zarr group."""
    import zarr  # half a second, for the one format that needs it

    try:
        group = zarr.open_group(zarr_store(location), mode="r")
    except (FileNotFoundError, ValueError, TypeError) as error:
        raise SplitError(f"{location.uri}: there is no Zarr group here ({error}); check the split's uri") from error
    arrays = [{"name": name, "shape": array.shape, "dtype": array.dtype.str} for name, array in group.arrays()]
    return _layout(location, path, state, arrays)


def one_npz(location: Location) -> list[str]:
    """The file of the split; raises SplitError where there are several."""
    paths = location.files((".npz",))
    if len(paths) != 1:
        raise SplitError(f"{location.uri}: holds {len(paths)} .npz files; name the one that is the split")
    return paths


@contextmanager
def _readable_as(form: str, where: str, saved_by: str) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        if isinstance(error, SplitError):
            raise
        raise SplitError(f"{where}: not readable as {form} ({error}); save it again with {saved_by}") from error


def _copied(source: Callable[[], Any], copy: Path, where: str) -> dict[str, Any]:
    """Copy a .npy file, and describe the copy."""
    try:
        with whole_file(copy) as target, source() as stream:
            shutil.copyfileobj(stream, target, _PIECE_BYTES)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SplitError(f"{where}: is damaged ({error}); fetch or save it again") from error
    return _described(copy, where)


def _described(file: Path, where: str) -> dict[str, Any]:
    array = NpyArray.opened(file, where)
    return {"shape": array.shape, "dtype": array.dtype.str, "offset": array.offset}


def _layout(location: Location, path: str, state: str, arrays: Sequence[Mapping[str, Any]]) -> FileLayout:
    lengths = {said["name"]: said["shape"][0] if said["shape"] else 0 for said in arrays}
    if not lengths:
        raise SplitError(f"{location.uri}: holds no arrays")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {rows}" for name, rows in lengths.items())
        raise SplitError(f"{location.uri}: the arrays differ in rows ({listed}); row i of each must be the same row")
    return FileLayout(path, state, next(iter(lengths.values())), arrays=arrays)
