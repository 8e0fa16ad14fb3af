"""One shard's embeddings as a Zarr v3 array of two objects: its metadata and one Zarr shard that holds all rows."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.storage import MemoryStore

METADATA = "zarr.json"
DATA = "0.0"
_CHUNK_ROWS = 1024


@lru_cache(maxsize=64)
def array_metadata(rows: int, dimension: int, dtype: str) -> bytes:
    """The metadata document of a shard's array.

    Written out rather than left to the library's defaults: the same bytes by every version of it, and at a tenth of the
    cost of creating an array.
    """
    chunk = min(rows, _CHUNK_ROWS)
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    sharding = {
        "chunk_shape": [chunk, dimension],
        "codecs": [little, {"name": "zstd", "configuration": {"level": 1, "checksum": True}}],
        "index_codecs": [little, {"name": "crc32c"}],
        "index_location": "end",
    }
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [rows, dimension],
        "data_type": dtype,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [-(-rows // chunk) * chunk, dimension]},
        },
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}},  # no folder for a single object
        "fill_value": "NaN",
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": {},
    }
    return json.dumps(document, indent=1).encode()


def encoded(embeddings: npt.NDArray[Any]) -> bytes:
    """The object under the key DATA of an array of ``embeddings`` (rows, dimension)."""
    objects = _objects(array_metadata(*embeddings.shape, str(embeddings.dtype)))
    array = zarr.open_array(MemoryStore(objects), mode="r+", zarr_format=3, config={"write_empty_chunks": True})
    array[:] = embeddings
    return objects[DATA].to_bytes()


def decoded(data: bytes, rows: int, dimension: int, dtype: str) -> npt.NDArray[np.float32]:
    """The embeddings in an object that ``encoded`` made."""
    memory = MemoryStore(_objects(array_metadata(rows, dimension, dtype), data))
    return np.asarray(zarr.open_array(memory, mode="r", zarr_format=3)[:], dtype=np.float32)


def _objects(metadata: bytes, data: bytes | None = None) -> dict[str, Buffer]:
    """What a store in memory holds, and goes on to write into."""
    buffer = default_buffer_prototype().buffer
    objects = {METADATA: metadata} | ({} if data is None else {DATA: data})
    return {key: buffer.from_bytes(content) for key, content in objects.items()}
