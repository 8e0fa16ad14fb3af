"""The operator A = S K S + n lambda I on a reference split: what solvers ask of it, wherever its blocks are made.

The points are in this process, on its card or on a cluster (``points``); S = diag(s) where points count with weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, to_numpy
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.gram.columns import GramColumns
from congruence.kernels.gram.points import Item, Lasting, PlacedPoints, PointsHere, moved
from congruence.kernels.gram.thin_products import beside, padded_columns, times
from congruence.kernels.gram.tiles import Tile, TileMaker, TilePoints, block_tiles, multiply_tiles, tile_slices
from congruence.kernels.kernel_functions import Kernel


@dataclass(frozen=True)
class RegularizedGram:
    """A = S K S + n lambda I for the Gram matrix K of n reference points, made block by block.

    Vectors are (n, r) host arrays, or where ``vectors`` put them: products with them are where they are.

    Args:
        x: reference inputs (n, d), NumPy or CuPy, whose dtype is the arithmetic's (sums over tiles are float64); or
            points that are placed elsewhere.
        kernel: the input kernel.
        regularization: lambda > 0; the shift is n lambda (the papers' convention).
        scale: s, positive, (n,), for points that count with weights s^2: at a query point x, k(x) becomes S k(x).
        block_rows: rows of a tile, of inputs in memory; by default what fits a core's cache, or fills a GPU.
        held_bytes: the first product keeps one triangle of K if it fits in so many bytes, for later products; by
            default ``PlacedPoints.keepable_bytes``.
        threads: cores to use for inputs in memory; by default all that this process may.

    Raises:
        InvalidInputError: another number of scales, or one that is not a positive number.
    """

    x: Any = field(repr=False)
    kernel: Kernel
    regularization: float
    scale: Array | None = field(default=None, repr=False)
    block_rows: int | None = None
    held_bytes: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.scale is None:
            return
        if self.scale.shape != (self.n,):
            raise InvalidInputError(f"scale: shape {self.scale.shape}, expected one number for each of {self.n} points")
        wrong = np.flatnonzero(~((self.scale > 0) & np.isfinite(self.scale)))
        if len(wrong):
            raise InvalidInputError(f"scale: {self.scale[wrong[0]]} at row {wrong[0]}, expected a positive number")

    @cached_property
    def points(self) -> PlacedPoints:
        """Where the points are, and who works on them."""
        if isinstance(self.x, PlacedPoints):
            return self.x
        return PointsHere(self.x, self.kernel, self.block_rows, self.threads)

    @property
    def n(self) -> int:
        """Number of reference points."""
        return self.points.n

    @property
    def dimension(self) -> int:
        """Number of features d of an input."""
        return self.points.dimension

    @property
    def shift(self) -> float:
        """n lambda."""
        return self.n * self.regularization

    @property
    def dtype(self) -> Any:
        """Of the arithmetic inside a tile of K; scaling is in float64."""
        return self.points.dtype

    @property
    def has_card(self) -> bool:
        """Whether what follows from a solve may be computed on a card by the process that asks."""
        return self.points.has_card

    def vectors(self, v: Array) -> Any:
        """v (n, r) where a solve should keep its vectors: on the card that holds the points if that has room."""
        return self.points.vectors(v)

    def matmul(self, v: Any) -> Any:
        """A v, (n, r)."""
        product = self.gram_matmul(v)
        product += self.shift * v
        return product

    def gram_matmul(self, v: Any) -> Any:
        """S K S v, (n, r): each off-diagonal tile is made once and used for both triangles."""
        blocks = self.points.row_blocks
        pairs = [(i, j) for i in range(len(blocks)) for j in range(i, len(blocks))]
        pairs.sort(key=lambda pair: pair[0] == pair[1])  # diagonal blocks cost half: last, to even out the end
        items = [Item((i, j) if i != j else (i,), (blocks[i], blocks[j])) for i, j in pairs]
        stored = self._stored(items)
        vectors = self.points.shared(times(self.scale, v))
        given = (vectors,) if stored is not None else (vectors, self.kernel, self.points.tile_rows)
        function = _product if stored is None else _stored_product
        totals = self.points.sums(function, items, *given, stored=stored, title="pass over the Gram matrix")
        product = array_namespace(v).empty((self.n, v.shape[1]))
        for rows, total in zip(blocks, totals, strict=True):
            product[rows] = beside(v, total[:, : v.shape[1]])
        return times(self.scale, product)

    def _stored(self, items: list[Item]) -> Lasting | None:
        """The blocks of one triangle of K, held between products; None if they do not fit."""
        entries = 0
        for rows, columns in (item.blocks for item in items):
            size, width = rows.stop - rows.start, columns.stop - columns.start
            entries += size * (size + self.points.tile_rows // 2) // 2 if rows == columns else size * width
        limit = self.points.keepable_bytes if self.held_bytes is None else self.held_bytes
        if entries * np.dtype(self.dtype).itemsize <= limit or self._tiles.has(items):
            return self._tiles
        self._tiles.clear()
        return None

    @cached_property
    def _tiles(self) -> Lasting:
        return self.points.lasting(_tiles, self.kernel, self.points.tile_rows)

    def cross(self, query: Any, v: Array) -> Array:
        """[k(x_i, query_j)]' S v, (m, r)."""
        points = self.points
        query = moved(query, points.center)
        items = [Item((i,), (), (query[rows],)) for i, rows in enumerate(points.pieces(len(query)))]
        vectors = points.shared(times(self.scale, v))
        totals = points.sums(_cross, items, vectors, self.kernel, points.tile_rows)
        if not totals:
            return np.zeros((0, v.shape[1]))
        return to_numpy(array_namespace(totals[0]).concatenate(totals)[:, : v.shape[1]])

    def restricted(self, indices: Array) -> RegularizedGram:
        """The operator of the reference points ``indices`` alone, in this process."""
        scale = None if self.scale is None else self.scale[indices]
        x = self.rows(indices).astype(self.dtype)
        return RegularizedGram(x, self.kernel, self.regularization, scale, threads=self.threads)

    def gram_columns(self, indices: Array, rows: Array | None = None) -> Array:
        """(S K S)[rows, indices], (len(rows), len(indices)); all rows by default."""
        gram = to_numpy(self.kernel(self._placed(rows), self._placed(indices)))
        if self.scale is None:
            return gram
        return np.asarray(times(self.scale if rows is None else self.scale[rows], gram * self.scale[indices]))

    def columns(self, indices: Array) -> GramColumns:
        """(S K S)[:, indices]: held by who made it where that fits, else made again for every product."""
        return GramColumns.of(self.points, self._placed(indices), self.kernel, self.scale, indices)

    def gram_diagonal(self) -> Array:
        """s_i^2 k(x_i, x_i), (n,)."""
        diagonal = to_numpy(self.points.of_points(_diagonal, self.kernel))
        return diagonal if self.scale is None else np.asarray(self.scale**2 * diagonal)

    def row_norms(self) -> Array:
        """|x_i - c|^2 from the center of the inputs (``Kernel.center``), (n,)."""
        return to_numpy(self.points.of_points(_norms))

    def rows(self, indices: Array) -> Any:
        """x[indices] as they were given."""
        return self.points.rows(indices)

    def row_products(self, indices: Array, v: Array) -> Array:
        """(S K S v)[indices], (len(indices), r), without a pass over the other rows."""
        scale = None if self.scale is None else self.scale[indices]
        return np.asarray(times(scale, self.cross(self.rows(indices), v)))

    def exact_gram(self, query: Any | None = None) -> Array:
        """[k(query_j, x_i)] S, (m, n), in float64 from the inputs as they were given; S K S by default."""
        center = self.points.center
        points = _in_float64(self.rows(np.arange(self.n)) if query is None else query, center)
        if query is None:
            gram = to_numpy(self.kernel(points))
        else:
            gram = np.concatenate(self.points.of_inputs(_exact_block, points, center, self.kernel), axis=1)
        if self.scale is not None:
            gram *= self.scale
            if query is None:
                gram *= self.scale[:, None]
        return gram

    def exact_rows(self, indices: Array) -> Array:
        """(S K S)[indices], (len(indices), n), made as ``exact_gram`` is."""
        scale = None if self.scale is None else self.scale[indices]
        return np.asarray(times(scale, self.exact_gram(self.rows(indices))))

    def _placed(self, indices: Array | None) -> Any:
        """x[indices] as functions of blocks see them: moved to the center, in ``dtype``; all by default."""
        return self.points.of_points(_some, indices)


def _product(
    points: TilePoints, rows: slice, columns: slice, v: Any, kernel: Kernel, tile_rows: int
) -> tuple[Any, ...]:
    return _multiplied(points, block_tiles(kernel, points, rows, columns, tile_rows), rows, columns, v)


def _stored_product(points: TilePoints, tiles: list[Tile], rows: slice, columns: slice, v: Any) -> tuple[Any, ...]:
    return _multiplied(points, tiles, rows, columns, v)


def _multiplied(points: TilePoints, tiles: Iterable[Tile], rows: slice, columns: slice, v: Any) -> tuple[Any, ...]:
    forward, mirrored = multiply_tiles(tiles, rows, columns, padded_columns(v, points.x))
    return (forward,) if mirrored is None else (forward, mirrored)


def _tiles(points: TilePoints, rows: slice, columns: slice, kernel: Kernel, tile_rows: int) -> list[Tile]:
    return list(block_tiles(kernel, points, rows, columns, tile_rows, reuse=False))


def _cross(points: TilePoints, query: Any, v: Any, kernel: Kernel, tile_rows: int) -> tuple[Any]:
    x = points.x
    xp = array_namespace(x)
    others, vectors = TilePoints(xp.asarray(query, dtype=x.dtype)), padded_columns(v, x)
    maker = TileMaker(kernel, int(x.shape[1]))
    result = xp.zeros((len(query), vectors.shape[1]), dtype=np.float64)
    for rows in tile_slices(slice(0, len(query)), tile_rows):
        for columns in tile_slices(slice(0, len(x)), tile_rows):
            result[rows] += maker.tile(others, rows, points, columns) @ vectors[columns]
    return (result,)


def _some(points: TilePoints, indices: Array | None) -> Any:
    return points.x if indices is None else points.x[array_namespace(points.x).asarray(indices)]


def _diagonal(points: TilePoints, kernel: Kernel) -> Any:
    return kernel.diagonal(points.x)


def _norms(points: TilePoints) -> Any:
    return points.norms


def _exact_block(inputs: Any, query: Any, center: Any | None, kernel: Kernel) -> Array:
    return to_numpy(kernel(query, _in_float64(inputs, center)))


def _in_float64(x: Any, center: Any | None) -> Any:
    return moved(x.astype(np.float64), center)
