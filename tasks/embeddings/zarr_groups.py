"""Arrays as one Zarr group made in memory, so that it is written and checked whole.

What a step stores is done when its marker, written after the data, exists; the marker names the data by the digest of
its content and carries the SHA-256 of every object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import ZstdCodec
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.storage import MemoryStore

Get = Callable[[str], bytes | None]


def encode_group(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, bytes]:
    """The objects, by key, of a Zarr v3 group that holds each array in one chunk."""
    objects: dict[str, Buffer] = {}
    memory = MemoryStore(objects)
    zarr.create_group(memory)
    for name, values in arrays.items():
        stored = zarr.create_array(
            memory,
            name=name,
            shape=values.shape,
            chunks=tuple(max(1, size) for size in values.shape),
            dtype=values.dtype,
            compressors=ZstdCodec(level=1, checksum=True),
        )
        stored[...] = values
    return {key: buffer.to_bytes() for key, buffer in sorted(objects.items())}


def decode_group(objects: Mapping[str, bytes]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of ``encode_group``."""
    prototype = default_buffer_prototype()
    memory = MemoryStore({key: prototype.buffer.from_bytes(content) for key, content in objects.items()})
    group = zarr.open_group(memory, mode="r", use_consolidated=False)
    return {name: np.asarray(array[...]) for name, array in group.arrays()}


def checksums(objects: Mapping[str, bytes]) -> dict[str, str]:
    """The SHA-256 of each object."""
    return {key: sha256(content).hexdigest() for key, content in objects.items()}


def checked_objects(sha256s: Mapping[str, str], get: Get) -> dict[str, bytes] | str:
    """The objects that a marker names, or what is wrong with them."""
    found: dict[str, bytes] = {}
    for key, checksum in sha256s.items():
        content = get(key)
        if content is None:
            return f"lacks {key}"
        if sha256(content).hexdigest() != checksum:
            return f"is damaged: {key} does not have its checksum"
        found[key] = content
    return found
