"""Columns C = K[:, landmarks] held by the workers of a cluster: m x r and n x r arrays move, C does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, to_numpy
from congruence.kernels.gram.columns import BlockColumns
from congruence.kernels.gram.operator import BLOCK_ROWS, GPU_BLOCK_ROWS
from congruence.kernels.gram.tiles import TilePoints, tile_slices
from congruence.kernels.kernel_functions import Kernel
from congruence.tasks.solving.placement import LastingResults, Placement


class DaskColumns:
    """C by row blocks, each on the worker that made it; made again if that worker is lost (see GramColumns)."""

    def __init__(self, placement: Placement, landmarks: Array, kernel: Kernel, blocks: list[slice]) -> None:
        self._placement = placement
        self._landmarks = landmarks
        self._kernel = kernel
        self._blocks = blocks
        self._made: LastingResults[int] = LastingResults()

    def thinned(self, step: int) -> DaskColumns:
        """See GramColumns: made again by the workers, where they are few."""
        return DaskColumns(self._placement, self._landmarks[::step], self._kernel, self._blocks)

    def corner(self) -> Array:
        """W."""
        return np.asarray(self._kernel(self._landmarks), dtype=np.float64)

    def gram(self, scale: Array | None = None) -> Array:
        """C'C, or C' diag(s)^2 C."""
        return np.asarray(sum(self._mapped(_gram, [None if scale is None else scale[rows] for rows in self._blocks])))

    def transposed_matmul(self, v: Array) -> Array:
        """C'v."""
        return np.asarray(sum(self._mapped(_transposed_matmul, [v[rows] for rows in self._blocks])))

    def matmul(self, w: Array) -> Array:
        """C w."""
        return np.concatenate(self._mapped(_matmul, [w] * len(self._blocks)))

    def row_norms(self, factor: Array) -> Array:
        """|C_i factor|^2."""
        return np.concatenate(self._mapped(_row_norms, [factor] * len(self._blocks)))

    def _mapped(self, function: Callable[[BlockColumns, Any], Array], arguments: list[Any]) -> list[Array]:
        client = self._placement.client

        def work() -> list[Array]:
            held = self._held()
            sent = {id(argument): client.scatter(argument, hash=False) for argument in arguments}
            tasks = [
                client.submit(function, block, sent[id(argument)], pure=False)
                for block, argument in zip(held, arguments, strict=True)
            ]
            return list(client.gather(tasks))

        return self._placement.run(work)

    def _held(self) -> list[Any]:
        place = self._placement
        landmarks = place.client.scatter(self._landmarks, hash=False)
        return self._made.of(
            range(len(self._blocks)),
            lambda number: place.submit(number, _columns, self._blocks[number], landmarks, self._kernel),
        )


def _columns(points: TilePoints, rows: slice, landmarks: Array, kernel: Kernel) -> BlockColumns:
    xp = array_namespace(points.x)
    others = TilePoints(xp.asarray(landmarks, dtype=points.x.dtype))
    mine = TilePoints(points.x[rows])
    at_once = BLOCK_ROWS if xp is np else GPU_BLOCK_ROWS
    blocks = tile_slices(slice(0, rows.stop - rows.start), at_once)
    return BlockColumns(mine, others, kernel, blocks, threads=1).hold()


def _gram(columns: BlockColumns, scale: Array | None) -> Array:
    return columns.gram(scale)


def _transposed_matmul(columns: BlockColumns, v: Array) -> Array:
    return to_numpy(columns.transposed_matmul(v))


def _matmul(columns: BlockColumns, w: Array) -> Array:
    return to_numpy(columns.matmul(w))


def _row_norms(columns: BlockColumns, factor: Array) -> Array:
    return columns.row_norms(factor)
