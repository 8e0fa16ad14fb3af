"""Tiles of a Gram matrix at the speed of a matrix product, and products of a tile with a few columns.

Most kernels are an elementwise function of x.z' and of the squared norms. Here that function runs in place on a tile
small enough to stay in cache, so that a tile costs little more than its matrix product; kernels of another shape (L1
distances, sums, products) are called as they are.

A product with r columns costs the reading of the tile as long as r is small, and OpenBLAS reads it fastest where r
fills its registers (a multiple of 8: 13 columns cost more than 16) and the transposed product is asked for as V'T.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, to_numpy
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.product_forms import Side

FINISHED_ROWS = 128  # rows that f is applied to at once: they and their scratch stay in a core's own cache
WIDTH = 8  # columns that BLAS kernels for AVX2 and AVX-512 take at once, in single precision


@dataclass(frozen=True)
class TilePoints:
    """Points (n, d) with their squared norms, from which tiles are cut."""

    x: Any = field(repr=False)

    @cached_property
    def norms(self) -> Any:
        """|x_i|^2, (n,)."""
        return array_namespace(self.x).einsum("ij,ij->i", self.x, self.x)

    @property
    def all(self) -> slice:
        """All of them."""
        return slice(0, int(self.x.shape[0]))


@dataclass
class TileMaker:
    """Makes tiles one after the other in the same memory: one maker per thread.

    Args:
        kernel: the input kernel.
        dimension: number of features d.
    """

    kernel: Kernel
    dimension: int
    _buffers: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._form = self.kernel.product_form(self.dimension)

    def tile(self, points: TilePoints, rows: slice, others: TilePoints, columns: slice) -> Any:
        """Returns [k(x_i, z_j)] for i in rows, j in columns; overwritten by the next call."""
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
        block = self._buffer("block", (left.shape[0], right.shape[0]), left)
        xp.matmul(left * left.dtype.type(form.scale), right.T, out=block)
        norms = (points.norms[rows], others.norms[columns]) if form.uses_norms else (None, None)
        at_once = FINISHED_ROWS if xp is np else len(block)
        for part in tile_slices(slice(0, len(block)), at_once):
            scratch = self._buffer("scratch", block[part].shape, block)
            left_norms = None if norms[0] is None else norms[0][part]
            form.finish(block[part], scratch, Side(left[part], left_norms), Side(right, norms[1]))
        return block

    def _buffer(self, name: str, shape: tuple[int, int], like: Any) -> Any:
        xp = array_namespace(like)
        size = shape[0] * shape[1]
        held = self._buffers.get(name)
        if held is None or held.size < size or held.dtype != like.dtype:
            held = self._buffers[name] = xp.empty(size, dtype=like.dtype)
        return held[:size].reshape(shape)


def tile_slices(rows: slice, tile_rows: int) -> list[slice]:
    """Returns ``rows`` cut into tiles of at most ``tile_rows``."""
    return [slice(s, min(s + tile_rows, rows.stop)) for s in range(rows.start, rows.stop, tile_rows)]


def padded_columns(v: Array, like: Any) -> Any:
    """Returns v (n, r) where ``like`` is and in its dtype, in host memory with zero columns up to a multiple of 8.

    A single column stays one: its product is another, faster routine.
    """
    xp, r = array_namespace(like), v.shape[1]
    if xp is not np or r == 1 or r % WIDTH == 0:
        return xp.asarray(v, dtype=like.dtype)
    padded = np.zeros((len(v), -(-r // WIDTH) * WIDTH), dtype=like.dtype)
    padded[:, :r] = v
    return padded


def product(block: Any, weights: Array) -> Array:
    """Returns block weights, computed where the block is and in its precision, in host memory."""
    return to_numpy((block @ padded_columns(weights, block))[:, : weights.shape[1]]).astype(np.float64, copy=False)


def projected(block: Any, v: Array) -> Array:
    """Returns block' v, computed where the block is and in its precision, in host memory."""
    return to_numpy((padded_columns(v, block).T @ block).T[:, : v.shape[1]]).astype(np.float64, copy=False)


def weighted_squares(vectors: Array, weights: Array | None = None) -> Array:
    """Returns U' diag(w) U, (k, k), of U (n, k) and w >= 0 (n,), in the precision of U; U'U without weights.

    As the product of one array with itself, of which BLAS computes half.
    """
    scaled = vectors if weights is None else vectors * np.sqrt(weights).astype(vectors.dtype)[:, None]
    return np.asarray(scaled.T @ scaled, dtype=np.float64)


def squares_at(vectors: Array, inner: Array) -> Array:
    """Returns U_j' M U_j for every row of U (m, k) and M (k, k), (m,)."""
    return np.asarray(np.einsum("jk,jk->j", vectors @ inner.astype(vectors.dtype), vectors), dtype=np.float64)
