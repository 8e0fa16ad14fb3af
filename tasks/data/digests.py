"""Content digests of columns that do not depend on how the rows were cut into files, row groups or batches."""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

ROW_BYTES = 16
_NULL = b"\x00" * ROW_BYTES
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


def canonical_bytes(array: Any) -> bytes:
    """The rows of an Arrow array as bytes that only depend on their values, row after row.

    Numbers of any width become the 8 bytes of their float64 value, so that a column that turns from integers to
    floats when rows are appended keeps the digests of its earlier rows; text and bytes become a digest each.
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        return _NULL_BITS.tobytes() * len(array)
    if is_number(array.type):
        return _numbers(array)
    if is_text(array.type) or is_bytes(array.type) or pa.types.is_fixed_size_binary(array.type):
        return b"".join(_NULL if view is None else digest_of(view) for view in byte_views(array))
    if pa.types.is_temporal(array.type):
        return _numbers(array.cast(pa.int64() if array.type.bit_width == 64 else pa.int32()))
    return b"".join(digest_of(repr(value).encode()) for value in array.to_pylist())


def byte_views(array: Any) -> Iterable[memoryview | None]:
    """Each row of a text or binary array as a view of its bytes, None where it is missing."""
    wide = pa.large_binary() if is_text(array.type) else array.type
    array = array.cast(wide) if array.type != wide else array
    if not is_bytes(array.type):
        array = array.cast(pa.large_binary())
    width = np.int32 if pa.types.is_binary(array.type) else np.int64
    _, offset_buffer, data = array.buffers()
    offsets = np.frombuffer(offset_buffer, width)[array.offset : array.offset + len(array) + 1].tolist()
    view = memoryview(data) if data is not None else memoryview(b"")
    missing = array.is_null().to_numpy(zero_copy_only=False)
    for row in range(len(array)):
        yield None if missing[row] else view[offsets[row] : offsets[row + 1]]


def is_number(kind: Any) -> bool:
    """Whether values of this Arrow type have a canonical form of 8 bytes that follows from their float64 value."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    )


def is_text(kind: Any) -> bool:
    """Whether values of this Arrow type are text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: Any) -> bool:
    """Whether values of this Arrow type are bytes of any length."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _numbers(array: Any) -> bytes:
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_integer(array.type):
        integers = array.fill_null(0).to_numpy(zero_copy_only=False)
        bits = integers.astype(np.float64).view(np.uint64)
        large = (integers > _EXACT) | (integers < -_EXACT)
        bits[large] = integers[large].astype(np.uint64, casting="unsafe")
    else:
        floats = array.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy(zero_copy_only=False)
        bits = np.array(floats, dtype=np.float64).view(np.uint64)
    bits[missing] = _NULL_BITS
    return bytes(bits.astype("<u8").tobytes())
