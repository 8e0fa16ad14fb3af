"""The operator A = K + n lambda I spread over a Dask cluster: every solver of kernels runs on it unchanged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from distributed import Client, get_worker

from congruence.kernels.arrays import Array, array_namespace, to_numpy
from congruence.kernels.gram.columns import GramColumns
from congruence.kernels.gram.operator import BLOCK_ROWS, GPU_BLOCK_ROWS, RegularizedGram
from congruence.kernels.gram.thin_products import padded_columns
from congruence.kernels.gram.tiles import TileMaker, TilePoints, block_tiles, multiply_tiles, tile_slices
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.steps import step
from congruence.tasks.solving.columns import DaskColumns
from congruence.tasks.solving.kept_tiles import KeptTiles, Tiles
from congruence.tasks.solving.placement import Placement
from congruence.tasks.solving.sources import RowSource, row_source


@dataclass(frozen=True)
class DaskGram:
    """A = K + n lambda I over the workers of a cluster; NumPy or CuPy by where the workers keep x.

    Args:
        client: of the cluster.
        x: (n, d) as a NumPy or Dask array.
        kernel: the input kernel.
        regularization: lambda > 0; the shift is n lambda.
        dtype: of the arithmetic inside a tile; sums over tiles are float64. What it does to the inputs and to K is
            measured against the inputs as they are given (``exact_gram``).
        gpu: keep x, and so make every tile, on the workers' GPUs (the [gpu] extra).
        tile_rows: rows of a tile inside a task.
        held_bytes: what the workers together may take to keep one triangle of K between passes; by default a share of
            their memory, see ``KeptTiles``.
    """

    client: Client = field(repr=False)
    x: Any = field(repr=False)
    kernel: Kernel
    regularization: float
    dtype: Any = np.float32
    gpu: bool = False
    tile_rows: int | None = None
    held_bytes: int | None = None

    @property
    def n(self) -> int:
        """Number of reference points."""
        return self._source.n

    @property
    def dimension(self) -> int:
        """Number of features d of an input."""
        return self._source.dimension

    @property
    def shift(self) -> float:
        """n lambda."""
        return self.n * self.regularization

    @property
    def has_card(self) -> bool:
        """Whether this process is a worker with a card; a client takes none of it."""
        if not self.gpu:
            return False
        try:
            get_worker()
        except ValueError:
            return False
        return True

    def vectors(self, v: Array) -> Array:
        """v: n x r arrays are the client's, and move to the workers for each product."""
        return v

    def matmul(self, v: Array) -> Array:
        """A v: a task makes the tiles of one pair of row blocks, for both triangles; n x r vectors move."""
        return self.placement.run(lambda: self._product(v, self.shift * v))

    def gram_matmul(self, v: Array) -> Array:
        """K v, see ``matmul``."""
        return self.placement.run(lambda: self._product(v, np.zeros(v.shape)))

    def cross(self, query: Any, v: Array) -> Array:
        """[k(x_i, query_j)]' v."""
        center = self.placement.center
        points = to_numpy(query) if center is None else to_numpy(query) - center
        vectors = np.asarray(v, dtype=self.dtype)
        return self.placement.run(lambda: self._crossed(points, vectors))

    def _crossed(self, points: Array, vectors: Array) -> Array:
        place = self.placement
        pieces = tile_slices(slice(0, len(points)), max(1, -(-len(points) // (4 * place.threads))))
        sent = self.client.scatter(vectors, hash=False)
        futures = [
            place.submit(
                number, _cross, self.client.scatter(points[piece], hash=False), sent, self.kernel, self.tile_size
            )
            for number, piece in enumerate(pieces)
        ]
        return np.concatenate(self.client.gather(futures)) if futures else np.zeros((0, vectors.shape[1]))

    def restricted(self, indices: Array) -> RegularizedGram:
        """See Operator."""
        return RegularizedGram(self._placed_rows(indices), self.kernel, self.regularization)

    def gram_columns(self, indices: Array, rows: Array | None = None) -> Array:
        """K[rows, indices], on the client."""
        rows = np.arange(self.n) if rows is None else rows
        return to_numpy(self.kernel(self._placed_rows(rows), self._placed_rows(indices)))

    def columns(self, indices: Array) -> GramColumns:
        """K[:, indices], held by the workers."""
        return DaskColumns(self.placement, self._placed_rows(indices), self.kernel, self.row_blocks)

    def gram_diagonal(self) -> Array:
        """k(x_i, x_i)."""
        return self.placement.of_points(_diagonal, self.kernel)

    def row_norms(self) -> Array:
        """See Operator."""
        return self.placement.of_points(_norms)

    def rows(self, indices: Array) -> Array:
        """x[indices] on the client, from their source."""
        return self.placement.run(lambda: self._source.some(self.client, np.asarray(indices)))

    def row_products(self, indices: Array, v: Array) -> Array:
        """(K v)[indices]."""
        return self.cross(self.rows(indices), v)

    def exact_gram(self, query: Any | None = None) -> Array:
        """See Operator: from the source, block by block; all of K is made on the client."""
        center = self.placement.center
        points = self.rows(np.arange(self.n)) if query is None else to_numpy(query)
        if query is None:
            return np.asarray(self.kernel(_in_float64(points, center)))
        place = self.placement

        def blocks() -> list[Array]:
            sent = self.client.scatter(_in_float64(points, center), hash=False)
            made: list[Array] = []
            for rows in place.sent_rows():  # one after the other: what was sent is let go with what is made of it
                given = self._source.future(self.client, rows)
                made.append(self.client.submit(_exact_block, given, sent, center, self.kernel, pure=False).result())
            return made

        return np.concatenate(place.run(blocks), axis=1)

    def exact_rows(self, indices: Array) -> Array:
        """See Operator."""
        return self.exact_gram(self.rows(indices))

    def rounding(self, query: Any | None = None) -> float:
        """See Operator."""
        center = self.placement.center
        if query is None:
            return self._rounding
        return max(self._rounding, self.kernel.rounding(_in_float64(to_numpy(query), center)))

    @cached_property
    def _rounding(self) -> float:
        return self.placement.of_points(_kernel_rounding, self.kernel)

    def _placed_rows(self, indices: Array) -> Array:
        """x[indices] on the client as workers have them: centred, in ``dtype``."""
        return self.placement.rows(np.asarray(indices))

    @cached_property
    def placement(self) -> Placement:
        """Where the rows of x are."""
        return Placement(self.client, self._source, np.dtype(self.dtype), self.gpu, self.kernel)

    @property
    def tile_size(self) -> int:
        """Rows of a tile inside a task."""
        return self.tile_rows or (GPU_BLOCK_ROWS if self.gpu else BLOCK_ROWS)

    @property
    def row_blocks(self) -> list[slice]:
        """Row blocks whose pairs are tasks: some six pairs a thread, so that the last ones do not idle the others."""
        count = max(1, int(np.ceil(np.sqrt(12 * self.placement.threads))))
        size = max(1, -(-self.n // count))
        return tile_slices(slice(0, self.n), size)

    @cached_property
    def _kept(self) -> KeptTiles:
        return KeptTiles(self.placement, self.kernel, self.tile_size, self.held_bytes)

    @cached_property
    def _source(self) -> RowSource:
        return row_source(self.x)

    def _product(self, v: Array, result: Array) -> Array:
        """K v, added to ``result``."""
        place = self.placement
        blocks = self.row_blocks
        vectors = self.client.scatter(np.asarray(v, dtype=self.dtype), hash=False, broadcast=True)
        pairs = [(i, j) for i in range(len(blocks)) for j in range(i, len(blocks))]
        pairs.sort(key=lambda pair: pair[0] == pair[1])  # diagonal blocks cost half: last, to even out the end
        kept = self._kept.of([(blocks[i], blocks[j]) for i, j in pairs])
        products = (
            place.submit(
                number,
                *((_pair, self.kernel, self.tile_size) if kept is None else (_kept_pair, kept[number])),
                blocks[i],
                blocks[j],
                vectors,
            )
            for number, (i, j) in enumerate(pairs)
        )
        parts: list[list[tuple[Any, int]]] = [[] for _ in blocks]
        with step("pass over the Gram matrix", len(pairs), "blocks") as advance:
            for (i, j), product in zip(pairs, products, strict=True):
                product.add_done_callback(lambda _: advance(1))
                parts[i].append((product, 0))
                if j != i:
                    parts[j].append((product, 1))
            sums = [
                self.client.submit(_sum, [product for product, _ in part], [side for _, side in part], pure=False)
                for part in parts
            ]
            for rows, value in zip(blocks, self.client.gather(sums), strict=True):
                result[rows] += value
        return result


def _pair(
    points: TilePoints, kernel: Kernel, tile_rows: int, rows: slice, columns: slice, v: Array
) -> tuple[Array, Array | None]:
    return _multiplied(points, block_tiles(kernel, points, rows, columns, tile_rows), rows, columns, v)


def _kept_pair(points: TilePoints, tiles: Tiles, rows: slice, columns: slice, v: Array) -> tuple[Array, Array | None]:
    return _multiplied(points, tiles, rows, columns, v)


def _multiplied(
    points: TilePoints, tiles: Iterable[tuple[slice, slice, Any]], rows: slice, columns: slice, v: Array
) -> tuple[Array, Array | None]:
    vectors, r = padded_columns(v, points.x), v.shape[1]
    forward, mirrored = multiply_tiles(tiles, rows, columns, vectors)
    return to_numpy(forward[:, :r]), None if mirrored is None else to_numpy(mirrored[:, :r])


def _sum(products: list[tuple[Array, Array]], sides: list[int]) -> Array:
    total = products[0][sides[0]].copy()
    for product, side in zip(products[1:], sides[1:], strict=True):
        total += product[side]
    return total


def _cross(points: TilePoints, query: Array, v: Array, kernel: Kernel, tile_rows: int) -> Array:
    x = points.x
    xp = array_namespace(x)
    others, vectors = TilePoints(xp.asarray(query, dtype=x.dtype)), xp.asarray(v)
    maker = TileMaker(kernel, int(x.shape[1]))
    result = xp.zeros((len(query), v.shape[1]), dtype=np.float64)
    for rows in tile_slices(slice(0, len(query)), tile_rows):
        for columns in tile_slices(slice(0, len(x)), tile_rows):
            result[rows] += maker.tile(others, rows, points, columns) @ vectors[columns]
    return to_numpy(result)


def _diagonal(points: TilePoints, kernel: Kernel) -> Array:
    return to_numpy(kernel.diagonal(points.x))


def _norms(points: TilePoints) -> Array:
    return to_numpy(points.norms)


def _kernel_rounding(points: TilePoints, kernel: Kernel) -> float:
    return kernel.rounding(points.x)


def _exact_block(block: Any, query: Array, center: Array | None, kernel: Kernel) -> Array:
    return np.asarray(kernel(query, _in_float64(to_numpy(block), center)))


def _in_float64(x: Array, center: Array | None) -> Array:
    x = np.asarray(x, dtype=np.float64)
    return x if center is None else x - center
