"""Blocks of the Gram matrix that workers keep between passes, where their memory allows it.

A tile costs d operations an entry to make and 2 r to use: kept ones save most of every pass after the first, at
n (n + 1) / 2 entries over all workers.
"""

from __future__ import annotations

from typing import Any

from congruence.kernels.gram.tiles import TilePoints, block_tiles
from congruence.kernels.kernel_functions import Kernel
from congruence.tasks.solving.capacity import cluster_capacity
from congruence.tasks.solving.placement import Placement

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
        self._blocks: dict[tuple[int, int, int, int], Any] = {}

    def of(self, pairs: list[tuple[slice, slice]]) -> list[Any] | None:
        """The futures of the blocks ``pairs`` (rows, columns), in order; None if they do not fit."""
        place = self._placement
        entries = sum((rows.stop - rows.start) * (columns.stop - columns.start) for rows, columns in pairs)
        if entries * place.dtype.itemsize > self._budget():
            self._blocks = {}
            return None
        keys = [(rows.start, rows.stop, columns.start, columns.stop) for rows, columns in pairs]
        kept = {key: self._blocks[key] for key in keys if key in self._blocks}
        usable = {key: block for key, block in kept.items() if block.status in ("finished", "pending")}
        for number, (key, (rows, columns)) in enumerate(zip(keys, pairs, strict=True)):
            if key not in usable:
                worker = place.workers[number % len(place.workers)]
                usable[key] = place.submit(
                    worker, _block, rows, columns, self._kernel, self._tile_rows, rows=[rows, columns]
                )
        self._blocks = usable
        return [usable[key] for key in keys]

    def _budget(self) -> int:
        if self._held_bytes is not None:
            return self._held_bytes
        return cluster_capacity(self._placement.client, gpu=self._placement.gpu).kept_bytes


def _block(points: TilePoints, rows: slice, columns: slice, kernel: Kernel, tile_rows: int) -> Tiles:
    return list(block_tiles(kernel, points, rows, columns, tile_rows, reuse=False))
