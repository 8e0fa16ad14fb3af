"""The exact factor of S K S + n lambda I by tiles on a Dask cluster, for more rows than one process factors.

Right-looking: factor a diagonal tile, solve the panel below it, update what is left. Only the lower triangle exists, in
double precision, NumPy or CuPy as the inputs are; a tile is made from the inputs where its first update happens, and
each version of it is released as soon as the next one is there. The factor stays on the workers and serves every
right-hand side; a solve moves t x r pieces, never a tile.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from distributed import Client

from congruence.kernels.arrays import Array, array_namespace, to_numpy
from congruence.kernels.engine.system import Factor, SystemInputs, not_positive
from congruence.kernels.engine.tiles import TileMaker, TilePoints, tile_slices
from congruence.kernels.errors import BudgetError
from congruence.kernels.kernel_functions import Kernel

MAX_TILES = 40
TILE_ROWS = {False: 2048, True: 8192}  # by whether tiles are on a card
MADE_ROWS = 1024  # of a tile that are made at once

Tiles = dict[tuple[int, int], Any]


@dataclass(frozen=True)
class TiledCholesky:
    """Makes tiled factors on the workers of ``client`` (see ``kernels.engine.system.Factorize``).

    Attributes:
        client: of the cluster.
        tile_rows: t; by default 2,048, or 8,192 on cards, larger where that would make more than 40 x 40 tiles.
        memory_bytes: refuse a factor that takes more over all workers.
        gpu: keep tiles on the workers' cards (the [gpu] extra).
    """

    client: Client
    tile_rows: int | None = None
    memory_bytes: int | None = None
    gpu: bool = False

    def __call__(self, inputs: SystemInputs) -> TiledFactor:
        """Returns the factor: n^3/3 operations, n^2/2 numbers kept on the workers.

        Raises:
            BudgetError: the factor does not fit ``memory_bytes``.
            ConvergenceError: the system is not positive definite.
        """
        n, t = inputs.n, self.tile_rows or max(TILE_ROWS[self.gpu], -(-inputs.n // MAX_TILES))
        needed = 8 * n * (n + t) // 2
        if self.memory_bytes is not None and needed > self.memory_bytes:
            raise BudgetError(
                f"tiled Cholesky of n = {n:,} needs {needed / 2**30:.2f} GiB on the workers, and "
                f"{self.memory_bytes / 2**30:.2f} GiB are allowed; use solver.kind auto, or "
                "more workers"
            )
        factor = TiledFactor(self.client, inputs, tile_slices(slice(0, n), t), self.gpu)
        factor.complete()
        return factor


@dataclass
class TiledFactor(Factor):
    """L by tiles, as results on the workers; made again if a worker is lost with its tiles."""

    client: Client
    inputs: SystemInputs
    rows: list[slice]
    gpu: bool
    tiles: Tiles = field(default_factory=dict, repr=False)

    def complete(self) -> None:
        """Factor, or factor again what a lost worker took with it; returns when every tile is there."""
        if self.tiles and all(tile.status in ("finished", "pending") for tile in self.tiles.values()):
            return
        self.tiles = self._submitted()
        try:
            self.client.gather(self.client.map(_is_there, list(self.tiles.values()), pure=False))
        except np.linalg.LinAlgError as error:
            diagonal = np.asarray(self.inputs.kernel.diagonal(self.inputs.landmarks))
            raise not_positive("K + n lambda I", self.inputs.shift, diagonal) from error

    def solve(self, rhs: Array) -> Array:
        """See Factor: L'^-1 L^-1 rhs, forward, then backward substitution, by row of tiles."""
        self.complete()
        client, tiles, count = self.client, self.tiles, len(self.rows)
        pieces = [client.scatter(np.asarray(rhs[rows], dtype=np.float64), hash=False) for rows in self.rows]
        for k in range(count):
            pieces[k] = client.submit(_solved, tiles[k, k], pieces[k], False, pure=False, priority=2)
            for i in range(k + 1, count):
                pieces[i] = client.submit(_less_product, tiles[i, k], pieces[k], pieces[i], pure=False)
        for k in reversed(range(count)):
            pieces[k] = client.submit(_solved, tiles[k, k], pieces[k], True, pure=False, priority=2)
            for i in range(k):
                pieces[i] = client.submit(_less_transposed, tiles[k, i], pieces[k], pieces[i], pure=False)
        # The client has no card to take what workers hold on theirs.
        return np.concatenate(client.gather(client.map(to_numpy, pieces, pure=False)))

    def _submitted(self) -> Tiles:
        client, inputs, rows, count = self.client, self.inputs, self.rows, len(self.rows)
        x = inputs.landmarks.astype(np.float64)
        points = [client.scatter((x[some], _part(inputs.roots, some)), hash=False) for some in rows]
        tiles: Tiles = {}
        for i in range(count):
            for j in range(i + 1):
                shift = inputs.shift if i == j else 0.0
                arguments = points[i], points[j], inputs.kernel, shift, self.gpu
                tiles[i, j] = client.submit(_gram_tile, *arguments, pure=False, priority=-i)
        for k in range(count):
            # Panels first: every later update waits for them. A replaced future is the last hold on its tile.
            tiles[k, k] = client.submit(_factored, tiles[k, k], rows[k].start, pure=False, priority=3)
            for i in range(k + 1, count):
                tiles[i, k] = client.submit(_panel, tiles[k, k], tiles[i, k], pure=False, priority=2)
            for j in range(k + 1, count):
                for i in range(j, count):
                    first = 1 if j == k + 1 else 0
                    tiles[i, j] = client.submit(
                        _updated, tiles[i, j], tiles[i, k], tiles[j, k], pure=False, priority=first
                    )
        return tiles


def _part(roots: Array | None, rows: slice) -> Array | None:
    return None if roots is None else roots[rows]


def _gram_tile(
    left: tuple[Array, Array | None], right: tuple[Array, Array | None], kernel: Kernel, shift: float, gpu: bool
) -> Any:
    (x, roots), (z, others) = left, right
    if gpu:
        import cupy as xp
    else:
        xp = np
    points = TilePoints(xp.asarray(x))
    columns = points if shift else TilePoints(xp.asarray(z))
    maker, tile = TileMaker(kernel, int(x.shape[1])), xp.empty((len(x), len(z)))
    for rows in tile_slices(slice(0, len(x)), len(x) if gpu else MADE_ROWS):
        tile[rows] = maker.tile(points, rows, columns, columns.all)
    if roots is not None and others is not None:
        tile *= xp.asarray(roots)[:, None]
        tile *= xp.asarray(others)
    if shift:
        diagonal = kernel.diagonal(points.x) * (1.0 if roots is None else xp.asarray(roots) ** 2)
        xp.einsum("ii->i", tile)[...] = diagonal + shift  # without the rounding of |x - x|^2
    return tile


def _factored(tile: Any, first_row: int) -> Any:
    try:
        factor = array_namespace(tile).linalg.cholesky(tile)
    except np.linalg.LinAlgError as error:
        raise np.linalg.LinAlgError(f"the tile of rows from {first_row} has no factor") from error
    if not bool(array_namespace(factor).isfinite(factor).all()):
        raise np.linalg.LinAlgError(f"the tile of rows from {first_row} has no factor")
    return factor


def _panel(factor: Any, tile: Any) -> Any:
    return _solved(factor, tile.T, False).T


def _updated(tile: Any, left: Any, right: Any) -> Any:
    result = left @ right.T
    return array_namespace(tile).subtract(tile, result, out=result)


def _is_there(tile: Any) -> bool:
    return tile is not None


def _solved(factor: Any, piece: Any, transposed: bool) -> Any:
    xp = array_namespace(factor)
    linalg = importlib.import_module("scipy.linalg" if xp is np else "cupyx.scipy.linalg")
    way = "T" if transposed else "N"
    return linalg.solve_triangular(factor, xp.asarray(piece), lower=True, trans=way, check_finite=False)


def _less_product(tile: Any, known: Any, piece: Any) -> Any:
    return array_namespace(tile).asarray(piece) - tile @ known


def _less_transposed(tile: Any, known: Any, piece: Any) -> Any:
    return piece - tile.T @ known
