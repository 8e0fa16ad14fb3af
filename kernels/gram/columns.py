"""Columns C = K[:, landmarks] of a Gram matrix, (n, m), as what a low-rank method asks of them: C'C, C'v and C w."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, to_numpy
from congruence.kernels.gram.thin_products import padded_columns, transposed_product
from congruence.kernels.gram.tiles import TileMaker, TilePoints
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.threads import map_on_threads

Result = TypeVar("Result")
Blocks: TypeAlias = Iterator[tuple[slice, Any]]  # rows and C[rows]


class GramColumns(Protocol):
    """C = K[:, landmarks] with the corner W = K[landmarks, landmarks]; float64.

    Products with host arrays are host arrays; with arrays on the card that makes C they stay there.
    """

    def thinned(self, step: int) -> GramColumns:
        """Every ``step``-th column."""

    def corner(self) -> Array:
        """W, (m, m)."""

    def gram(self, scale: Array | None = None) -> Array:
        """C'C, (m, m); with ``scale`` s (n,), C' diag(s)^2 C."""

    def transposed_matmul(self, v: Any) -> Any:
        """C'v, (m, r)."""

    def matmul(self, w: Any) -> Any:
        """C w, (n, r)."""

    def row_norms(self, factor: Array) -> Array:
        """|C_i factor|^2 for every row C_i of C, (n,); ``factor`` is (m, q)."""


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


@dataclass(frozen=True)
class BlockColumns:
    """C block by block: held in memory, in the dtype of the inputs, or made again whenever it is used.

    Args:
        points: the n points.
        landmarks: the m landmarks.
        kernel: the input kernel.
        blocks: slices that cover the n rows.
        threads: cores to use.
        held: C, or None to make it again every time, at d more operations per entry.
    """

    points: TilePoints = field(repr=False)
    landmarks: TilePoints = field(repr=False)
    kernel: Kernel
    blocks: list[slice] = field(repr=False)
    threads: int
    held: Any | None = field(default=None, repr=False)

    def hold(self) -> BlockColumns:
        """The same columns, held in memory."""
        x = self.points.x
        held = array_namespace(x).empty((x.shape[0], self.landmarks.x.shape[0]), dtype=x.dtype)

        def fill(blocks: Blocks) -> None:
            for rows, block in blocks:
                held[rows] = block

        self._on_threads(fill)
        return replace(self, held=held)

    def thinned(self, step: int) -> BlockColumns:
        """See GramColumns: a view where C is held."""
        held = None if self.held is None else self.held[:, ::step]
        return replace(self, landmarks=TilePoints(self.landmarks.x[::step]), held=held)

    def corner(self) -> Array:
        """W."""
        return np.asarray(to_numpy(self.kernel(self.landmarks.x)), dtype=np.float64)

    def gram(self, scale: Array | None = None) -> Array:
        """C'C, or C' diag(s)^2 C."""
        m = int(self.landmarks.x.shape[0])
        xp = array_namespace(self.points.x)

        def squares(blocks: Blocks) -> Array:
            total, square = xp.zeros((m, m)), xp.empty((m, m))
            for rows, block in blocks:
                # float64 throughout: the small matrix built from C'C has the squared condition number of C.
                block = block.astype(np.float64)
                if scale is not None:
                    block *= xp.asarray(scale[rows])[:, None]
                total += xp.matmul(block.T, block, out=square)
            return to_numpy(total)

        gram: Array = _sum(self._on_threads(squares))
        return gram

    def transposed_matmul(self, v: Any) -> Any:
        """C'v."""
        xp, vectors = array_namespace(self.points.x), padded_columns(v, self.points.x)
        shape = (int(self.landmarks.x.shape[0]), int(vectors.shape[1]))

        def products(blocks: Blocks) -> Any:
            total = xp.zeros(shape)
            for rows, block in blocks:
                total += transposed_product(block, vectors[rows])
            return total

        return _beside(v, _sum(self._on_threads(products))[:, : v.shape[1]])

    def matmul(self, w: Any) -> Any:
        """C w."""
        result = array_namespace(self.points.x).empty((self.blocks[-1].stop, w.shape[1]))
        weights = padded_columns(w, self.points.x)

        def fill(blocks: Blocks) -> None:
            for rows, block in blocks:
                result[rows] = (block @ weights)[:, : w.shape[1]]

        self._on_threads(fill)
        return _beside(w, result)

    def row_norms(self, factor: Array) -> Array:
        """|C_i factor|^2."""
        xp = array_namespace(self.points.x)
        result, right = xp.empty(self.blocks[-1].stop), xp.asarray(factor)

        def fill(blocks: Blocks) -> None:
            for rows, block in blocks:
                product = block.astype(np.float64) @ right
                result[rows] = xp.einsum("ij,ij->i", product, product)

        self._on_threads(fill)
        return to_numpy(result)

    def _on_threads(self, function: Callable[[Blocks], Result]) -> list[Result]:
        """``function`` of every thread's share of the blocks, in the order of the threads."""

        def share(first: int) -> Result:
            maker = TileMaker(self.kernel, int(self.landmarks.x.shape[1]))
            return function((rows, self._block(rows, maker)) for rows in self.blocks[first :: self.threads])

        return map_on_threads(share, range(self.threads), self.threads)

    def _block(self, rows: slice, maker: TileMaker) -> Any:
        if self.held is not None:
            return self.held[rows]
        return maker.tile(self.points, rows, self.landmarks, slice(0, int(self.landmarks.x.shape[0])))


def positive_diagonal(gram: Array) -> Array:
    """k(x, x) of a Gram matrix, with the largest one where it is 0: what rounding in a row is relative to."""
    diagonal = np.diagonal(gram)
    return np.where(diagonal > 0.0, diagonal, np.max(diagonal, initial=0.0) or 1.0)


def _beside(v: Any, product: Any) -> Any:
    """``product`` where v is: one transfer for all blocks, or none."""
    return to_numpy(product) if array_namespace(v) is np else product


def _sum(parts: list[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total
