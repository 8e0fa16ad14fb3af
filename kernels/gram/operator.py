"""The operator A = K + n lambda I on a reference split: what solvers may ask of it, and the one that lives in memory.

Solvers never see the inputs: an operator on one machine, on a GPU or spread over a Dask cluster answers the same calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any, Protocol

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, to_numpy
from congruence.kernels.gram.columns import BlockColumns, GramColumns
from congruence.kernels.gram.thin_products import padded_columns, transposed_product
from congruence.kernels.gram.tiles import TileMaker, TilePoints, diagonal_tiles, tile_slices, within
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.memory import VECTORS_PART, card_bytes, keepable_bytes
from congruence.kernels.threads import available_threads, map_on_threads

BLOCK_ROWS = 992  # about what a core keeps in its cache; rows a power of two apart would share lines of it
GPU_BLOCK_ROWS = 8192
HELD_COLUMNS_BYTES = 2**31
VECTORS_OF_A_SOLVE = 10  # arrays like the right-hand sides that conjugate gradients and their products hold at once


class Operator(Protocol):
    """A = K + shift I for a Gram matrix K of n reference points.

    Vectors are (n, r) host arrays, or where ``vectors`` put them: products with them are where they are.
    """

    @property
    def n(self) -> int:
        """Number of reference points."""

    @property
    def dimension(self) -> int:
        """Number of features d of an input."""

    @property
    def shift(self) -> float:
        """n lambda."""

    @property
    def dtype(self) -> Any:
        """Of the arithmetic inside a tile."""

    @property
    def kernel(self) -> Kernel:
        """k_X."""

    @property
    def has_card(self) -> bool:
        """Whether what follows from a solve may be computed on a card by the process that asks."""

    def vectors(self, v: Array) -> Any:
        """v (n, r) where a solve should keep its vectors: on the card that holds x if that has room, else as it is."""

    def matmul(self, v: Any) -> Any:
        """A v, shape (n, r)."""

    def gram_matmul(self, v: Any) -> Any:
        """K v, shape (n, r)."""

    def cross(self, query: Any, v: Array) -> Array:
        """[k(x_i, query_j)]' v, shape (m, r)."""

    def restricted(self, indices: Array) -> Operator:
        """The operator of the reference points ``indices`` alone, in this process."""

    def gram_columns(self, indices: Array, rows: Array | None = None) -> Array:
        """K[rows, indices], shape (len(rows), len(indices)); all rows by default."""

    def columns(self, indices: Array) -> GramColumns:
        """K[:, indices] as an operator: where it is held or made is the operator's business."""

    def gram_diagonal(self) -> Array:
        """k(x_i, x_i), shape (n,)."""

    def row_norms(self) -> Array:
        """|x_i - c|^2 from the center of the inputs (``Kernel.center``), shape (n,)."""

    def rows(self, indices: Array) -> Any:
        """x[indices] as they were given."""

    def row_products(self, indices: Array, v: Array) -> Array:
        """(K v)[indices], shape (len(indices), r), without a pass over the other rows."""

    def exact_gram(self, query: Any | None = None) -> Array:
        """[k(query_j, x_i)], (m, n), in float64 from the inputs as they were given; K by default."""

    def exact_rows(self, indices: Array) -> Array:
        """K[indices], shape (len(indices), n), made as ``exact_gram`` is."""

    def rounding(self, query: Any | None = None) -> float:
        """``Kernel.rounding`` of the reference points, or of them and query points."""


@dataclass(frozen=True)
class RegularizedGram:
    """A = K + n lambda I with x (n, d) in memory (NumPy or CuPy); K is made tile by tile, on every core.

    Args:
        x: reference inputs (n, d); their dtype is the arithmetic's (sums over tiles are float64).
        kernel: the input kernel.
        regularization: lambda > 0; the shift is n lambda (the papers' convention).
        block_rows: rows of a tile; by default what fits a core's cache, or fills a GPU.
        held_bytes: the first product keeps one triangle of K if it fits in so many bytes, for later products; by
            default ``keepable_bytes``.
        threads: cores to use; by default all that this process may.

    Inputs are moved to their ``Kernel.center`` before tiles are made of them.
    """

    x: Any = field(repr=False)
    kernel: Kernel
    regularization: float
    block_rows: int | None = None
    held_bytes: int | None = None
    threads: int | None = None
    _tiles: dict[tuple[int, int, int], Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def n(self) -> int:
        """Number of reference points."""
        return int(self.x.shape[0])

    @property
    def dimension(self) -> int:
        """Number of features d of an input."""
        return int(self.x.shape[1])

    @property
    def shift(self) -> float:
        """n lambda."""
        return self.n * self.regularization

    @property
    def dtype(self) -> Any:
        """Of the inputs."""
        return self.x.dtype

    @property
    def triangle_bytes(self) -> int:
        """Bytes of one triangle of K with tiles of half the rows on the diagonal."""
        return int(self.x.dtype.itemsize) * self.n * (self.n + self._block_rows // 2) // 2

    @property
    def has_card(self) -> bool:
        """Whether x is on one."""
        return array_namespace(self.x) is not np

    def vectors(self, v: Array) -> Any:
        """See Operator."""
        xp = array_namespace(self.x)
        if xp is np or VECTORS_OF_A_SOLVE * v.nbytes > VECTORS_PART * card_bytes(self.x):
            return v
        return xp.asarray(v)

    def matmul(self, v: Any) -> Any:
        """A v."""
        return self.gram_matmul(v) + self.shift * v

    def gram_matmul(self, v: Any) -> Any:
        """K v: each off-diagonal tile is made once and used for both triangles."""
        xp = array_namespace(self.x)
        vectors = padded_columns(v, self.x)
        result = xp.zeros(vectors.shape, dtype=np.float64)
        blocks = self._blocks(self.n)
        locks = [Lock() for _ in blocks]
        hold = bool(self._tiles) or self.triangle_bytes <= self._kept_limit

        def row_of_tiles(i: int) -> None:
            maker = TileMaker(self.kernel, self.dimension, reuse=not hold)
            rows = blocks[i]
            total = xp.zeros((rows.stop - rows.start, vectors.shape[1]), dtype=np.float64)
            for left, right in (*diagonal_tiles(rows), *((rows, block) for block in blocks[i + 1 :])):
                tile = self._tiles.get((left.start, right.start, right.stop))
                if tile is None:
                    tile = maker.tile(self._points, left, self._points, right)
                    if hold:
                        self._tiles[left.start, right.start, right.stop] = tile
                total[within(left, rows)] += tile @ vectors[right]
                if right == left:
                    continue
                mirrored = transposed_product(tile, vectors[left])
                if right.stop <= rows.stop:
                    total[within(right, rows)] += mirrored
                else:
                    with locks[right.start // self._block_rows]:
                        result[right] += mirrored
            with locks[i]:
                result[rows] += total

        map_on_threads(row_of_tiles, range(len(blocks)), self._threads_for(self.n))
        product = result[:, : v.shape[1]]
        return product if array_namespace(v) is xp else to_numpy(product)

    def cross(self, query: Any, v: Array) -> Array:
        """[k(x_i, query_j)]' v, shape (m, r)."""
        xp = array_namespace(self.x)
        points = TilePoints(xp.asarray(centered(query, self._center), dtype=self.x.dtype))
        vectors = xp.asarray(v, dtype=self.x.dtype)
        result = xp.empty((len(query), v.shape[1]))
        blocks = self._blocks(self.n)

        def row_of_tiles(rows: slice) -> None:
            maker = TileMaker(self.kernel, self.dimension)
            total = xp.zeros((rows.stop - rows.start, v.shape[1]), dtype=np.float64)
            for columns in blocks:
                total += maker.tile(points, rows, self._points, columns) @ vectors[columns]
            result[rows] = total

        threads = self._threads_for(max(self.n, len(query)))
        rows_at_once = max(1, min(self._block_rows, -(-len(query) // threads)))
        map_on_threads(row_of_tiles, tile_slices(slice(0, len(query)), rows_at_once), threads)
        return to_numpy(result)

    def restricted(self, indices: Array) -> RegularizedGram:
        """See Operator."""
        return RegularizedGram(
            self.x[array_namespace(self.x).asarray(indices)], self.kernel, self.regularization, threads=self.threads
        )

    def gram_columns(self, indices: Array, rows: Array | None = None) -> Array:
        """K[rows, indices]."""
        xp = array_namespace(self.x)
        x = self._points.x
        left = x if rows is None else x[xp.asarray(rows)]
        return to_numpy(self.kernel(left, x[xp.asarray(indices)]))

    def columns(self, indices: Array) -> GramColumns:
        """K[:, indices], held if it fits in 2 GiB, else made again for every product."""
        landmarks = TilePoints(self._points.x[array_namespace(self.x).asarray(indices)])
        blocks = self._blocks(self.n)
        columns = BlockColumns(self._points, landmarks, self.kernel, blocks, self._threads_for(self.n))
        fits = self.n * len(indices) * self.x.dtype.itemsize <= HELD_COLUMNS_BYTES
        return columns.hold() if fits else columns

    def gram_diagonal(self) -> Array:
        """k(x_i, x_i)."""
        return to_numpy(self.kernel.diagonal(self._points.x))

    def row_norms(self) -> Array:
        """See Operator."""
        return to_numpy(self._points.norms)

    def rows(self, indices: Array) -> Any:
        """x[indices]."""
        return self.x[array_namespace(self.x).asarray(indices)]

    def row_products(self, indices: Array, v: Array) -> Array:
        """(K v)[indices]."""
        return self.cross(self.rows(indices), v)

    def exact_gram(self, query: Any | None = None) -> Array:
        """See Operator."""
        if query is None:
            return to_numpy(self.kernel(self._in_float64(self.x)))
        xp = array_namespace(self.x)
        points = self._in_float64(xp.asarray(query))
        result = np.empty((len(query), self.n))

        def fill(columns: slice) -> None:
            result[:, columns] = to_numpy(self.kernel(points, self._in_float64(self.x[columns])))

        map_on_threads(fill, self._blocks(self.n), self._threads_for(self.n))
        return result

    def exact_rows(self, indices: Array) -> Array:
        """See Operator."""
        return self.exact_gram(self.rows(indices))

    def rounding(self, query: Any | None = None) -> float:
        """See Operator."""
        if query is None:
            return self._rounding
        points = array_namespace(self.x).asarray(query)
        return max(self._rounding, self.kernel.rounding(centered(points, self._center)))

    @cached_property
    def _rounding(self) -> float:
        return self.kernel.rounding(self._points.x)

    @cached_property
    def _points(self) -> TilePoints:
        return TilePoints(centered(self.x, self._center))

    @cached_property
    def _center(self) -> Any | None:
        return self.kernel.center(self.x)

    def _in_float64(self, x: Any) -> Any:
        return centered(x.astype(np.float64), self._center)

    @property
    def _kept_limit(self) -> int:
        return keepable_bytes(self.x) if self.held_bytes is None else self.held_bytes

    def _blocks(self, rows: int) -> list[slice]:
        return tile_slices(slice(0, rows), self._block_rows)

    @property
    def _block_rows(self) -> int:
        on_gpu = array_namespace(self.x) is not np
        return self.block_rows or (GPU_BLOCK_ROWS if on_gpu else BLOCK_ROWS)

    def _threads_for(self, rows: int) -> int:
        # A GPU runs one stream of tiles; a small problem is done before threads have started.
        if array_namespace(self.x) is not np or rows <= self._block_rows:
            return 1
        return self.threads or available_threads()


def centered(x: Any, center: Any | None) -> Any:
    """x - center for rows of x (n, d), in the dtype of x; x itself if there is no center."""
    if center is None:
        return x
    xp = array_namespace(center)
    x = xp.asarray(x)
    return x - center.astype(x.dtype)
