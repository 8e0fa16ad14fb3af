"""Where the rows of x are on a cluster, and how work survives the loss of a worker.

Where x fits a worker beside its work, a copy goes to every worker once; a pass over the n x n Gram matrix then moves
n x r vectors only. A copy is a Dask result of its own, so that the scheduler neither drops nor duplicates it; when a
worker dies, the survivors already hold everything, and the pass is run again without it.

Where x does not fit, the rows that a task names are read beside it and let go with it: a pair of row blocks takes
2 b d numbers for b^2 d operations, so that reading costs little, and a few tasks are under way at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

import numpy as np
from distributed import Client, KilledWorker, wait
from distributed.comm.core import CommClosedError

from congruence.kernels.arrays import Array, array_namespace, require_finite, to_numpy
from congruence.kernels.errors import ConvergenceError
from congruence.kernels.gram.tiles import TilePoints, tile_slices
from congruence.kernels.kernel_functions import CENTER_ROWS, Kernel
from congruence.tasks.solving.row_pieces import PiecePoints
from congruence.tasks.solving.sources import RowSource

SENT_ROWS_BYTES = 2**26
COPY_SHARE = 4  # of a worker's memory, one part in so many: as much again while it is put together
PIECE_SHARE = 16  # of it for one block of rows: a task has two, some are on their way, as they were given and centred
UNDER_WAY = 2  # tasks with rows of their own for each worker
ATTEMPTS = 4
Result = TypeVar("Result")


class Placement:
    """The rows of x on a cluster's workers: copies, made where they are missing before every piece of work, or pieces.

    Attributes:
        piece_rows: rows that a task may name at a time where there are no copies; None where there are.
    """

    def __init__(self, client: Client, source: RowSource, dtype: np.dtype[Any], gpu: bool, kernel: Kernel) -> None:
        self.client = client
        self.source = source
        self.dtype = dtype
        self.gpu = gpu
        self.kernel = kernel
        self._copies: dict[str, Any] = {}
        self._center: Array | None = None
        self._centered = False
        self._under_way: deque[Any] = deque()
        self._live: list[str] = []
        self.piece_rows = None if gpu else self._piece_rows()

    def _piece_rows(self) -> int | None:
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        limits = [int(worker["memory_limit"]) for worker in workers if worker["memory_limit"]]
        if not limits or COPY_SHARE * self.source.n * self.source.dimension * self.dtype.itemsize <= min(limits):
            return None
        return max(1, min(limits) // PIECE_SHARE // (8 * self.source.dimension))

    @property
    def workers(self) -> list[str]:
        """Addresses of the workers that hold a copy, or may be given rows."""
        return list(self._copies) if self.piece_rows is None else self._live

    @property
    def threads(self) -> int:
        """Threads of the whole cluster."""
        return max(1, int(sum(self.client.nthreads().values())))

    @property
    def center(self) -> Array | None:
        """What was subtracted from x before it was rounded to ``dtype`` (``Kernel.center``), in float64; (d,)."""
        self._place()
        return self._center

    def submit(
        self,
        worker: str,
        function: Callable[..., Result],
        *args: Any,
        rows: Sequence[slice],
        priority: int = 0,
    ) -> Any:
        """``function(points, *args)`` on ``worker``, or elsewhere once that worker is gone.

        Of ``points`` it may use ``rows``, of at most ``piece_rows`` each. Without copies this waits until few tasks
        are under way.
        """
        where = {"workers": [worker], "allow_other_workers": True, "priority": priority}
        if self.piece_rows is None:
            return self.client.submit(function, self._copies[worker], *args, pure=False, **where)
        if len(self._under_way) >= UNDER_WAY * len(self._live):
            wait([self._under_way.popleft()])
        places = list(dict.fromkeys((each.start, each.stop) for each in rows))
        pieces = [self._piece(slice(*place), where) for place in places]
        shape = (self.source.n, self.source.dimension)
        task = self.client.submit(_beside, function, places, pieces, shape, self.dtype, *args, pure=False, **where)
        self._under_way.append(task)
        return task

    def map_blocks(self, function: Callable[..., Result], *args: Any) -> list[Result]:
        """``function(points, *args)`` for the points of every block of rows, in order; with copies, of all rows."""
        if self.piece_rows is None:
            return [self.submit(self.workers[0], function, *args, rows=[]).result()]
        results: list[Result] = []
        waiting: deque[Any] = deque()
        for number, rows in enumerate(self.pieces(slice(0, self.source.n))):
            waiting.append(self.submit(self._in_turn(number), _of_piece, rows, function, *args, rows=[rows]))
            if len(waiting) > UNDER_WAY * len(self.workers):
                results.append(waiting.popleft().result())
        return results + [each.result() for each in waiting]

    def rows(self, indices: Array) -> Array:
        """x[indices] as tasks see them: moved to the center, in ``dtype``; on the client."""
        if self.piece_rows is None:
            return np.asarray(self.submit(self.workers[0], _rows, indices, rows=[]).result())
        return np.asarray(_moved(self.source.some(self.client, indices), self.center), dtype=self.dtype)

    def pieces(self, rows: slice) -> list[slice]:
        """``rows`` cut into what a task may name."""
        return tile_slices(rows, self.piece_rows or max(1, rows.stop - rows.start))

    def _in_turn(self, number: int) -> str:
        return self.workers[number % len(self.workers)]

    def _piece(self, rows: slice, where: dict[str, Any]) -> Any:
        given = self.source.future(self.client, rows, **where)
        return self.client.submit(_points_of, given, rows.start, self.dtype, self._center, pure=False, **where)

    def run(self, work: Callable[[], Result]) -> Result:
        """``work()``, again on the workers that are left if one is lost on the way.

        Raises:
            ConvergenceError: workers were lost in every attempt.
            CancelledError, CommClosedError: the cluster is being closed.
        """
        for _ in range(ATTEMPTS):
            self._place()
            try:
                return work()
            except (CancelledError, KilledWorker, CommClosedError):
                if self.client.status != "running":  # no worker is lost: the whole cluster ends
                    raise
                live = self.client.nthreads()
                finished = {w: copy for w, copy in self._copies.items() if w in live and copy.status == "finished"}
                self._copies = finished
                self._under_way.clear()
        raise ConvergenceError(
            f"the cluster lost workers in {ATTEMPTS} attempts at one pass; give workers more memory or use fewer per "
            "machine, and see their logs"
        )

    def _place(self) -> None:
        if not self.client.nthreads():
            self.client.wait_for_workers(1, timeout=120)
        if self.piece_rows is not None:
            self._live = sorted(self.client.nthreads())
            if not self._centered:
                self._center = _center([self.source.some(self.client, self._sampled_rows())], self.kernel)
                self._centered = True
            return
        live = set(self.client.nthreads())
        self._copies = {worker: copy for worker, copy in self._copies.items() if worker in live}
        missing = sorted(live - set(self._copies))
        if not missing:
            return
        blocks = [self.source.future(self.client, rows) for rows in self.sent_rows()]
        if not self._centered:  # once, so that a worker that comes later has the same points
            samples = [self.client.submit(_sampled, block, self.source.n, pure=False) for block in blocks]
            self._center = self.client.submit(_center, samples, self.kernel, pure=False).result()
            self._centered = True
        made = {
            worker: self.client.submit(
                _whole,
                blocks,
                self.dtype,
                self.gpu,
                self._center,
                workers=[worker],
                allow_other_workers=True,
                pure=False,
            )
            for worker in missing
        }
        self.client.gather(list(self.client.map(_rows_held, list(made.values()), pure=False)))  # raises what went wrong
        self._copies |= made

    def _sampled_rows(self) -> Array:
        """The rows that ``_sampled`` takes of every block that is sent."""
        step = max(1, self.source.n // CENTER_ROWS)
        return np.concatenate([np.arange(rows.start, rows.stop, step) for rows in self.sent_rows()])

    def sent_rows(self) -> list[slice]:
        """Blocks of rows as they are asked of the source."""
        n = self.source.n
        rows = self.piece_rows or max(1, SENT_ROWS_BYTES // (4 * self.source.dimension))
        return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]


def _rows_held(points: TilePoints) -> int:
    return int(points.x.shape[0])


def _sampled(block: Any, total: int) -> Array:
    return to_numpy(block[:: max(1, total // CENTER_ROWS)])


def _center(samples: list[Array], kernel: Kernel) -> Array | None:
    """From a sample of rows, in float64: their differences from it are rounded to the operator's dtype once."""
    center = kernel.center(np.concatenate(samples).astype(np.float64))
    return None if center is None else np.asarray(center)


def _points_of(given: Any, first: int, dtype: np.dtype[Any], center: Array | None) -> TilePoints:
    x = np.asarray(_moved(to_numpy(given), center), dtype=dtype)
    require_finite(x, f"x, in the block of rows from {first:,} on")
    return TilePoints(x)


def _beside(
    function: Callable[..., Result],
    places: list[tuple[int, int]],
    pieces: list[TilePoints],
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    *args: Any,
) -> Result:
    return function(PiecePoints([slice(*place) for place in places], pieces, shape, dtype), *args)


def _of_piece(points: PiecePoints, rows: slice, function: Callable[..., Result], *args: Any) -> Result:
    return function(TilePoints(points.x[rows]), *args)


def _rows(points: TilePoints, indices: Array) -> Array:
    return to_numpy(points.x[array_namespace(points.x).asarray(indices)])


def _whole(blocks: list[Any], dtype: np.dtype[Any], gpu: bool, center: Array | None) -> TilePoints:
    if gpu:
        import cupy as xp
    else:
        xp = np
    x = xp.concatenate([xp.asarray(_moved(block, center), dtype=dtype) for block in blocks])
    require_finite(x, "x")
    return TilePoints(x)


def _moved(block: Any, center: Array | None) -> Any:
    return block if center is None else to_numpy(block) - center
