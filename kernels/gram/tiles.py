"""Tiles of a Gram matrix at the speed of a matrix product.

Most kernels are an elementwise function of x.z' and of the squared norms. Here that function runs in place on a tile
small enough to stay in cache, so that a tile costs little more than its matrix product; kernels of another shape (L1
distances, sums, products) are called as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from congruence.kernels.arrays import array_namespace
from congruence.kernels.gram.thin_products import transposed_product
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.product_forms import ProductForm, Side

Tile: TypeAlias = tuple[slice, slice, Any]  # rows, columns, and the entries there
FINISHED_ROWS = 128  # rows that f is applied to at once: they and their scratch stay in a core's own cache


@dataclass(frozen=True)
class TilePoints:
    """Points (n, d) with their squared norms, from which tiles are cut."""

    x: Any = field(repr=False)

    @cached_property
    def norms(self) -> Any:
        """|x_i|^2, (n,)."""
        return array_namespace(self.x).einsum("ij,ij->i", self.x, self.x)


@dataclass
class TileMaker:
    """Makes tiles one after the other in the same memory: one maker per thread.

    Args:
        kernel: the input kernel.
        dimension: number of features d.
        reuse: False gives every tile its own memory, to be kept.
    """

    kernel: Kernel
    dimension: int
    reuse: bool = True
    _buffers: dict[str, Any] = field(default_factory=dict, repr=False)
    _left: tuple[TilePoints, slice, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._form = self.kernel.product_form(self.dimension)

    def tile(self, points: TilePoints, rows: slice, others: TilePoints, columns: slice) -> Any:
        """[k(x_i, z_j)] for i in rows, j in columns; overwritten by the next call unless ``reuse`` is off."""
        left = points.x[rows]
        block = self._made(points, rows, others, columns)
        if points is others and rows == columns:
            # Rounding leaves |x - x|^2 near 1e-7 in float32, and a kernel of the distance itself near its root.
            array_namespace(left).einsum("ii->i", block)[...] = self.kernel.diagonal(left)
        return block

    def _made(self, points: TilePoints, rows: slice, others: TilePoints, columns: slice) -> Any:
        left, right, form = points.x[rows], others.x[columns], self._form
        if form is None:
            return self.kernel(left, right)
        xp = array_namespace(left)
        shape = (left.shape[0], right.shape[0])
        block = self._buffer("block", shape, left) if self.reuse else xp.empty(shape, dtype=left.dtype)
        xp.matmul(self._scaled(points, rows, form.scale), right.T, out=block)
        norms = (points.norms[rows], others.norms[columns]) if form.uses_norms else (None, None)
        self._finish(form, block, Side(left, norms[0]), Side(right, norms[1]))
        return block

    def _finish(self, form: ProductForm, block: Any, x: Side, z: Side) -> None:
        at_once = FINISHED_ROWS if array_namespace(block) is np else len(block)
        for part in tile_slices(slice(0, len(block)), at_once):
            # A card's kernels need none: a tile more would be half a gigabyte there.
            scratch = self._buffer("scratch", block[part].shape, block) if array_namespace(block) is np else None
            form.finish(block[part], scratch, Side(x.x[part], None if x.norms is None else x.norms[part]), z)

    def _scaled(self, points: TilePoints, rows: slice, scale: float) -> Any:
        # The tiles of one row of blocks share their left side: scale it once.
        if self._left is None or self._left[0] is not points or self._left[1] != rows:
            self._left = (points, rows, points.x[rows] * points.x.dtype.type(scale))
        return self._left[2]

    def _buffer(self, name: str, shape: tuple[int, int], like: Any) -> Any:
        xp = array_namespace(like)
        size = shape[0] * shape[1]
        held = self._buffers.get(name)
        if held is None or held.size < size or held.dtype != like.dtype:
            held = self._buffers[name] = xp.empty(size, dtype=like.dtype)
        return held[:size].reshape(shape)


def block_tiles(
    kernel: Kernel, points: TilePoints, rows: slice, columns: slice, tile_rows: int, *, reuse: bool = True
) -> Iterator[Tile]:
    """The tiles of K[rows, columns] with their places; of a block on the diagonal, those of its upper triangle.

    ``reuse``: a tile is overwritten by the next one; False to keep them.
    """
    maker = TileMaker(kernel, int(points.x.shape[1]), reuse)
    others = even_slices(columns, tile_rows)
    for above in even_slices(rows, tile_rows):
        places = [(above, beside) for beside in others]
        if rows == columns:
            places = diagonal_tiles(above) + [(above, beside) for beside in others if beside.start > above.start]
        for left, right in places:
            yield left, right, maker.tile(points, left, points, right)


def multiply_tiles(tiles: Iterable[Tile], rows: slice, columns: slice, vectors: Any) -> tuple[Any, Any | None]:
    """K[rows, columns] v[columns] and, off the diagonal, K[rows, columns]' v[rows], in float64, from ``block_tiles``.

    ``vectors``: v (n, r), on the device and of the dtype of the tiles.
    """
    xp = array_namespace(vectors)
    square = rows == columns
    forward = xp.zeros((rows.stop - rows.start, vectors.shape[1]), dtype=np.float64)
    mirrored = forward if square else xp.zeros((columns.stop - columns.start, vectors.shape[1]), dtype=np.float64)
    for left, right, tile in tiles:
        forward[within(left, rows)] += tile @ vectors[right]
        if left != right:
            mirrored[within(right, columns)] += transposed_product(tile, vectors[left])
    return forward, None if square else mirrored


def diagonal_tiles(rows: slice) -> list[tuple[slice, slice]]:
    """The tile on the diagonal without its lower left quarter: three tiles of half the rows."""
    middle = (rows.start + rows.stop) // 2
    first, second = slice(rows.start, middle), slice(middle, rows.stop)
    if first.start == first.stop:
        return [(rows, rows)]
    return [(first, first), (first, second), (second, second)]


def tile_slices(rows: slice, tile_rows: int) -> list[slice]:
    """``rows`` cut into tiles of at most ``tile_rows``."""
    return [slice(s, min(s + tile_rows, rows.stop)) for s in range(rows.start, rows.stop, tile_rows)]


def even_slices(rows: slice, most: int) -> list[slice]:
    """``rows`` cut into as few tiles of at most ``most`` rows as there can be, all about as long."""
    size = rows.stop - rows.start
    count = -(-size // most)
    return tile_slices(rows, -(-size // count)) if count else []


def within(rows: slice, block: slice) -> slice:
    """``rows`` counted from the start of ``block``."""
    return slice(rows.start - block.start, rows.stop - block.start)
