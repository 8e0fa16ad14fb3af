"""Passes over the blocks of a split: on a cluster, or in this process for rows that are here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import dask
import numpy as np
from distributed import Client

from congruence.kernels.row_blocks.sums import BlockSums
from congruence.kernels.threads import single_threaded_blas
from congruence.tasks.linalg.block_passes import Pass, RowBlocks

TASKS = 64  # of a pass, at most: each takes neighbouring blocks
ARITY = 8  # sums merged at once
IN_FLIGHT = 2  # tasks for each thread of the cluster


class BlockPasses(Protocol):
    """Runs functions of every block that has rows, and merges what they add."""

    @property
    def sizes(self) -> Sequence[int]:
        """Valid rows of each block."""

    def __call__(self, name: str, function: Callable[..., Pass], *context: Any) -> Pass:
        """``function(blocks, block, first row, *context)`` of every block that has rows."""


@dataclass(frozen=True)
class PassesHere:
    """Passes in this process."""

    blocks: RowBlocks

    @property
    def sizes(self) -> Sequence[int]:
        """See BlockPasses."""
        return self.blocks.sizes

    def __call__(self, name: str, function: Callable[..., Pass], *context: Any) -> Pass:  # noqa: ARG002
        """See BlockPasses."""
        return _of_blocks(function, _places(self.sizes), (self.blocks, *context))


@dataclass(frozen=True)
class PassesOnCluster:
    """Passes on the workers: at most so many tasks wait or run at a time.

    Attributes:
        client: of the cluster.
        blocks: an address, which every task is told.
        seconds: of each pass so far, by its name.
    """

    client: Client
    blocks: RowBlocks
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def sizes(self) -> Sequence[int]:
        """See BlockPasses."""
        return self.blocks.sizes

    def __call__(self, name: str, function: Callable[..., Pass], *context: Any) -> Pass:
        """See BlockPasses."""
        started = time.perf_counter()
        places = _places(self.sizes)
        groups = np.array_split(np.arange(len(places)), min(TASKS, len(places)))
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GiB"}):
            shared = self.client.submit(_as_it_is, (self.blocks, *context), pure=False)
        limit = IN_FLIGHT * max(1, sum(self.client.nthreads().values()))
        tree, waiting = _Tree(self.client), deque[Any]()
        for group in groups:
            if len(waiting) >= limit:
                _finish(waiting.popleft())
            part = self.client.submit(_of_blocks, function, [places[at] for at in group], shared, pure=False)
            waiting.append(part)
            tree.add(part)
        result: Pass = tree.root().result()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
        return result


def _places(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Number and first row of every block that has rows."""
    firsts = accumulate(sizes, initial=0)
    return [(block, first) for block, (size, first) in enumerate(zip(sizes, firsts, strict=False)) if size]


class _Tree:
    """Sums merged ``ARITY`` at a time, in the order of the blocks."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._levels: list[list[Any]] = [[]]

    def add(self, part: Any) -> None:
        """The next part."""
        for level in range(len(self._levels) + 1):
            if level == len(self._levels):
                self._levels.append([])
            self._levels[level].append(part)
            if len(self._levels[level]) < ARITY:
                return
            part = self._merged(self._levels[level])
            self._levels[level] = []

    def root(self) -> Any:
        """Everything that was added; earlier parts are on higher levels."""
        return self._merged([part for level in reversed(self._levels) for part in level])

    def _merged(self, parts: list[Any]) -> Any:
        return self._client.submit(_merged, list(parts), pure=False)


def _finish(part: Any) -> None:
    """Wait for a part on its own client, and raise what went wrong in it; nothing is fetched."""
    if part.exception() is not None:
        part.result()


def _as_it_is(context: tuple[Any, ...]) -> tuple[Any, ...]:
    """A task, so that the scheduler can make it again where it was lost."""
    return context


def _merged(parts: list[Pass]) -> Pass:
    total: Pass = {}
    for part in parts:
        for name, sums in part.items():
            total.setdefault(name, BlockSums()).merge(sums)
    return total


def _of_blocks(function: Callable[..., Pass], places: list[tuple[int, int]], shared: tuple[Any, ...]) -> Pass:
    blocks, *context = shared
    total: Pass = {}
    with single_threaded_blas():
        for block, first in places:
            for name, sums in function(blocks, block, first, *context).items():
                total.setdefault(name, BlockSums()).merge(sums)
    return total
