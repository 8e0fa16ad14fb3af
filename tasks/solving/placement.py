"""Where the rows of x are on a cluster, and how work survives the loss of a worker.

A copy goes to every worker once; a pass over the n x n Gram matrix then moves n x r vectors only. Each copy is one Dask
result, so that the scheduler neither drops nor duplicates it; when a worker dies, the survivors hold everything, and
the pass is run again without it. Rows that fit no worker are measured by row blocks, where none holds x.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import CancelledError
from typing import Any, Generic, TypeVar

import numpy as np
from distributed import Client, KilledWorker
from distributed.comm.core import CommClosedError

from congruence.kernels.arrays import Array, array_namespace, require_finite, to_numpy
from congruence.kernels.errors import BudgetError, ConvergenceError
from congruence.kernels.gram.tiles import TilePoints, tile_slices
from congruence.kernels.kernel_functions import CENTER_ROWS, Kernel
from congruence.tasks.solving.sources import RowSource

SENT_ROWS_BYTES = 2**26
COPY_SHARE = 2  # of a worker's memory, one part in so many: a copy is there twice while it is put together
ATTEMPTS = 4
Result = TypeVar("Result")
Key = TypeVar("Key", bound=Hashable)


class LastingResults(Generic[Key]):
    """Results that stay on the workers between pieces of work; made again where a worker was lost with them."""

    def __init__(self) -> None:
        self._held: dict[Key, Any] = {}

    def of(self, keys: Iterable[Key], make: Callable[[Key], Any]) -> list[Any]:
        """The futures of ``keys``, in order, made by ``make`` where they are missing; others are let go."""
        held = {key: self._held.get(key) for key in keys}
        self._held = {key: found if is_there(found) else make(key) for key, found in held.items()}
        return list(self._held.values())

    def clear(self) -> None:
        """Let go of all."""
        self._held = {}


def is_there(future: Any | None) -> bool:
    """Whether a result still exists or is on its way."""
    return future is not None and future.status in ("finished", "pending")


class Placement:
    """The copies of x on a cluster's workers, made where they are missing before every piece of work.

    Raises:
        BudgetError: a copy does not fit a worker.
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
        if not gpu:
            self._require_room()

    def _require_room(self) -> None:
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        least = min((int(worker["memory_limit"]) for worker in workers if worker["memory_limit"]), default=0)
        needed = self.source.n * self.source.dimension * self.dtype.itemsize
        if least and COPY_SHARE * needed > least:
            raise BudgetError(
                f"{self.source.n:,} rows of {self.source.dimension:,} features take {needed / 2**30:.2f} GiB in every "
                f"worker, and the smallest has {least / 2**30:.2f} GiB; give workers more memory, or use solver.kind "
                "auto with protocol 'exact', which reads rows by blocks"
            )

    @property
    def workers(self) -> list[str]:
        """Addresses of the workers that hold a copy."""
        return list(self._copies)

    @property
    def threads(self) -> int:
        """Threads of the whole cluster."""
        return max(1, int(sum(self.client.nthreads().values())))

    @property
    def center(self) -> Array | None:
        """What was subtracted from x before it was rounded to ``dtype`` (``Kernel.center``), in float64; (d,)."""
        self._place()
        return self._center

    def submit(self, number: int, function: Callable[..., Result], *args: Any, priority: int = 0) -> Any:
        """``function(points, *args)`` on the worker whose turn ``number`` is, or elsewhere once that one is gone."""
        worker = self.workers[number % len(self.workers)]
        where = {"workers": [worker], "allow_other_workers": True, "priority": priority}
        return self.client.submit(function, self._copies[worker], *args, pure=False, **where)

    def of_points(self, function: Callable[..., Result], *args: Any) -> Result:
        """``function(points, *args)`` of all rows, on one worker."""
        result: Result = self.run(lambda: self.submit(0, function, *args).result())
        return result

    def rows(self, indices: Array) -> Array:
        """x[indices] as tasks see them: moved to the center, in ``dtype``; on the client."""
        return np.asarray(self.of_points(_rows, indices))

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
        raise ConvergenceError(
            f"the cluster lost workers in {ATTEMPTS} attempts at one pass; give workers more memory or use fewer per "
            "machine, and see their logs"
        )

    def _place(self) -> None:
        if not self.client.nthreads():
            self.client.wait_for_workers(1, timeout=120)
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

    def sent_rows(self) -> list[slice]:
        """Blocks of rows as they are asked of the source."""
        return tile_slices(slice(0, self.source.n), max(1, SENT_ROWS_BYTES // (4 * self.source.dimension)))


def _rows_held(points: TilePoints) -> int:
    return int(points.x.shape[0])


def _sampled(block: Any, total: int) -> Array:
    return to_numpy(block[:: max(1, total // CENTER_ROWS)])


def _center(samples: list[Array], kernel: Kernel) -> Array | None:
    """From a sample of rows, in float64: their differences from it are rounded to the operator's dtype once."""
    center = kernel.center(np.concatenate(samples).astype(np.float64))
    return None if center is None else np.asarray(center)


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
