"""One copy of x per worker, and how work survives the loss of a worker.

The n x d inputs go to every worker once; a pass over the n x n Gram matrix then moves n x r vectors only. A copy is a
Dask result of its own, so that the scheduler neither drops nor duplicates it; when a worker dies, the survivors already
hold everything, and the pass is run again without it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, TypeVar

import numpy as np
from distributed import Client, KilledWorker
from distributed.comm.core import CommClosedError

from congruence.kernels.arrays import Array, require_finite, to_numpy
from congruence.kernels.errors import ConvergenceError
from congruence.kernels.gram.tiles import TilePoints
from congruence.kernels.kernel_functions import CENTER_ROWS, Kernel
from congruence.tasks.linalg.sources import RowSource

SENT_ROWS_BYTES = 2**26
ATTEMPTS = 4
Result = TypeVar("Result")


class Placement:
    """The copies of x on a cluster's workers, made where they are missing before every piece of work."""

    def __init__(self, client: Client, source: RowSource, dtype: np.dtype[Any], gpu: bool, kernel: Kernel) -> None:
        self.client = client
        self.source = source
        self.dtype = dtype
        self.gpu = gpu
        self.kernel = kernel
        self._copies: dict[str, Any] = {}
        self._center: Array | None = None
        self._centered = False

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

    def copy_on(self, worker: str) -> Any:
        """The future of the copy on ``worker``."""
        return self._copies[worker]

    def submit(self, worker: str, function: Callable[..., Result], *args: Any, priority: int = 0) -> Any:
        """``function(points, *args)`` next to the copy on ``worker``, or elsewhere once that worker is gone."""
        return self.client.submit(
            function,
            self._copies[worker],
            *args,
            workers=[worker],
            allow_other_workers=True,
            pure=False,
            priority=priority,
        )

    def run(self, work: Callable[[], Result]) -> Result:
        """``work()``, again on the workers that are left if one is lost on the way.

        Raises:
            ConvergenceError: workers were lost in every attempt.
        """
        for _ in range(ATTEMPTS):
            self._place()
            try:
                return work()
            except (CancelledError, KilledWorker, CommClosedError):
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
            self._center = self.client.submit(_center, blocks, self.kernel, pure=False).result()
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
        n = self.source.n
        rows = max(1, SENT_ROWS_BYTES // (4 * self.source.dimension))
        return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]


def _rows_held(points: TilePoints) -> int:
    return int(points.x.shape[0])


def _center(blocks: list[Any], kernel: Kernel) -> Array | None:
    """From a sample of rows, in float64: their differences from it are rounded to the operator's dtype once."""
    total = sum(len(block) for block in blocks)
    step = max(1, total // CENTER_ROWS)
    sample = np.concatenate([to_numpy(block)[::step] for block in blocks])
    center = kernel.center(sample.astype(np.float64))
    return None if center is None else np.asarray(center)


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
