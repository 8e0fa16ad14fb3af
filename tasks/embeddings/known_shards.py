"""What a process knows of a split's shards: its summary, markers and rows read lately, and when to forget them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from congruence.tasks.data.split import Shard
from congruence.tasks.embeddings.errors import NotEmbeddedError, StoreError
from congruence.tasks.embeddings.markers import DamagedError, Marker, Summary
from congruence.tasks.embeddings.objects import ObjectStore
from congruence.tasks.embeddings.shard_files import ShardFiles

_CACHED_SHARDS = 2
_AT_ONCE = 16
Result = TypeVar("Result")


class KnownShards:
    """The shards of one split as they were last seen; it may be used from many threads.

    Args:
        objects: of the store.
        files: of the encoder.
        shards: of the split, in order.
        plan: names them, see ``plan_of``.
    """

    def __init__(self, objects: ObjectStore, files: ShardFiles, shards: Sequence[Shard], plan: str):
        self._objects = objects
        self._files = files
        self._shards = shards
        self._summary_key = f"{files.encoder_key}/complete/{plan}.json"
        self._cache: OrderedDict[str, npt.NDArray[np.float32]] = OrderedDict()
        self._markers: dict[str, Marker] = {}
        self._summary: Summary | None = None
        self._lock = Lock()

    def summary(self) -> Summary | None:
        """The summary of the finished split, as it was read before; None where there is none."""
        return self._summary or self.load_summary()

    def load_summary(self) -> Summary | None:
        """The summary of the finished split as it is now; None where there is none."""
        data = self._objects.get(self._summary_key)
        try:
            self._summary = None if data is None else Summary.parse(data, self._files.encoder_key, self._shards)
        except DamagedError:
            self._summary = None
        return self._summary

    def summarise(self) -> list[Shard]:
        """Read all markers and write the summary, unless some are damaged: those."""

        def read(shard: Shard) -> Marker | None:
            try:
                return self._files.read_marker(shard)
            except StoreError:
                return None

        markers = list(each(read, self._shards))
        damaged = [shard for shard, marker in zip(self._shards, markers, strict=True) if marker is None]
        if not damaged:
            summary = Summary.of(self._shards, [marker for marker in markers if marker is not None])
            self._objects.put(self._summary_key, summary.to_bytes(self._files.encoder_key, self._shards))
            self._summary = summary
        return damaged

    def marker(self, shard: Shard) -> Marker:
        """The shard's marker, read once; ``forget`` it where it may have changed."""
        known = self._markers.get(shard.digest)
        if known is None:
            known = self._markers[shard.digest] = self._files.read_marker(shard)
        return known

    def rows(self, shard: Shard, summary: Summary | None) -> npt.NDArray[np.float32]:
        """The shard's rows (rows, dimension), kept for the next call; ``summary``: of the split, where there is one.

        Raises:
            StoreError: the shard is not done or damaged; then it is no longer taken for done.
        """
        with self._lock:
            held = self._cache.get(shard.digest)
        if held is None:
            held = self._read(shard, summary)
            with self._lock:
                self._cache[shard.digest] = held
                while len(self._cache) > _CACHED_SHARDS:
                    self._cache.popitem(last=False)
        return held

    def forget(self, shard: Shard) -> None:
        """What this process knows of a shard and of the finished split."""
        with self._lock:
            self._cache.pop(shard.digest, None)
            self._markers.pop(shard.digest, None)
            self._summary = None

    def distrust(self, shard: Shard) -> None:
        """Take the marker off a shard whose data are damaged, so that the next run embeds it again."""
        self.forget(shard)
        self.remove_summaries()
        self._remove([self._files.marker_key(shard)])

    def remove_summaries(self) -> None:
        """Those of all splits of this encoder: which of them share a shard is not known. Markers tell the same."""
        self._remove(list(self._objects.sizes(f"{self._files.encoder_key}/complete", depth=1)))

    def _read(self, shard: Shard, summary: Summary | None) -> npt.NDArray[np.float32]:
        """As this process knows the shard; where that fails as its marker says now, which may be newer."""
        if summary is not None or shard.digest in self._markers:
            entry = self.marker(shard).entry if summary is None else summary.entry(shard)
            try:
                return self._files.checked(shard, entry)
            except StoreError:
                self.forget(shard)
        try:
            rows = self._files.checked(shard, self.marker(shard).entry)
        except NotEmbeddedError:
            if summary is not None:  # it vouches for what is gone
                self.remove_summaries()
            raise
        except StoreError:
            self.distrust(shard)
            raise
        if summary is not None:  # it is older than the marker
            self.remove_summaries()
        return rows

    def _remove(self, keys: list[str]) -> None:
        try:
            self._objects.remove(keys)
        except OSError as error:
            raise StoreError(
                f"{self._objects.uri}: embeddings were found damaged, and {' and '.join(keys)} cannot be removed "
                f"({error}), by which the next run would see it; remove them, and run again"
            ) from error


def each(work: Callable[[Shard], Result], shards: Sequence[Shard], *, side_by_side: bool = True) -> Iterable[Result]:
    """``work`` of every shard, in order; side by side where it waits for a network."""
    if len(shards) < 2 or not side_by_side:
        return map(work, shards)
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as threads:
        return list(threads.map(work, shards))
