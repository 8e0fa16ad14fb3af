"""Columns C = K[:, landmarks] of a Gram matrix, (n, m), as what a low-rank method asks of them: C'C, C'v and C w."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, to_numpy
from congruence.kernels.gram.points import Item, Lasting, PlacedPoints
from congruence.kernels.gram.thin_products import beside, padded_columns, times, transposed_product
from congruence.kernels.gram.tiles import TileMaker, TilePoints, tile_slices, within
from congruence.kernels.kernel_functions import Kernel

HELD_COLUMNS_BYTES = 2**31  # in each process


@dataclass(frozen=True)
class Landmarks:
    """What a block of rows needs to know of the columns.

    Attributes:
        points: the m landmarks (m, d), as functions of blocks see points.
        kernel: the input kernel.
        step: every so many-th column is meant.
        tile_rows: rows of a tile.
    """

    points: Any = field(repr=False)
    kernel: Kernel
    step: int
    tile_rows: int

    def tiles(self, points: TilePoints, rows: slice, held: Any | None) -> Iterator[tuple[slice, Any]]:
        """Rows, counted from the first, and C there, tile by tile; of ``held`` rows with all columns where given."""
        others = None
        if held is None:
            others = TilePoints(array_namespace(points.x).asarray(self.points[:: self.step], dtype=points.x.dtype))
            maker = TileMaker(self.kernel, int(points.x.shape[1]))
        for tile in tile_slices(rows, self.tile_rows):
            place = within(tile, rows)
            if others is None:
                yield place, held[place, :: self.step]  # type: ignore[index]
            else:
                yield place, maker.tile(points, tile, others, slice(0, int(others.x.shape[0])))


@dataclass(frozen=True)
class GramColumns:
    """C = (S K S)[:, landmarks] with the corner W = C[landmarks]; float64.

    Products with host arrays are host arrays; with arrays on the card that makes C they stay there.

    Args:
        points: the n points, and who works on them.
        landmarks: the m landmarks.
        rows: s, (n,); None where nothing is scaled.
        own: s of the landmarks, (m,).
        blocks: of rows, one a piece of work.
        held: C by blocks where they were made, in the dtype of the points; None to make it again every time, at d more
            operations an entry.
    """

    points: PlacedPoints
    landmarks: Landmarks
    rows: Array | None = field(repr=False)
    own: Array | None = field(repr=False)
    blocks: list[slice] = field(repr=False)
    held: Lasting | None = field(repr=False)

    @classmethod
    def of(
        cls, points: PlacedPoints, landmarks: Any, kernel: Kernel, scale: Array | None, indices: Array
    ) -> GramColumns:
        """The columns ``indices``, whose points are ``landmarks``; held if they fit in 2 GiB of each process."""
        known = Landmarks(landmarks, kernel, 1, points.tile_rows)
        needed = points.n * len(indices) * np.dtype(points.dtype).itemsize
        held = points.lasting(_held, known) if needed <= HELD_COLUMNS_BYTES * points.processes else None
        blocks = points.pieces(points.n, least=min(points.tile_rows, 256))
        return cls(points, known, scale, None if scale is None else scale[indices], blocks, held)

    def thinned(self, step: int) -> GramColumns:
        """Every ``step``-th column: a view where C is held."""
        landmarks = replace(self.landmarks, step=self.landmarks.step * step)
        return replace(self, landmarks=landmarks, own=None if self.own is None else self.own[::step])

    def corner(self) -> Array:
        """W, (m, m)."""
        few = self.landmarks.points[:: self.landmarks.step]
        corner = np.asarray(to_numpy(self.landmarks.kernel(few)), dtype=np.float64)
        return corner if self.own is None else corner * self.own * self.own[:, None]

    def gram(self) -> Array:
        """C'C, (m, m)."""
        total = self._sums(_gram, lambda _: (0,), lambda rows: None if self.rows is None else self.rows[rows])[0]
        gram = to_numpy(total)
        return gram if self.own is None else gram * self.own * self.own[:, None]

    def transposed_matmul(self, v: Any) -> Any:
        """C'v, (m, r)."""
        vectors = times(self.rows, v)
        (total,) = self._sums(_transposed_matmul, lambda _: (0,), lambda rows: vectors[rows])
        return times(self.own, beside(v, total[:, : v.shape[1]]))

    def matmul(self, w: Any) -> Any:
        """C w, (n, r)."""
        weights = times(self.own, w)
        parts = self._sums(_matmul, lambda number: (number,), lambda _: None, weights)
        result = array_namespace(w).empty((self.points.n, w.shape[1]))
        for rows, part in zip(self.blocks, parts, strict=True):
            result[rows] = beside(w, part[:, : w.shape[1]])
        return times(self.rows, result)

    def _sums(
        self,
        function: Callable[..., Any],
        totals: Callable[[int], tuple[int]],
        argument: Callable[[slice], Any],
        *shared: Any,
    ) -> list[Any]:
        """Totals of ``function(points, held, rows, argument, landmarks, *shared)`` over the blocks."""
        items = [Item(totals(number), (rows,), (argument(rows),)) for number, rows in enumerate(self.blocks)]
        if self.held is None:
            return self.points.sums(_made_again, items, function, self.landmarks, *shared)
        return self.points.sums(function, items, self.landmarks, *shared, stored=self.held)


@dataclass(frozen=True)
class LandmarkColumns:
    """C = K[:, indices] with what low-rank methods compute of it once.

    Attributes:
        indices: row numbers of the m landmarks.
        columns: C.
        corner: W = K[indices, indices], (m, m).
        gram: C'C, (m, m).
    """

    indices: Array = field(repr=False)
    columns: GramColumns = field(repr=False)
    corner: Array = field(repr=False)
    gram: Array = field(repr=False)

    @classmethod
    def of(cls, columns: GramColumns, indices: Array) -> LandmarkColumns:
        """``columns`` = K[:, indices]: n m^2 operations."""
        return cls(indices, columns, columns.corner(), columns.gram())

    def thinned(self, count: int) -> LandmarkColumns:
        """About ``count`` of the landmarks, evenly over them; all if there are not many more."""
        step = thinning_step(len(self.indices), count)
        if step == 1:
            return self
        few = np.s_[::step, ::step]
        return LandmarkColumns(
            self.indices[::step], self.columns.thinned(step), self.corner[few].copy(), self.gram[few].copy()
        )


def thinning_step(landmarks: int, count: int) -> int:
    """The step that leaves about ``count`` of the landmarks."""
    return max(1, round(landmarks / count))


def _held(points: TilePoints, rows: slice, landmarks: Landmarks) -> Any:
    """C[rows] with all columns."""
    xp, size = array_namespace(points.x), rows.stop - rows.start
    held = xp.empty((size, len(landmarks.points)), dtype=points.x.dtype)
    for place, tile in landmarks.tiles(points, rows, None):
        held[place] = tile
    return held


def _made_again(points: TilePoints, rows: slice, argument: Any, function: Callable[..., Any], *shared: Any) -> Any:
    return function(points, None, rows, argument, *shared)


def _gram(
    points: TilePoints, held: Any | None, rows: slice, weights: Array | None, landmarks: Landmarks
) -> Sequence[Any]:
    xp, m = array_namespace(points.x), len(landmarks.points[:: landmarks.step])
    total, square = xp.zeros((m, m)), xp.empty((m, m))
    for place, tile in landmarks.tiles(points, rows, held):
        # float64 throughout: the small matrix built from C'C has the squared condition number of C.
        block = tile.astype(np.float64)
        if weights is not None:
            block *= xp.asarray(weights[place])[:, None]
        total += xp.matmul(block.T, block, out=square)
    return (total,)


def _transposed_matmul(
    points: TilePoints, held: Any | None, rows: slice, v: Any, landmarks: Landmarks
) -> Sequence[Any]:
    xp, vectors = array_namespace(points.x), padded_columns(v, points.x)
    total = xp.zeros((len(landmarks.points[:: landmarks.step]), vectors.shape[1]))
    for place, tile in landmarks.tiles(points, rows, held):
        total += transposed_product(tile, vectors[place])
    return (total,)


def _matmul(points: TilePoints, held: Any | None, rows: slice, _: None, landmarks: Landmarks, w: Any) -> Sequence[Any]:
    weights = padded_columns(w, points.x)
    result = array_namespace(points.x).empty((rows.stop - rows.start, weights.shape[1]))
    for place, tile in landmarks.tiles(points, rows, held):
        result[place] = tile @ weights
    return (result,)


def positive_diagonal(gram: Array) -> Array:
    """k(x, x) of a Gram matrix, with the largest one where it is 0: what rounding in a row is relative to."""
    diagonal = np.diagonal(gram)
    return np.where(diagonal > 0.0, diagonal, np.max(diagonal, initial=0.0) or 1.0)
