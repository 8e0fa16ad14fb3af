"""Cholesky factorisation of A = K + n lambda I by tiles on a Dask cluster.

Right-looking: factor a diagonal tile, solve the panel below it, update what is left. Only the lower triangle exists; a
tile is made from the inputs where its first update happens, and each version of it is released as soon as the next one
is there. The factor stays on the workers and serves every right-hand side; a solve moves t x r pieces, never a tile.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, to_numpy
from congruence.kernels.device_solves import factor_on_card, triangular_solve
from congruence.kernels.errors import BudgetError, ConvergenceError
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.gram.points import BLOCK_ROWS
from congruence.kernels.gram.tiles import TileMaker, TilePoints, tile_slices
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.solvers.base import Solution, column_tolerances
from congruence.kernels.solvers.low_rank import SCALE_FEATURES, diagonal_in_words
from congruence.tasks.runtime.steps import step
from congruence.tasks.solving.points_on_cluster import PointsOnCluster, is_there

MAX_TILES = 40
GPU_TILE_ROWS = 8192
CPU_TILE_ROWS = 2048
Tiles = dict[tuple[int, int], Any]


@dataclass
class TiledFactor:
    """L by tiles, as futures on the workers; made again if a worker is lost with its tiles.

    Attributes:
        operator: A.
        points: from which tiles are made.
        rows: of a row of tiles.
        tiles: L.
    """

    operator: RegularizedGram
    points: PointsOnCluster
    rows: list[slice]
    tiles: Tiles = field(repr=False)

    @property
    def is_whole(self) -> bool:
        """Whether every tile still exists or is on its way."""
        return bool(self.tiles) and all(is_there(tile) for tile in self.tiles.values())


@dataclass(frozen=True)
class TiledCholesky:
    """Tiled Cholesky on the workers that have an operator's points, in its dtype, with steps of iterative refinement.

    Args:
        tile_rows: t; by default 2,048 on CPUs and 8,192 on GPUs, larger where that would make more than 40 x 40 tiles.
        tolerance: refine until ||R||_F <= tolerance ||B||_F: every step is one pass over K.
        max_refinements: before giving up.
        memory_bytes: refuse a factor that takes more over all workers.
    """

    factorizes: ClassVar[bool] = True

    tile_rows: int | None = None
    tolerance: float = 5e-7
    max_refinements: int = 5
    memory_bytes: int | None = None

    def prepare(self, operator: RegularizedGram) -> TiledFactor:
        """Factor A, whose points are ``PointsOnCluster``: n^3/3 operations, n^2/2 entries kept on the workers.

        Raises:
            BudgetError: the factor does not fit ``memory_bytes``.
            ConvergenceError: A is not positive definite in the operator's dtype.
        """
        points, needed = operator.points, self.projected_bytes(operator)
        if self.memory_bytes is not None and needed > self.memory_bytes:
            raise BudgetError(
                f"tiled Cholesky of n = {operator.n:,} needs {needed / 2**30:.2f} GiB on the workers, and "
                f"{self.memory_bytes / 2**30:.2f} GiB are allowed; use ConjugateGradient, which needs n x d, or more "
                "workers"
            )
        assert isinstance(points, PointsOnCluster)
        factor = TiledFactor(operator, points, tile_slices(slice(0, points.n), self._tile_rows(points)), {})
        points.run(lambda: self._complete(factor))
        return factor

    def low_rank(self, state: TiledFactor) -> None:
        """None: A is known exactly."""

    def solve(
        self,
        state: TiledFactor,
        rhs: Array,
        *,
        tolerances: Array | None = None,
        groups: Sequence[slice] | None = None,
    ) -> Solution:
        """Z by triangular solves and refinement until the column norms of B - A Z are within ``tolerances`` (r,).

        Raises:
            ConvergenceError: refinement did not get there: A is too ill-conditioned for the operator's dtype.
        """
        started = time.perf_counter()
        operator = state.operator
        rhs = np.asarray(rhs, dtype=np.float64)
        tolerances = column_tolerances(rhs, self.tolerance, tolerances, groups)
        value, residual = np.zeros_like(rhs), rhs
        for refinement in range(self.max_refinements + 1):
            value = value + state.points.run(lambda r=residual: self._substitute(state, r))  # type: ignore[misc]
            residual = rhs - operator.matmul(value)
            norms = np.linalg.norm(residual, axis=0)
            if np.all(norms <= tolerances):
                seconds = time.perf_counter() - started
                held = self.projected_bytes(operator)
                return Solution(value, residual, refinement + 1, seconds, held, dtype=operator.dtype)
        worst = int(np.argmax(norms - tolerances))
        raise ConvergenceError(
            f"tiled Cholesky: after {self.max_refinements} refinements column {worst} has residual {norms[worst]:.3g}, "
            f"and {tolerances[worst]:.3g} was asked for; use dtype float64 or a larger regularization or tolerance"
        )

    def projected_bytes(self, operator: RegularizedGram) -> int:
        """Bytes of the factor over all workers."""
        t = self._tile_rows(operator.points)
        return int(np.dtype(operator.dtype).itemsize) * operator.n * (operator.n + t) // 2

    def _tile_rows(self, points: Any) -> int:
        least = GPU_TILE_ROWS if points.gpu else CPU_TILE_ROWS
        return self.tile_rows or max(least, -(-points.n // MAX_TILES))

    def _complete(self, factor: TiledFactor) -> None:
        """Factor, or factor again what a lost worker took with it; returns when every tile is there."""
        if factor.is_whole:
            return
        factor.tiles = _submit_factorization(factor)
        place = factor.points
        try:
            with step("factoring the Gram matrix", len(factor.tiles), "tiles") as advance:
                there = place.client.map(_is_there, list(factor.tiles.values()), pure=False)
                for tile in there:
                    tile.add_done_callback(lambda _: advance(1))
                place.client.gather(there)
        except np.linalg.LinAlgError as error:
            raise ConvergenceError(
                f"K + n lambda I is not positive definite in {np.dtype(factor.operator.dtype)} "
                f"(n lambda = {factor.operator.shift:.3g}, {diagonal_in_words(factor.operator)}): {error}. The input "
                "kernel is not positive definite, or lambda is below rounding; "
                f"{SCALE_FEATURES}, or use a larger regularization or dtype float64"
            ) from error

    def _substitute(self, factor: TiledFactor, rhs: Array) -> Array:
        """L'^-1 L^-1 rhs: forward, then backward substitution, by row of tiles."""
        self._complete(factor)
        client, tiles, rows = factor.points.client, factor.tiles, factor.rows
        count = len(rows)
        pieces = [client.scatter(np.asarray(rhs[r], dtype=factor.operator.dtype), hash=False) for r in rows]
        for k in range(count):
            pieces[k] = client.submit(_lower_solve, tiles[k, k], pieces[k], pure=False, priority=2)
            for i in range(k + 1, count):
                pieces[i] = client.submit(_subtract_product, tiles[i, k], pieces[k], pieces[i], pure=False)
        for k in reversed(range(count)):
            pieces[k] = client.submit(_upper_solve, tiles[k, k], pieces[k], pure=False, priority=2)
            for i in range(k):
                pieces[i] = client.submit(_subtract_transposed, tiles[k, i], pieces[k], pieces[i], pure=False)
        # The client has no card to take what workers hold on theirs.
        return np.concatenate(client.gather(client.map(to_numpy, pieces, pure=False))).astype(np.float64)


def _submit_factorization(factor: TiledFactor) -> Tiles:
    operator, rows = factor.operator, factor.rows
    place, client, scale = factor.points, factor.points.client, operator.scale
    count = len(rows)
    tiles: Tiles = {}
    for i in range(count):
        for j in range(i + 1):
            tiles[i, j] = place.submit(
                i + j,
                _gram_tile,
                rows[i],
                rows[j],
                operator.kernel,
                operator.shift,
                None if scale is None else (scale[rows[i]], scale[rows[j]]),
                priority=-i,
            )
    for k in range(count):
        # Panels first: every later update waits for them. A replaced future is the last hold on its tile.
        tiles[k, k] = client.submit(_factor, tiles[k, k], rows[k].start, pure=False, priority=3)
        for i in range(k + 1, count):
            tiles[i, k] = client.submit(_panel, tiles[k, k], tiles[i, k], pure=False, priority=2)
        for j in range(k + 1, count):
            for i in range(j, count):
                tiles[i, j] = client.submit(
                    _update, tiles[i, j], tiles[i, k], tiles[j, k], pure=False, priority=1 if j == k + 1 else 0
                )
    return tiles


def _gram_tile(
    points: TilePoints, rows: slice, columns: slice, kernel: Kernel, shift: float, scales: tuple[Array, Array] | None
) -> Any:
    maker = TileMaker(kernel, int(points.x.shape[1]))
    size = BLOCK_ROWS if array_namespace(points.x) is np else rows.stop - rows.start
    xp = array_namespace(points.x)
    tile = xp.empty((rows.stop - rows.start, columns.stop - columns.start), dtype=points.x.dtype)
    for above in tile_slices(rows, size):
        for beside in tile_slices(columns, size):
            place = (
                slice(above.start - rows.start, above.stop - rows.start),
                slice(beside.start - columns.start, beside.stop - columns.start),
            )
            tile[place] = maker.tile(points, above, points, beside)
    if scales is not None:
        left, right = (xp.asarray(scale, dtype=tile.dtype) for scale in scales)
        tile *= left[:, None]
        tile *= right
    if rows == columns:
        tile.reshape(-1)[:: len(tile) + 1] += shift
    return tile


def _factor(tile: Any, first_row: int) -> Any:
    on_host = array_namespace(tile) is np
    try:
        factor = np.linalg.cholesky(tile) if on_host else factor_on_card(tile)
    except np.linalg.LinAlgError as error:
        raise np.linalg.LinAlgError(f"the tile of rows from {first_row} has no factor") from error
    if on_host and not np.isfinite(factor).all():
        raise np.linalg.LinAlgError(f"the tile of rows from {first_row} has no factor")
    return factor


def _panel(factor: Any, tile: Any) -> Any:
    return triangular_solve(factor, tile.T, transposed=False).T


def _update(tile: Any, left: Any, right: Any) -> Any:
    result = left @ right.T
    return array_namespace(tile).subtract(tile, result, out=result)


def _is_there(tile: Any) -> bool:
    return tile is not None


def _lower_solve(factor: Any, piece: Any) -> Any:
    return triangular_solve(factor, array_namespace(factor).asarray(piece), transposed=False)


def _upper_solve(factor: Any, piece: Any) -> Any:
    return triangular_solve(factor, piece, transposed=True)


def _subtract_product(tile: Any, known: Any, piece: Any) -> Any:
    return array_namespace(tile).asarray(piece) - tile @ known


def _subtract_transposed(tile: Any, known: Any, piece: Any) -> Any:
    return piece - tile.T @ known
