"""What a process knows of a split's shards: their markers, rows read lately, and when to forget them."""

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
from congruence.tasks.embeddings.markers import Marker
from congruence.tasks.embeddings.shard_files import ShardFiles

_CACHED_SHARDS = 2
_AT_ONCE = 16
Result = TypeVar("Result")


class KnownShards:
    """The shards of an encoder as they were last seen; it may be used from many threads."""

    def __init__(self, files: ShardFiles):
        self._files = files
        self._cache: OrderedDict[str, npt.NDArray[np.float32]] = OrderedDict()
        self._markers: dict[str, Marker] = {}
        self._lock = Lock()

    def marker(self, shard: Shard) -> Marker:
        """The shard's marker, read once; ``forget`` it where it may have changed."""
        known = self._markers.get(shard.digest)
        if known is None:
            known = self._markers[shard.digest] = self._files.read_marker(shard)
        return known

    def damaged(self, shards: Sequence[Shard]) -> list[Shard]:
        """Those of ``shards`` whose markers cannot be read."""

        def is_damaged(shard: Shard) -> bool:
            try:
                self.marker(shard)
            except StoreError:
                return True
            return False

        return [shard for shard, damaged in zip(shards, each(is_damaged, shards), strict=True) if damaged]

    def rows(self, shard: Shard) -> npt.NDArray[np.float32]:
        """The shard's rows (rows, dimension), kept for the next call.

        Raises:
            StoreError: the shard is not done or damaged; then it is no longer taken for done.
        """
        with self._lock:
            held = self._cache.get(shard.digest)
        if held is None:
            held = self._read(shard)
            with self._lock:
                self._cache[shard.digest] = held
                while len(self._cache) > _CACHED_SHARDS:
                    self._cache.popitem(last=False)
        return held

    def forget(self, shard: Shard) -> None:
        """What this process knows of a shard."""
        with self._lock:
            self._cache.pop(shard.digest, None)
            self._markers.pop(shard.digest, None)

    def _read(self, shard: Shard) -> npt.NDArray[np.float32]:
        """As this process knows the shard; where that fails as its marker says now, which may be newer."""
        if shard.digest in self._markers:
            try:
                return self._files.checked(shard, self.marker(shard))
            except StoreError:
                self.forget(shard)
        try:
            return self._files.checked(shard, self.marker(shard))
        except NotEmbeddedError:
            raise
        except StoreError:
            self.forget(shard)
            self._files.remove_marker(shard)  # so that the next run embeds it again
            raise


def each(work: Callable[[Shard], Result], shards: Sequence[Shard], *, side_by_side: bool = True) -> Iterable[Result]:
    """``work`` of every shard, in order; side by side where it waits for a network."""
    if len(shards) < 2 or not side_by_side:
        return map(work, shards)
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as threads:
        return list(threads.map(work, shards))
