"""Tables of Parquet, Arrow and Hugging Face, and arrays of NumPy and Zarr."""

from __future__ import annotations

import json
import posixpath
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from congruence.kernels.arrays import Array
from congruence.tasks.data.sources import BATCH_ROWS, Location, SourceFile, source
from congruence.tasks.runtime.errors import SplitError

_BUFFERS = 2**24
"""Bytes read ahead in all columns together; more columns have smaller buffers."""
_ARROW_FILE = b"ARROW1"

BATCH_BYTES = 2**24
"""Bytes that a stream holds at once where a row's size is known."""
MOST_BATCH_ROWS = 2**13


def batch_rows(row_bytes: float) -> int:
    """How many rows of so many bytes a stream holds at once."""
    return max(BATCH_ROWS, min(MOST_BATCH_ROWS, int(BATCH_BYTES // max(1.0, row_bytes))))


@source("parquet", suffixes=(".parquet", ".pq"), seeks=True)
def read_parquet(file: SourceFile) -> Iterator[pa.RecordBatch]:
    """Row groups, in batches by the size that the footer says."""
    with _readable(file.path, "Parquet", "write the file again"), file.open() as stream:
        metadata = pq.read_metadata(stream)
        whole = metadata.schema.to_arrow_schema()
        names = file.wanted(whole.names)
        buffer = min(2**20, max(2**14, _BUFFERS // max(1, len(names))))
        parquet = pq.ParquetFile(stream, metadata=metadata, buffer_size=buffer, page_checksum_verification=True)
        yield pa.RecordBatch.from_pylist([], pa.schema([whole.field(name) for name in names]))
        groups, before = [metadata.row_group(number) for number in range(metadata.num_row_groups)], file.start
        for number, group in enumerate(groups):
            if before >= group.num_rows:
                before -= group.num_rows
                continue
            for batch in parquet.iter_batches(_batch_rows(group, names), row_groups=[number], columns=names):
                if before < batch.num_rows:
                    yield batch.select(names).replace_schema_metadata(None).slice(before)
                before = max(0, before - batch.num_rows)


def _batch_rows(group: Any, names: list[str]) -> int:
    """As many rows as memory allows by what the footer says that the columns take."""
    chunks, asked = [group.column(number) for number in range(group.num_columns)], set(names)
    size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] in asked)
    return batch_rows(size / max(1, group.num_rows))


@source("arrow", suffixes=(".arrow", ".feather", ".ipc"), seeks=True)
def read_arrow(file: SourceFile) -> Iterator[pa.RecordBatch]:
    """The record batches of an Arrow file or stream, mapped; Feather is the former."""
    with (
        _readable(file.path, "an Arrow file", "save the dataset again"),
        pa.memory_map(file.path) if file.location.is_local else file.open() as stream,
    ):
        is_file = stream.read(len(_ARROW_FILE)) == _ARROW_FILE
        stream.seek(0)
        reader = pa.ipc.open_file(stream) if is_file else pa.ipc.open_stream(stream)
        batches = (reader.get_batch(at) for at in range(reader.num_record_batches)) if is_file else iter(reader)
        names, before = file.wanted(reader.schema.names), file.start
        for batch in chain([pa.RecordBatch.from_pylist([], reader.schema)], batches):
            chosen = batch.select(names).replace_schema_metadata(None).slice(before)
            before = max(0, before - batch.num_rows)
            rows = batch_rows(chosen.nbytes / max(1, chosen.num_rows))
            yield from (chosen.slice(begin, rows) for begin in range(0, max(1, chosen.num_rows), rows))


def _is_saved_dataset(location: Location) -> bool:
    return any(location.filesystem.exists(location.child(name)) for name in ("state.json", "dataset_dict.json"))


def _dataset_files(location: Location) -> list[str]:
    """The Arrow files that a saved dataset names, in its own order."""
    filesystem, state_file = location.filesystem, location.child("state.json")
    if filesystem.exists(location.child("dataset_dict.json")):
        splits = json.loads(filesystem.cat_file(location.child("dataset_dict.json")))["splits"]
        raise SplitError(
            f"{location.uri}: holds the splits {', '.join(splits)}; append one, as in {location.uri}/{splits[0]}"
        )
    if not filesystem.exists(state_file):
        raise SplitError(f"{location.uri}: there is no saved dataset here; write it with dataset.save_to_disk")
    try:
        names = [str(item["filename"]) for item in json.loads(filesystem.cat_file(state_file))["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise SplitError(f"{state_file}: damaged ({error}); save the dataset again") from error
    outside = [name for name in names if "/" in name or "\\" in name or name == ".."]
    if outside:
        raise SplitError(f"{state_file}: names {outside[0]!r}, which is outside the folder")
    return [location.child(name) for name in names]


source("huggingface", is_here=_is_saved_dataset, paths=_dataset_files, seeks=True)(read_arrow)


_OF_NUMPY = (zipfile.BadZipFile, ValueError, EOFError)


@contextmanager
def _readable(
    path: str, form: str, remedy: str, faults: tuple[type[Exception], ...] = (pa.ArrowInvalid, OSError)
) -> Iterator[None]:
    """What a library says of a damaged file, with its name and the remedy; a network or a right that lacks passes."""
    try:
        yield
    except (SplitError, ConnectionError, TimeoutError, PermissionError, FileNotFoundError):
        raise
    except faults as error:
        raise SplitError(f"{path}: not readable as {form} ({error}); {remedy}") from error


def _one_npz(location: Location) -> list[str]:
    paths = location.files((".npz",))
    if len(paths) != 1:
        raise SplitError(f"{location.uri}: holds {len(paths)} .npz files; name the one that is the split")
    return paths


@source("npz", suffixes=(".npz",), paths=_one_npz)
def read_npz(file: SourceFile) -> Iterator[pa.RecordBatch]:
    """The members of an .npz file, all read on together."""
    with ExitStack() as opened:
        with _readable(file.path, ".npz", "save it again with numpy.savez", _OF_NUMPY):
            archive = opened.enter_context(zipfile.ZipFile(opened.enter_context(file.open())))
            members = [name for name in archive.namelist() if name.endswith(".npy")]
            streams = {name: opened.enter_context(archive.open(name)) for name in members}
            arrays = {
                name.removesuffix(".npy"): _streamed(stream, f"{file.path}, member {name!r}")
                for name, stream in streams.items()
            }
        yield from _side_by_side(file, arrays)


def _npy_files(location: Location) -> list[str]:
    return location.files((".npy",))


@source("npy", suffixes=(".npy",), paths=lambda location: _npy_files(location)[:1], files_behind=_npy_files)
def read_npy(file: SourceFile) -> Iterator[pa.RecordBatch]:
    """A folder, glob or file of .npy, each a column named by its file."""
    with ExitStack() as opened:
        arrays: dict[str, _Array] = {}
        for path in _npy_files(file.location):
            stream = opened.enter_context(file.location.filesystem.open(path, "rb"))
            with _readable(path, ".npy", "save it again with numpy.save", _OF_NUMPY):
                arrays[posixpath.basename(path).removesuffix(".npy")] = _streamed(stream, path, stream.seekable())
        yield from _side_by_side(file, arrays)


def _is_zarr(location: Location) -> bool:
    return any(location.filesystem.exists(location.child(name)) for name in ("zarr.json", ".zgroup"))


def _zarr_files(location: Location) -> list[str]:
    return sorted(location.filesystem.find(location.path))


@source("zarr", is_here=_is_zarr, paths=lambda location: [location.path], files_behind=_zarr_files)
def read_zarr(file: SourceFile) -> Iterator[pa.RecordBatch]:
    """The arrays of a Zarr group, each read by whole chunks."""
    import zarr  # half a second, for the one format that needs it

    location = file.location
    try:
        at, options = (location.path, None) if location.is_local else (location.uri, dict(location.options))
        group = zarr.open_group(at, mode="r", storage_options=options)
    except (FileNotFoundError, ValueError, TypeError) as error:
        raise SplitError(f"{location.uri}: there is no Zarr group here ({error}); check the path") from error
    yield from _side_by_side(file, {name: _chunked(array) for name, array in group.arrays()})


@dataclass(frozen=True)
class _Array:
    """An array, and all of its rows in blocks of at most so many."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: Callable[[int], Iterator[Array]]


_HELD_BYTES = 2**26
"""What is held of an array that is stored by columns, as those of a frame are, where its file can be read anywhere."""


def _streamed(stream: Any, where: str, seeks: bool = False) -> _Array:
    """The array of a .npy stream; one that is stored by columns is read as a whole, or by blocks where it ``seeks``."""
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, by_columns, dtype = read(stream)
    columns = prod(shape[1:])
    width = dtype.itemsize * columns
    whole = by_columns and len(shape) > 1
    start = stream.tell() if whole and seeks else 0

    def read_rows(begin: int, rows: int) -> bytes:
        if not (whole and seeks):
            return bytes(stream.read(rows * width))
        parts = []
        for column in range(columns):
            stream.seek(start + (column * shape[0] + begin) * dtype.itemsize)
            parts.append(stream.read(rows * dtype.itemsize))
        return b"".join(parts)

    def blocks(size: int) -> Iterator[Array]:
        most = size
        if whole:
            most = max(size, _HELD_BYTES // max(width, 1)) if seeks else max(1, shape[0])
        for begin in range(0, shape[0], most):
            rows = min(most, shape[0] - begin)
            try:
                data = read_rows(begin, rows)
            except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                raise SplitError(f"{where}: is damaged ({error}); fetch or save it again") from error
            if len(data) < rows * width:
                at = "" if whole else f"ends at row {begin + len(data) // max(width, 1)}; "
                raise SplitError(f"{where}: {at}the file is cut off")
            held = np.frombuffer(data, dtype).reshape(rows, *shape[1:], order="F" if whole else "C")
            yield from (held[row : row + size] for row in range(0, rows, size))

    return _Array(shape, dtype, blocks)


def _chunked(array: Any) -> _Array:
    """An array of a Zarr group."""

    def blocks(size: int) -> Iterator[Array]:
        step = size * max(1, round(array.chunks[0] / size))
        for begin in range(0, array.shape[0], step):
            held = np.asarray(array[begin : begin + step])
            yield from (held[row : row + size] for row in range(0, len(held), size))

    return _Array(array.shape, array.dtype, blocks)


def _side_by_side(file: SourceFile, arrays: Mapping[str, _Array]) -> Iterator[pa.RecordBatch]:
    """Arrays of equal length as columns: vectors as lists, images (uint8, height x width [x channels]) as PNG."""
    uri = file.location.uri
    if not arrays:
        raise SplitError(f"{uri}: holds no arrays")
    types = {}
    for name in file.wanted(list(arrays)):
        try:
            types[name] = _arrow_type(arrays[name], name, uri)
        except SplitError:
            if file.columns is not None:  # else what there is is listed, and this is no column
                raise
    yield pa.RecordBatch.from_pylist([], pa.schema(list(types.items())))
    names, lengths = list(types), {name: arrays[name].shape[0] for name in types}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {rows}" for name, rows in lengths.items())
        raise SplitError(f"{uri}: the arrays differ in rows ({listed}); row i of each must be the same row")
    taken = sum(arrays[name].dtype.itemsize * prod(arrays[name].shape[1:]) for name in names)
    for blocks in zip(*(arrays[name].blocks(batch_rows(taken)) for name in names), strict=True):
        columns = [_column(block, types[name]) for name, block in zip(names, blocks, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, names=names)


def _arrow_type(array: _Array, name: str, uri: str) -> Any:
    kind, rank = array.dtype.kind, len(array.shape)
    if array.dtype.hasobject and kind != "T":
        raise SplitError(
            f"{uri}: array {name!r} holds Python objects, which are never unpickled; save plain numbers or strings"
        )
    if rank == 1 and kind in "biuf":
        return pa.from_numpy_dtype(array.dtype.newbyteorder("="))
    if rank == 1 and kind in "UST":
        return pa.string()
    if rank == 2 and kind in "biuf":
        return pa.list_(pa.from_numpy_dtype(array.dtype.newbyteorder("=")), array.shape[1])
    if array.dtype == np.uint8 and (rank == 3 or (rank == 4 and array.shape[3] in (1, 3, 4))):
        return pa.binary()
    raise SplitError(
        f"{uri}: array {name!r} of {array.dtype} with shape {array.shape} is no column; use (n,), (n, d) or, for "
        "images, uint8 (n, height, width) or (n, height, width, channels)"
    )


def _column(block: Array, kind: Any) -> Any:
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


def _png(image: npt.NDArray[np.uint8]) -> bytes:
    from PIL import Image  # for pictures in arrays alone

    stream = BytesIO()
    shown = image.squeeze(-1) if image.ndim == 3 and image.shape[-1] == 1 else image
    Image.fromarray(shown).save(stream, "PNG", compress_level=0)
    return stream.getvalue()
