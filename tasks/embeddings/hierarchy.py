"""What a store says of itself to any Zarr reader: the encoder whose embeddings it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import zarr
from zarr.core.buffer import Buffer
from zarr.storage import MemoryStore

from congruence.tasks.embeddings.arrays import METADATA
from congruence.tasks.embeddings.objects import ObjectStore
from congruence.tasks.embeddings.precision import DType

_FORMAT = 2


def store_header(encoder_id: str, preprocessing_digest: str, dimension: int, dtype: DType) -> dict[str, Any]:
    """What decides which embeddings a store holds beside the inputs; its digest is the store's encoder key."""
    return {
        "format": _FORMAT,
        "encoder_id": encoder_id,
        "preprocessing_digest": preprocessing_digest,
        "dimension": dimension,
        "dtype": dtype,
    }


def write_groups(objects: ObjectStore, encoder_key: str, header: Mapping[str, Any]) -> None:
    """Write the groups that a Zarr reader descends, the encoder's with ``header``."""
    groups = {"": None, f"{encoder_key}/": dict(header), f"{encoder_key}/shards/": None}
    for key, attributes in groups.items():
        made: dict[str, Buffer] = {}
        zarr.create_group(MemoryStore(made), attributes=attributes)
        objects.put_if_other(f"{key}{METADATA}", made[METADATA].to_bytes())
