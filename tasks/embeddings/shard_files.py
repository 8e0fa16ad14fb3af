"""A shard in an object store: where its marker and its data lie, and whether these are what the marker says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from congruence.tasks.data.split import Shard
from congruence.tasks.embeddings.arrays import DATA, array_metadata, decoded
from congruence.tasks.embeddings.errors import NotEmbeddedError, StoreError
from congruence.tasks.embeddings.markers import Marker
from congruence.tasks.embeddings.objects import ObjectStore
from congruence.tasks.embeddings.precision import DType
from congruence.tasks.runtime.files import DamagedError, content_digest


@dataclass(frozen=True)
class ShardFiles:
    """The shards of one encoder; nothing is remembered here."""

    objects: ObjectStore
    encoder_key: str
    dimension: int
    dtype: DType

    def marker_key(self, shard: Shard) -> str:
        """Where its marker lies."""
        return f"{self.encoder_key}/done/{shard.digest}.json"

    def data_key(self, shard: Shard, content: str, name: str = DATA) -> str:
        """Where its data of that content lie."""
        return f"{self.encoder_key}/shards/{shard.digest}-{content}/{name}"

    def metadata(self, shard: Shard) -> bytes:
        """What tells other programs how to read its data."""
        return array_metadata(shard.rows, self.dimension, self.dtype)

    def read_marker(self, shard: Shard) -> Marker:
        """What its marker says.

        Raises:
            StoreError: there is none, or it is damaged.
        """
        data = self.objects.get(self.marker_key(shard))
        if data is None:
            raise NotEmbeddedError(str(self.error(shard, "is not embedded yet")))
        try:
            return Marker.parse(data, self.encoder_key, shard)
        except DamagedError as error:
            raise self.error(shard, f"has a marker that {error}") from error

    def remove_marker(self, shard: Shard) -> None:
        """Have the shard no longer taken for done."""
        key = self.marker_key(shard)
        try:
            self.objects.remove(key)
        except OSError as error:
            raise StoreError(
                f"{self.objects.uri}: embeddings were found damaged, and {key} cannot be removed ({error}), by which "
                "the next run would see it; remove it, and run again"
            ) from error

    def checked(self, shard: Shard, marker: Marker) -> npt.NDArray[np.float32]:
        """Its rows, (rows, dimension), if they are what the marker says.

        Raises:
            StoreError: they are missing or damaged.
        """
        data = self.objects.get(self.data_key(shard, marker.content))
        if data is None:
            raise self.error(shard, "lacks its data")
        if content_digest(data) != marker.content:
            raise self.error(shard, "is damaged: its data do not have their checksum")
        try:
            rows = decoded(data, shard.rows, self.dimension, self.dtype)
        except Exception as error:  # Zarr's codecs each have their own for data of another shape or form
            raise self.error(shard, f"holds no {shard.rows} x {self.dimension} embeddings ({error})") from error
        if set(np.flatnonzero(np.isnan(rows[:, 0])).tolist()) != marker.reasons.keys():
            raise self.error(shard, "contradicts its marker")
        return rows

    def error(self, shard: Shard, what: str) -> StoreError:
        """What is wrong with it, and the remedy."""
        return StoreError(
            f"{self.objects.uri}: shard {shard.index} (rows {shard.start} to {shard.start + shard.rows}) {what}; "
            "rerun: only this shard is re-embedded"
        )

    def is_whole(self, shard: Shard) -> bool:
        """Whether its marker is, and its data of the size that the marker says; data are not read."""
        try:
            marker = self.read_marker(shard)
        except StoreError:
            return False
        return self.objects.size(self.data_key(shard, marker.content)) == marker.size
