"""What a store says of itself: the encoder whose embeddings it holds, and the shards of a split, in order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import zarr
from zarr.core.buffer import Buffer
from zarr.storage import MemoryStore

from congruence.tasks.data.split import Shard
from congruence.tasks.embeddings.addresses import StoreAddress
from congruence.tasks.embeddings.arrays import METADATA
from congruence.tasks.embeddings.errors import StoreError
from congruence.tasks.embeddings.markers import DamagedError, digest_of, sealed, shards_digest, unsealed
from congruence.tasks.embeddings.objects import ObjectStore
from congruence.tasks.embeddings.rows_to_store import DType

_FORMAT = 2


class ShardPlan(Protocol):
    """What the store asks of a split."""

    @property
    def shards(self) -> list[Shard]:
        """In order."""

    @property
    def digest(self) -> str:
        """Names the rows, however they are cut into shards."""


def store_header(encoder_id: str, preprocessing_digest: str, dimension: int, dtype: DType) -> dict[str, Any]:
    """What decides which embeddings a store holds beside the inputs; its digest is the store's encoder key."""
    return {
        "format": _FORMAT,
        "encoder_id": encoder_id,
        "preprocessing_digest": preprocessing_digest,
        "dimension": dimension,
        "dtype": dtype,
    }


def plan_of(split: ShardPlan) -> str:
    """Names a split as it is cut into shards: a split's own digest does not depend on their size."""
    return f"{split.digest}-{shards_digest(split.shards)[:8]}"


def write_hierarchy(
    objects: ObjectStore, address: StoreAddress, header: Mapping[str, Any], shards: Sequence[Shard]
) -> None:
    """Write the groups that a Zarr reader descends, the encoder's with ``header``, and the list of ``shards``."""
    groups = {"": None, f"{address.encoder_key}/": dict(header), f"{address.encoder_key}/shards/": None}
    for key, attributes in groups.items():
        made: dict[str, Buffer] = {}
        zarr.create_group(MemoryStore(made), attributes=attributes)
        objects.put_if_other(f"{key}{METADATA}", made[METADATA].to_bytes())
    rows = shards[-1].stop if shards else 0
    listing = {"rows": rows, "shards": [[shard.digest, shard.rows] for shard in shards]}
    objects.put_if_other(_split_key(address), sealed(listing))


def read_hierarchy(objects: ObjectStore, address: StoreAddress) -> tuple[dict[str, Any], list[Shard]]:
    """The header and the shards that ``write_hierarchy`` wrote.

    Raises:
        StoreError: there are none for this encoder and split, or they are damaged.
    """
    encoder, split = f"{address.encoder_key}/{METADATA}", _split_key(address)
    described, listed = objects.get(encoder), objects.get(split)
    if described is None or listed is None:
        raise StoreError(
            f"{objects.uri}: {encoder if described is None else split} does not exist: nobody made this store for "
            "the split, or it was removed; run the evaluation again"
        )
    try:
        header: dict[str, Any] = json.loads(described)["attributes"]
        shards = _shards_from(unsealed(listed)["shards"])
    except (DamagedError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{objects.uri}: {encoder} or {split} is damaged; run the evaluation again") from error
    if digest_of(header) != address.encoder_key:
        raise StoreError(f"{objects.uri}: {encoder} is damaged; run the evaluation again")
    return header, shards


def _split_key(address: StoreAddress) -> str:
    return f"{address.encoder_key}/splits/{address.plan}.json"


def _shards_from(listed: list[list[Any]]) -> list[Shard]:
    shards: list[Shard] = []
    start = 0
    for index, (digest, rows) in enumerate(listed):
        shards.append(Shard(index, start, rows, digest))
        start += rows
    return shards
