"""Shards of a split, and digests of content."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from congruence.kernels.arrays import Array

ROW_BYTES = 16
_NULL_BITS = np.uint64(0x7FF8_0000_0000_DEAD)
_EXACT = 2**53


def digest_of(data: Any) -> bytes:
    """The 16-byte digest of one row's content."""
    return blake2b(data, digest_size=ROW_BYTES).digest()


def combine(parts: Iterable[bytes]) -> str:
    """One hexadecimal digest of ``parts`` in order, each marked off by its length."""
    state = blake2b(digest_size=ROW_BYTES)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


class ContentDigest:
    """The digest of values that come in blocks: of their lengths, and of what they hold, each as one stream.

    Numbers of any width count as their float64 value, so that a column that turns from integers to floats when rows
    are appended keeps the digests of its earlier rows.
    """

    def __init__(self) -> None:
        self._values, self._lengths = blake2b(digest_size=ROW_BYTES), blake2b(digest_size=ROW_BYTES)

    def update(self, values: Any, lengths: npt.NDArray[np.int64] | None = None) -> None:
        """More bytes, in rows of these lengths where they differ."""
        self._values.update(values)
        if lengths is not None:
            self._lengths.update(np.ascontiguousarray(lengths, dtype="<i8").data)

    def add_column(self, array: Any) -> None:
        """The rows of an Arrow array."""
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if is_fixed(array.type):
            self.update(number_bits(array).data)
        elif is_list(array.type):
            self.update(b"", _lengths(pc.list_value_length(array)))
            self.add_column(array.flatten())
        elif is_text(array.type) or is_bytes(array.type):
            whole = array.cast(pa.large_string() if is_text(array.type) else pa.large_binary())
            self.update(_joined(whole.fill_null("" if is_text(array.type) else b"")), _lengths(pc.binary_length(array)))
        elif pa.types.is_fixed_size_binary(array.type) and not array.null_count:
            self.update(fixed_bytes(array))
        else:
            self.add_column(pa.array([repr(value) for value in array.to_pylist()], pa.string()))

    def digest(self) -> bytes:
        """Of everything so far."""
        return digest_of(self._lengths.digest() + self._values.digest())


def row_codes(array: Any) -> npt.NDArray[np.uint64]:
    """A 64-bit number for each row, (n,): equal where the values are, in every block alike, and rarely elsewhere."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if is_fixed(array.type):
        return number_bits(array)
    values = array.to_pylist() if not (is_text(array.type) or is_bytes(array.type)) else array
    texts = np.array([repr(value) for value in values], object) if values is not array else array.to_numpy(False)
    return np.asarray(pd.util.hash_array(texts, categorize=False), np.uint64)


def number_bits(array: Any) -> npt.NDArray[np.uint64]:
    """The bits of each value's float64 value, (n,); of integers beyond 2^53 their own, of missing ones a NaN's."""
    if pa.types.is_null(array.type):
        return np.full(len(array), _NULL_BITS)
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int64() if array.type.bit_width == 64 else pa.int32())
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_integer(array.type):
        integers = array.fill_null(0).to_numpy(zero_copy_only=False)
        bits = integers.astype(np.float64).view(np.uint64)
        large = (integers > _EXACT) | (integers < -_EXACT)
        bits[large] = integers[large].astype(np.uint64, casting="unsafe")
    else:
        floats = array.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy(zero_copy_only=False)
        bits = np.array(floats, dtype=np.float64).view(np.uint64)
        missing = missing | np.isnan(floats)
    bits[missing] = _NULL_BITS
    return np.asarray(bits.astype("<u8", copy=False))


def fixed_bytes(column: Any) -> bytes:
    """The bytes of a column of fixed width, row after row."""
    width = column.type.byte_width
    _, data = column.buffers()
    return bytes(memoryview(data)[column.offset * width : (column.offset + len(column)) * width])


def fixed_column(data: bytes, rows: int) -> Any:
    """The column of ROW_BYTES bytes a row that ``data`` holds, row after row."""
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(ROW_BYTES), rows, [None, pa.py_buffer(data)])


def is_number(kind: Any) -> bool:
    """Whether values of this Arrow type are numbers, true and false, or missing without exception."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    )


def is_fixed(kind: Any) -> bool:
    """Whether ``number_bits`` takes values of this Arrow type."""
    return is_number(kind) or bool(pa.types.is_temporal(kind))


def is_text(kind: Any) -> bool:
    """Whether values of this Arrow type are text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: Any) -> bool:
    """Whether values of this Arrow type are bytes of any length."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_list(kind: Any) -> bool:
    """Whether values of this Arrow type are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _lengths(lengths: Any) -> npt.NDArray[np.int64]:
    """The lengths of rows, -1 where one is missing."""
    found = lengths.cast(pa.int64())
    return np.asarray(found.fill_null(-1).to_numpy(zero_copy_only=False))


def _joined(array: Any) -> Any:
    """The bytes of all rows of a large text or binary array one after the other."""
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return memoryview(data)[bounds[0] : bounds[-1]] if data is not None and len(array) else b""


@dataclass(frozen=True)
class Shard:
    """Rows ``start`` to ``stop`` of a split. ``digest`` covers the content of their encoder inputs, nothing else.

    So the embeddings of a shard are found again under its digest after rows were appended to the split, after a target
    was corrected, or when the split was moved. (A row whose target is not a number counts as one without an input.)
    """

    index: int
    start: int
    rows: int
    digest: str

    @property
    def stop(self) -> int:
        """One past the last row."""
        return self.start + self.rows


@dataclass(frozen=True)
class SampleDesign:
    """Columns of some rows, (n,) each, None where the split names none.

    Attributes:
        groups: int64 codes, equal where rows belong together, in every part of the split alike.
        time: int64 (microseconds, or the whole numbers of the column) or float64: rows are ordered by it.
        weight: float64, at least 0.
        exposure: float64, above 0.
    """

    groups: Array | None = None
    time: Array | None = None
    weight: Array | None = None
    exposure: Array | None = None

    def rows(self, chosen: Array | slice) -> SampleDesign:
        """Of some of the rows, by a mask, their numbers or a slice."""
        return SampleDesign(**{role: None if values is None else values[chosen] for role, values in vars(self).items()})
