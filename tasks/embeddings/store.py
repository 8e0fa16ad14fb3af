"""The embeddings of a split in Zarr: shared by every model version, later run and concurrent evaluation.

Layout below the store's URI, a Zarr v3 hierarchy that any Zarr reader opens, with JSON objects beside the arrays:

    <encoder key>/zarr.json                    attributes: encoder, preprocessing, dimension, dtype
    <encoder key>/done/<shard digest>.json     the marker of a shard: written last, names its data by digest
    <encoder key>/shards/<shard digest>-<content>/   (rows, dimension), one Zarr shard, NaN where a row is invalid
    <encoder key>/batch_size/<device>.json     the batch size that was measured, once for all who embed on such a device

Markers alone say what is finished, and one listing finds what is not. Data is checked against its digest whenever it is
read; a shard found damaged loses its marker, so that the next run embeds it again. One shard of the split is one Zarr
array of one Zarr shard, so two writers never share a Zarr shard (parts of one written side by side lose rows). The data
lies under the digest of its own content: two writers of equal bytes write the same objects, and of unequal ones the
last marker decides while the other's data stays whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from congruence.tasks.data.split import Shard
from congruence.tasks.embeddings.addresses import StoreAddress
from congruence.tasks.embeddings.arrays import METADATA, encoded
from congruence.tasks.embeddings.errors import StoreError
from congruence.tasks.embeddings.hierarchy import store_header, write_groups
from congruence.tasks.embeddings.known_shards import KnownShards, each
from congruence.tasks.embeddings.markers import Marker
from congruence.tasks.embeddings.objects import ObjectStore
from congruence.tasks.embeddings.precision import DType, in_precision
from congruence.tasks.embeddings.shard_files import ShardFiles
from congruence.tasks.runtime.files import DamagedError, content_digest, digest_of, sealed, unsealed
from congruence.tasks.runtime.made_once import MadeOnce

__all__ = ["DType", "EmbeddingStore", "StoreError", "open_store_cached"]


class CutSplit(Protocol):
    """What the store asks of a split."""

    @property
    def shards(self) -> list[Shard]:
        """In order."""

    @property
    def digest(self) -> str:
        """Names the rows, however they are cut into shards."""


class EmbeddingStore:
    """The raw (not normalised) embeddings of one split by one encoder; row i is row i of the split.

    It may be used from many threads.
    """

    def __init__(self, address: StoreAddress, shards: Sequence[Shard]):
        self.address = address
        self._objects = ObjectStore(address.uri, address.options)
        self._shards = list(shards)
        self._starts = [shard.start for shard in shards]
        self.rows = shards[-1].stop if shards else 0
        self.dimension, self.dtype, self.encoder_key = address.dimension, address.dtype, address.encoder_key
        self._files = ShardFiles(self._objects, self.encoder_key, self.dimension, self.dtype)
        self._known = KnownShards(self._files)

    @classmethod
    def open(
        cls,
        uri: str,
        *,
        split: CutSplit,
        encoder_id: str,
        preprocessing_digest: str,
        dimension: int,
        dtype: DType = "float32",
        storage_options: Mapping[str, Any] | None = None,
    ) -> EmbeddingStore:
        """The part of the store at ``uri`` that belongs to this split, encoder and preprocessing, made if need be.

        Settings that give other embeddings have another key, so that they never meet; shards that an earlier split
        has in common with this one are found done. float16 halves the store at a relative rounding error of at most
        2^-11 = 4.9e-4 per value (about 6.5e-4 in the CCE); values beyond 65504 are refused.
        """
        header = store_header(encoder_id, preprocessing_digest, dimension, dtype)
        address = StoreAddress(uri, dict(storage_options or {}), digest_of(header), dimension, dtype)
        store = cls(address, split.shards)
        store.sweep()
        write_groups(store._objects, address.encoder_key, header)
        return store

    def is_done(self, shard: Shard) -> bool:
        """Whether the shard's marker is whole and its data of the size that the marker says; data are not read."""
        return self._files.is_whole(shard)

    def pending(self) -> list[Shard]:
        """The shards that are still to be embedded, or to be embedded again because they were found damaged.

        By one listing of the markers; where none is missing they are read. So ask again when these are done, until
        there are none.
        """
        sizes = self._objects.sizes(f"{self.encoder_key}/done", depth=1)
        missing = [shard for shard in self._shards if not sizes.get(self._files.marker_key(shard))]
        return missing or self._known.damaged(self._shards)

    def batch_size(self, device: str) -> int | None:
        """The batch size that was settled for a kind of device ("cpu", "cuda"), None where none is or it is damaged.

        What a matrix product gives depends on the number of its rows, in the last bits: only with one batch size for
        every worker and later run does a shard have the same bytes whichever worker embeds it.
        """
        try:
            return int(unsealed(self._objects.get(self._batch_size_key(device)) or b"")["batch_size"])
        except (DamagedError, KeyError, TypeError, ValueError):
            return None

    def settle_batch_size(self, device: str, found: int) -> int:
        """Settle on ``found`` for a kind of device, unless another worker was first: the batch size to use."""
        data = sealed({"batch_size": found})
        self._objects.put_if_absent(self._batch_size_key(device), data)
        settled = self.batch_size(device)
        if settled is None:  # damaged
            self._objects.put(self._batch_size_key(device), data)
        return settled or found

    def write(
        self,
        shard: Shard,
        embeddings: npt.ArrayLike,
        reasons: Mapping[int, str],
        batch_size: int | None = None,
    ) -> None:
        """Store the rows of one shard: the data first, the marker last. Rows with a reason become NaN.

        Args:
            shard: one of the split's shards.
            embeddings: (rows, dimension), finite but in rows with a reason.
            reasons: why rows are invalid, by row within the shard.
            batch_size: rows that were embedded at a time, for the record.

        Raises:
            StoreError: a valid row overflows the dtype.
        """
        exact, valid = np.array(embeddings, dtype=np.float32), np.ones(shard.rows, dtype=bool)
        valid[list(reasons)] = False
        exact[~valid] = np.nan
        data = encoded(in_precision(shard, exact, valid, self.dtype))
        content = content_digest(data)
        marker = Marker(content, len(data), batch_size, dict(reasons))
        self._objects.put_if_other(self._files.data_key(shard, content), data)
        self._objects.put_if_other(self._files.data_key(shard, content, METADATA), self._files.metadata(shard))
        self._known.forget(shard)
        self._objects.put(self._files.marker_key(shard), marker.to_bytes(self.encoder_key, shard))

    def read(self, rows: slice | None = None) -> npt.NDArray[np.float32]:
        """The embeddings of ``rows`` (a slice of the split's rows with step 1), float32, NaN where invalid.

        Raises:
            StoreError: a shard that is not done or damaged.
        """
        start, stop = self._bounds(rows)
        result = np.empty((stop - start, self.dimension), dtype=np.float32)

        def fill(shard: Shard) -> None:
            first, last = max(start, shard.start), min(stop, shard.stop)
            held = self._known.rows(shard)
            result[first - start : last - start] = held[first - shard.start : last - shard.start]

        for _ in each(fill, self._overlapping(start, stop), side_by_side=not self._objects.is_local):
            pass
        return result

    def valid(self, rows: slice | None = None) -> npt.NDArray[np.bool_]:
        """Which of ``rows`` have an embedding."""
        start, stop = self._bounds(rows)
        valid = np.ones(stop - start, dtype=bool)
        valid[[row - start for row in self.reasons(rows)]] = False
        return valid

    def reasons(self, rows: slice | None = None) -> dict[int, str]:
        """Why, for each invalid row of ``rows``, by row of the split."""
        start, stop = self._bounds(rows)
        shards = self._overlapping(start, stop)
        markers = each(self._known.marker, shards)
        found = {
            shard.start + row: reason
            for shard, marker in zip(shards, markers, strict=True)
            for row, reason in sorted(marker.reasons.items())
        }
        return {row: reason for row, reason in found.items() if start <= row < stop}

    def sweep(self) -> None:
        """Remove the half-written files of processes that are gone; nothing ever reads them."""
        self._objects.sweep()

    def _batch_size_key(self, device: str) -> str:
        return f"{self.encoder_key}/batch_size/{device}.json"

    def _overlapping(self, start: int, stop: int) -> list[Shard]:
        if start >= stop:
            return []
        return self._shards[max(0, bisect_left(self._starts, start + 1) - 1) : bisect_left(self._starts, stop)]

    def _bounds(self, rows: slice | None) -> tuple[int, int]:
        start, stop, step = (rows or slice(None)).indices(self.rows)
        if step != 1:
            raise StoreError(f"rows {rows} of the store: only step 1 is read; select from the result")
        return start, max(start, stop)


def open_store_cached(address: StoreAddress, split: CutSplit) -> EmbeddingStore:
    """The store at ``address`` for a split, opened at most once in this process; it may be read from any thread."""
    shards = split.shards
    key = (address, split.digest, len(shards), shards[0].rows if shards else 0)
    return _opened.get(key, lambda: EmbeddingStore(address, shards))


_opened = MadeOnce[EmbeddingStore](8)
