"""What columns hold: numbers and texts, by their types; their digests; and the inputs that encoders read of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from congruence.tasks.encoders.base import InvalidRow

RawInput: TypeAlias = bytes | str | npt.NDArray[np.float64]
Reader: TypeAlias = Callable[[], RawInput]
"""Loads one row when it is called, so that slow reads happen in the threads that decode; raises InvalidRow."""

DIGEST, STATE = "__digest__", "__state__"
"""Columns of what was ingested: 16 bytes of each picture's content, and of the state of the file that it lies in."""
_TURNED = (2048, 64)
"""Rows and columns that are turned at a time: column by column, many columns take seven times as long."""


class InputColumns(ABC):
    """The columns that hold the encoder's input, and how a row of them becomes one.

    Attributes:
        columns: of the source.
        stay: whether they stay in the source's files, of which any rows can be read.
        added: columns that ingesting adds.
    """

    stay = False
    added: Sequence[tuple[str, pa.DataType]] = ()

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = list(columns)

    @property
    def digested(self) -> list[str]:
        """The columns of what was ingested that tell one input from another."""
        return [name for name, _ in self.added if name == DIGEST] or self.columns

    @abstractmethod
    def readers(self, batch: pa.RecordBatch) -> Iterator[Reader]:
        """One reader for each row of ``batch``: its columns, REASON where there is one, and those that were added."""

    def ingested(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Rows of the source as they are kept, with the columns of ``schema``."""
        return batch.select(schema.names)

    def digest(self, batch: pa.RecordBatch, *into: ContentDigest) -> None:
        """Adds the content of the rows of ``batch``, which has the ``digested`` columns."""
        for state in into:
            state.add_column(batch.column(0))


class Texts(InputColumns):
    """A column of texts."""

    def readers(self, batch: pa.RecordBatch) -> Iterator[Reader]:
        for value in batch.column(0).to_pylist():
            yield invalid_row(f"column {self.columns[0]!r} holds no text") if value is None else partial(_itself, value)


def invalid_row(reason: str) -> Reader:
    """The reader of a row that is known to be no input."""
    return partial(_raise, reason)


def _raise(reason: str) -> RawInput:
    raise InvalidRow(reason)


def _itself(value: RawInput) -> RawInput:
    return value


Matrix: TypeAlias = npt.NDArray[np.float64]


class Features(InputColumns):
    """Numeric columns, or one column of vectors."""

    def readers(self, batch: pa.RecordBatch) -> Iterator[Reader]:
        vectors = self.vectors(batch)
        reasons = self.unusable(*vectors)
        for row, (vector, length) in enumerate(zip(*vectors, strict=True)):
            yield invalid_row(reasons[row]) if row in reasons else partial(_itself, vector[:length])

    def digest(self, batch: pa.RecordBatch, *into: ContentDigest) -> None:
        matrix, lengths = self.vectors(batch)
        values = matrix[np.arange(matrix.shape[1]) < lengths[:, None]] if (lengths < matrix.shape[1]).any() else matrix
        missing = np.isnan(values)
        values = np.where(missing, np.nan, values) if missing.any() else values  # whatever bits a NaN had
        for state in into:
            state.update(np.ascontiguousarray(values, dtype="<f8").data.cast("B"), lengths)

    def matrix(self, batch: pa.RecordBatch, *, missing: bool = False) -> tuple[Matrix, dict[int, str]]:
        """The vectors as (rows, d), NaN where a row holds none or a shorter one; and what is ``unusable``."""
        matrix, lengths = self.vectors(batch)
        reasons = self.unusable(matrix, lengths, missing=missing)
        if missing:  # the end of a shorter vector is none that lacks values
            for row in np.flatnonzero(lengths < matrix.shape[1]).tolist():
                reasons.setdefault(row, f"the features have shape ({lengths[row]},); expected ({matrix.shape[1]},)")
        return matrix, reasons

    def vectors(self, batch: pa.RecordBatch) -> tuple[Matrix, npt.NDArray[np.int64]]:
        """The vectors of the rows of ``batch``, (rows, d), NaN beyond the end of shorter ones, and their lengths."""
        if len(self.columns) > 1 or not is_list(batch.schema.field(self.columns[0]).type):
            matrix = np.empty((batch.num_rows, len(self.columns)))
            for first in range(0, len(self.columns), _TURNED[1]):
                names = self.columns[first : first + _TURNED[1]]
                rows = np.stack([_floats(batch.column(name)) for name in names])
                for start in range(0, batch.num_rows, _TURNED[0]):
                    there = slice(start, start + _TURNED[0])
                    matrix[there, first : first + len(names)] = rows[:, there].T
            return matrix, np.full(batch.num_rows, len(self.columns))
        column = batch.column(self.columns[0])
        values = _floats(column.flatten())
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        width = int(lengths.max(initial=0))
        if (lengths == width).all():
            return values.reshape(len(lengths), width), lengths
        matrix = np.full((len(lengths), width), np.nan)
        matrix[np.arange(width) < lengths[:, None]] = values
        return matrix, lengths

    def unusable(self, matrix: Matrix, lengths: npt.NDArray[np.int64], *, missing: bool = False) -> dict[int, str]:
        """Rows without values or with one that is not finite, and why; with ``missing`` those with an infinite one."""
        usable = ~np.isinf(matrix) if missing else np.isfinite(matrix)
        usable |= np.arange(matrix.shape[1]) >= lengths[:, None]
        found = {}
        for row in np.flatnonzero(~usable.all(axis=1) | (lengths == 0)).tolist():
            if not lengths[row]:
                found[row] = f"column {self.columns[0]!r} holds no features"
                continue
            first, more = int(np.argmin(usable[row])), int((~usable[row]).sum()) - 1
            name = repr(self.columns[first]) if len(self.columns) > 1 else f"{self.columns[0]!r}[{first}]"
            found[row] = f"feature {name} is {matrix[row, first]}" + (f", and {more} more" if more else "")
        return found


def to_standardise_by(matrix: Matrix, lengths: npt.NDArray[np.int64], left_out: Collection[int]) -> Matrix:
    """The vectors of the commonest length without an infinite value, (rows, d), NaN where a value is missing."""
    chosen = np.asarray(~np.isinf(matrix).any(axis=1))
    chosen[list(left_out)] = False
    width = int(np.bincount(lengths[chosen]).argmax()) if chosen.any() else 0
    chosen &= lengths == width
    return matrix if chosen.all() and width == matrix.shape[1] else matrix[chosen, :width]


def _floats(column: pa.Array) -> npt.NDArray[np.float64]:
    # A cast costs as much as all the rest, and numpy gives floating-point numbers the same values.
    exact = column if pa.types.is_floating(column.type) else column.cast(pa.float64(), safe=False)
    return np.asarray(exact.to_numpy(zero_copy_only=False), np.float64)


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
    if is_text(array.type) or is_bytes(array.type):
        texts = array.to_numpy(zero_copy_only=False)
    else:
        texts = np.array([repr(value) for value in array.to_pylist()], object)
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


def as_numbers(column: Any) -> npt.NDArray[np.float64]:
    """A column of numbers as float64, NaN where it is null."""
    numbers: npt.NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers


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
