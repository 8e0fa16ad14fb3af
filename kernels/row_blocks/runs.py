"""Passes over the blocks of a split: what runs them, and how in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

from congruence.kernels.block_sums import BlockSums
from congruence.kernels.row_blocks.rows import BlockRows, Pass, RowBlocks
from congruence.kernels.threads import single_threaded_blas


class BlockPasses(Protocol):
    """Runs functions of every block that has rows, and merges what they add."""

    @property
    def sizes(self) -> Sequence[int]:
        """Valid rows of each block."""

    def __call__(self, name: str, function: Callable[..., Pass], *context: Any) -> Pass:
        """``function(rows, *context)`` of every block that has rows."""


@dataclass(frozen=True)
class PassesHere(BlockPasses):
    """Passes in this process."""

    blocks: RowBlocks

    @property
    def sizes(self) -> Sequence[int]:
        return self.blocks.sizes

    def __call__(self, name: str, function: Callable[..., Pass], *context: Any) -> Pass:  # noqa: ARG002
        return sums_of_blocks(function, places_of(self.sizes), (self.blocks, *context))


def places_of(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Number and first row of every block that has rows."""
    firsts = accumulate(sizes, initial=0)
    return [(block, first) for block, (size, first) in enumerate(zip(sizes, firsts, strict=False)) if size]


def sums_of_blocks(function: Callable[..., Pass], places: list[tuple[int, int]], shared: tuple[Any, ...]) -> Pass:
    """What a pass adds over the blocks at ``places``; ``shared`` are the blocks and what follows them."""
    blocks, *context = shared
    total: Pass = {}
    with single_threaded_blas():
        for block, first in places:
            for name, sums in function(BlockRows(blocks, block, first), *context).items():
                total.setdefault(name, BlockSums()).merge(sums)
    return total
