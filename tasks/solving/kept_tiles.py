"""Blocks of the Gram matrix that workers keep between passes, where their memory allows it.

A tile costs d operations an entry to make and 2 r to use: kept ones save most of every pass after the first, at
n (n + 1) / 2 entries over all workers.
"""

from __future__ import annotations

from typing import Any

from congruence.kernels.gram.tiles import TilePoints, block_tiles
from congruence.kernels.kernel_functions import Kernel
from congruence.tasks.solving.capacity import cluster_capacity
from congruence.tasks.solving.placement import LastingResults, Placement

Tiles = list[tuple[slice, slice, Any]]


class KeptTiles:
    """The blocks of one triangle of K as results on the workers; made again where a worker was lost.

    Args:
        placement: where the copies of x are.
        kernel: the input kernel.
        tile_rows: rows of a tile inside a block.
        held_bytes: what the workers together may take; by default that of their ``cluster_capacity``.
    """

    def __init__(self, placement: Placement, kernel: Kernel, tile_rows: int, held_bytes: int | None) -> None:
        self._placement = placement
        self._kernel = kernel
        self._tile_rows = tile_rows
        self._held_bytes = held_bytes
        self._blocks: LastingResults[tuple[int, int, int, int]] = LastingResults()

    def of(self, pairs: list[tuple[slice, slice]]) -> list[Any] | None:
        """The futures of the blocks ``pairs`` (rows, columns), in order; None if they do not fit."""
        place = self._placement
        entries = sum((rows.stop - rows.start) * (columns.stop - columns.start) for rows, columns in pairs)
        if entries * place.dtype.itemsize > self._budget():
            self._blocks.clear()
            return None
        keys = [(rows.start, rows.stop, columns.start, columns.stop) for rows, columns in pairs]
        numbers = {key: number for number, key in enumerate(keys)}

        def make(key: tuple[int, int, int, int]) -> Any:
            rows, columns = slice(*key[:2]), slice(*key[2:])
            return place.submit(numbers[key], _block, rows, columns, self._kernel, self._tile_rows)

        return self._blocks.of(keys, make)

    def _budget(self) -> int:
        if self._held_bytes is not None:
            return self._held_bytes
        return cluster_capacity(self._placement.client, gpu=self._placement.gpu).kept_bytes


def _block(points: TilePoints, rows: slice, columns: slice, kernel: Kernel, tile_rows: int) -> Tiles:
    return list(block_tiles(kernel, points, rows, columns, tile_rows, reuse=False))
