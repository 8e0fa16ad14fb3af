"""The exact factor of S K S + n lambda I by tiles on a Dask cluster, for more rows than one process factors.

Right-looking: factor a diagonal tile, solve the panel below it, update what is left. Only the lower triangle exists, in
double precision; a tile is made from the inputs where its first update happens, and each version of it is released as
soon as the next one is there. The factor stays on the workers and serves every right-hand side; a solve moves t x r
pieces, never a tile. On workers with cards tiles are CuPy's and stay there, or, where they are larger together than the
cards, in host memory, from where each visits the card for an operation.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, on_card, to_numpy
from congruence.kernels.engine.landmarks import not_positive
from congruence.kernels.engine.system import Factor, SystemInputs, TileMaker, TilePoints, tile_slices
from congruence.kernels.errors import BudgetError
from congruence.kernels.kernel_functions import Kernel

if TYPE_CHECKING:
    from distributed import Client

MAX_TILES = 40
TILE_ROWS = {"host": 2048, "card": 8192, "visiting": 8192}
MADE_ROWS = 1024  # of a tile that are made at once
WORKING_TILES = 8  # that a card has beside those of the factor

Tiles = dict[tuple[int, int], Any]
Place = Literal["host", "card", "visiting"]
"""Where tiles are kept and multiplied: in host memory, on cards, or kept in host memory and multiplied on cards."""


@dataclass(frozen=True)
class TiledCholesky:
    """Makes tiled factors on the workers of ``client`` (see ``kernels.engine.landmarks.Factorize``).

    Attributes:
        client: of the cluster.
        tile_rows: t; by default 2,048, or 8,192 on cards, larger where that would make more than 40 x 40 tiles.
        memory_bytes: refuse a factor that takes more of the workers' memory together.
        card_bytes: of the workers' cards together (the [gpu] extra); None where processors compute.
    """

    client: Client
    tile_rows: int | None = None
    memory_bytes: int | None = None
    card_bytes: int | None = None

    def __call__(self, inputs: SystemInputs) -> TiledFactor:
        """Returns the factor: n^3/3 operations, n^2/2 numbers kept on the workers.

        Raises:
            BudgetError: the factor fits neither cards nor ``memory_bytes``.
            ConvergenceError: the system is not positive definite.
        """
        n, place = inputs.n, self._place(inputs.n)
        t = self._rows_of_tile(n, place)
        needed = 8 * n * (n + t) // 2
        if place != "card" and self.memory_bytes is not None and needed > self.memory_bytes:
            raise BudgetError(
                f"tiled Cholesky of n = {n:,} needs {needed / 2**30:.2f} GiB on the workers, and "
                f"{self.memory_bytes / 2**30:.2f} GiB are allowed; use solver.kind auto, or "
                "more workers"
            )
        factor = TiledFactor(self.client, inputs, tile_slices(slice(0, n), t), place)
        factor.complete()
        return factor

    def _rows_of_tile(self, n: int, place: Place) -> int:
        return self.tile_rows or max(TILE_ROWS[place], -(-n // MAX_TILES))

    def _place(self, n: int) -> Place:
        if self.card_bytes is None:
            return "host"
        t = self._rows_of_tile(n, "card")
        return "card" if 8 * (n * (n + t) // 2 + WORKING_TILES * t**2) <= self.card_bytes else "visiting"


@dataclass
class TiledFactor(Factor):
    """L by tiles, as results on the workers; made again if a worker is lost with its tiles."""

    client: Client
    inputs: SystemInputs
    rows: list[slice]
    place: Place
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
            pieces[k] = self._submit(_solved, tiles[k, k], pieces[k], False, priority=2)
            for i in range(k + 1, count):
                pieces[i] = self._submit(_less_product, tiles[i, k], pieces[k], pieces[i])
        for k in reversed(range(count)):
            pieces[k] = self._submit(_solved, tiles[k, k], pieces[k], True, priority=2)
            for i in range(k):
                pieces[i] = self._submit(_less_transposed, tiles[k, i], pieces[k], pieces[i])
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
                tiles[i, j] = self._submit(_gram_tile, points[i], points[j], inputs.kernel, shift, priority=-i)
        for k in range(count):
            # Panels first: every later update waits for them. A replaced future is the last hold on its tile.
            tiles[k, k] = self._submit(_factored, tiles[k, k], rows[k].start, priority=3)
            for i in range(k + 1, count):
                tiles[i, k] = self._submit(_panel, tiles[k, k], tiles[i, k], priority=2)
            for j in range(k + 1, count):
                for i in range(j, count):
                    first = 1 if j == k + 1 else 0
                    tiles[i, j] = self._submit(_updated, tiles[i, j], tiles[i, k], tiles[j, k], priority=first)
        return tiles

    def _submit(self, function: Callable[..., Any], *arguments: Any, priority: int = 0) -> Any:
        key = f"{function.__name__.strip('_')}-{uuid4()}"  # by which durations are told apart, and shown to people
        return self.client.submit(_computed, self.place, function, *arguments, key=key, pure=False, priority=priority)


def _computed(place: Place, function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns a function of arrays, computed where the workers compute and kept where tiles are kept."""
    if place == "host":
        return function(*arguments)
    result = function(*(_on_card(each) for each in arguments))
    if place == "card":
        return result
    import cupyx

    kept = cupyx.empty_pinned(result.shape, result.dtype)  # which travels some five times faster
    result.get(out=kept)
    return kept


def _on_card(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(_on_card(each) for each in argument)
    return on_card(argument) if isinstance(argument, np.ndarray) else argument


def _part(roots: Array | None, rows: slice) -> Array | None:
    return None if roots is None else roots[rows]


def _gram_tile(left: tuple[Any, Any], right: tuple[Any, Any], kernel: Kernel, shift: float) -> Any:
    (x, roots), (z, others) = left, right
    xp, points = array_namespace(x), TilePoints(x)
    columns = points if shift else TilePoints(z)
    maker, tile = TileMaker(kernel, int(x.shape[1])), xp.empty((len(x), len(z)))
    for rows in tile_slices(slice(0, len(x)), len(x) if xp is not np else MADE_ROWS):
        tile[rows] = maker.tile(points, rows, columns, columns.all)
    if roots is not None and others is not None:
        tile *= roots[:, None]
        tile *= others
    if shift:
        diagonal = kernel.diagonal(points.x) * (1.0 if roots is None else roots**2)
        xp.einsum("ii->i", tile)[...] = diagonal + shift  # without the rounding of |x - x|^2
    return tile


def _factored(tile: Any, first_row: int) -> Any:
    xp = array_namespace(tile)
    # CuPy says nothing of a failed factorisation unless it is asked to.
    strict = nullcontext() if xp is np else importlib.import_module("cupyx").errstate(linalg="raise")
    try:
        with strict:
            factor = xp.linalg.cholesky(tile)
    except np.linalg.LinAlgError as error:
        raise np.linalg.LinAlgError(f"the tile of rows from {first_row} has no factor") from error
    if not bool(xp.isfinite(factor).all()):
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
    return linalg.solve_triangular(factor, piece, lower=True, trans=way, check_finite=False)


def _less_product(tile: Any, known: Any, piece: Any) -> Any:
    return piece - tile @ known


def _less_transposed(tile: Any, known: Any, piece: Any) -> Any:
    return piece - tile.T @ known
