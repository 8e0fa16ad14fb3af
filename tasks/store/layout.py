"""How the embeddings of a split by an encoder lie in a store: a Zarr group, and where each object of it is.

    <store>/<encoder key>/<split digest>-<rows of a shard>/    attributes: encoder, split, sizes, digests of the shards
        embeddings    (n, d), NaN where a row is invalid; one Zarr shard for each shard of the split
        valid         (n,), whether a row has an embedding
        reason        (n,), why it has none, "" where it has
        key           (n,), the row's key as text
        target        (n, q), its targets, NaN where the split has none

Row i of each array is row i of the split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import zarr
from zarr.codecs import ZstdCodec

from congruence.tasks.data.shards import Shard

DType = Literal["float32", "float16"]
ARRAYS = ("embeddings", "valid", "reason", "key", "target")
_FORMAT = 3
_CHUNK_ROWS = 1024


class CutSplit(Protocol):
    """What the store asks of a split."""

    @property
    def shards(self) -> list[Shard]:
        """In order."""

    @property
    def digest(self) -> str:
        """Names the rows, however they are cut into shards."""


@dataclass(frozen=True)
class StoreAddress:
    """What a worker needs to open the embeddings by one encoder; a few hundred bytes.

    It carries the options of the store's file system, keys included, as the settings in every task do: a scheduler
    forgets them with the task, and they appear in no ``repr``. `open_store_cached` opens it for a split.

    Attributes:
        uri: of the store.
        options: of its file system.
        encoder_key: the encoder, preprocessing, dimension and dtype, by digest.
        dimension: of the embeddings.
        dtype: of the stored values.
    """

    uri: str
    options: Mapping[str, Any] = field(repr=False, hash=False)
    encoder_key: str
    dimension: int
    dtype: DType = "float32"


def store_header(encoder_id: str, preprocessing_digest: str, dimension: int, dtype: DType) -> dict[str, Any]:
    """Returns what decides which embeddings a store holds beside the inputs; its digest is the encoder key."""
    return {
        "format": _FORMAT,
        "encoder_id": encoder_id,
        "preprocessing_digest": preprocessing_digest,
        "dimension": dimension,
        "dtype": dtype,
    }


def group_folder(encoder_key: str, split: CutSplit) -> str:
    """Returns where in a store the embeddings of ``split`` by an encoder lie."""
    return f"{encoder_key}/{split.digest}-{split.shards[0].rows if split.shards else 0}"


def object_key(folder: str, name: str, shard: Shard) -> str:
    """Returns where a shard's rows of an array lie."""
    return f"{folder}/{name}/c.{shard.index}" + (".0" if name in ("embeddings", "target") else "")


def group_metadata(
    rows: int, shard_rows: int, dimension: int, dtype: DType, attributes: Mapping[str, Any]
) -> dict[str, bytes]:
    """Returns the metadata of a group by their keys below it, the group's own last; ``attributes`` name ``targets``."""
    size, targets = max(1, shard_rows), max(1, len(attributes.get("targets", ())))
    made: dict[str, Any] = {}
    group = zarr.create_group(zarr.storage.MemoryStore(made), zarr_format=3, attributes=dict(attributes))
    common: dict[str, Any] = {
        "compressors": ZstdCodec(level=1, checksum=True),
        "chunk_key_encoding": {"name": "default", "separator": "."},  # no folder for a single object
    }
    group.create_array(
        "embeddings",
        shape=(rows, dimension),
        shards=(size, dimension),
        chunks=(_CHUNK_ROWS if size % _CHUNK_ROWS == 0 else size, dimension),
        dtype=dtype,
        fill_value=np.nan,
        dimension_names=("row", "dimension"),
        **common,
    )
    group.create_array(
        "target",
        shape=(rows, targets),
        chunks=(size, targets),
        dtype="float64",
        fill_value=np.nan,
        dimension_names=("row", "target"),
        **common,
    )
    columns: dict[str, tuple[str, Any]] = {"valid": ("bool", False), "reason": ("string", ""), "key": ("string", "")}
    for name, (dtype_of_column, fill) in columns.items():
        sizes: dict[str, Any] = {"shape": (rows,), "chunks": (size,), "dimension_names": ("row",)}
        group.create_array(name, dtype=dtype_of_column, fill_value=fill, **sizes, **common)
    return {key: made[key].to_bytes() for key in sorted(made, key=lambda key: (-key.count("/"), key))}
