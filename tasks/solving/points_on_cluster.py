"""Reference points on the workers of a Dask cluster, and work on them that survives the loss of a worker.

A copy of x goes to every worker once; a pass over the n x n Gram matrix then moves n x r vectors only. Each copy is one
Dask result, so that the scheduler neither drops nor duplicates it; when a worker dies, the survivors hold everything,
and the pass is run again without it. Rows that fit no worker are measured by row blocks, where none holds x.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

import dask.array as da
import numpy as np
from distributed import Client, KilledWorker, get_worker
from distributed.comm.core import CommClosedError

from congruence.kernels.arrays import Array, array_namespace, require_finite, require_matrix, to_numpy
from congruence.kernels.errors import BudgetError, ConvergenceError, InvalidInputError
from congruence.kernels.gram.points import Item, Lasting, PlacedPoints, moved
from congruence.kernels.gram.thin_products import padded_columns
from congruence.kernels.gram.tiles import TilePoints, tile_slices
from congruence.kernels.kernel_functions import CENTER_ROWS, Kernel
from congruence.tasks.runtime.steps import step
from congruence.tasks.solving.capacity import cluster_capacity

SENT_ROWS_BYTES = 2**26
COPY_SHARE = 2  # of a worker's memory, one part in so many: a copy is there twice while it is put together
ATTEMPTS = 4
Result = TypeVar("Result")


class PointsOnCluster(PlacedPoints):
    """See PlacedPoints; NumPy or CuPy by where the workers keep x.

    Copies are made where they are missing before every piece of work.

    Args:
        client: of the cluster.
        x: (n, d) as a NumPy or Dask array.
        kernel: the input kernel, for its center.
        dtype: of the arithmetic inside a tile; sums over tiles are float64. What it does to the inputs and to K is
            measured against the inputs as they are given (``exact_gram``).
        gpu: keep x, and so make every tile, on the workers' GPUs (the [gpu] extra).
        given_rows: rows of a tile inside a task.
        held_bytes: what the workers together may take to keep one triangle of K between passes; by default that of
            their ``cluster_capacity``.

    Raises:
        InvalidInputError: not a matrix of finite numbers (a Dask array's values are checked where they are computed).
        BudgetError: a copy does not fit a worker.
    """

    def __init__(
        self,
        client: Client,
        x: Any,
        kernel: Kernel,
        dtype: Any = np.float32,
        *,
        gpu: bool = False,
        given_rows: int | None = None,
        held_bytes: int | None = None,
    ) -> None:
        if isinstance(x, da.Array) and x.ndim != 2:
            raise InvalidInputError(f"x: expected shape (n, d), got {x.shape}; flatten each row into features")
        self.client, self.kernel, self.gpu = client, kernel, gpu
        self.x = x if isinstance(x, da.Array) else require_matrix(x, "x")
        self._dtype: np.dtype[Any] = np.dtype(dtype)
        self.given_rows, self._held_bytes = given_rows, held_bytes
        self._copies: dict[str, Any] = {}
        self._center: Array | None = None
        self._centered = False
        if not gpu:
            self._require_room()

    def _require_room(self) -> None:
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        least = min((int(worker["memory_limit"]) for worker in workers if worker["memory_limit"]), default=0)
        needed = self.n * self.dimension * self.dtype.itemsize
        if least and COPY_SHARE * needed > least:
            raise BudgetError(
                f"{self.n:,} rows of {self.dimension:,} features take {needed / 2**30:.2f} GiB in every worker, and "
                f"the smallest has {least / 2**30:.2f} GiB; give workers more memory, or use solver.kind auto with "
                "protocol 'exact', which reads rows by blocks"
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def workers(self) -> list[str]:
        """Addresses of the workers that hold a copy."""
        return list(self._copies)

    @property
    def processes(self) -> int:
        return max(1, len(self.client.nthreads()))

    @property
    def threads(self) -> int:
        """Threads of the whole cluster."""
        return max(1, int(sum(self.client.nthreads().values())))

    @property
    def on_gpu(self) -> bool:
        return self.gpu

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

    @property
    def keepable_bytes(self) -> int:
        return cluster_capacity(self.client, gpu=self.gpu).kept_bytes if self._held_bytes is None else self._held_bytes

    @property
    def center(self) -> Array | None:
        """What was subtracted from x before it was rounded to ``dtype`` (``Kernel.center``), in float64; (d,)."""
        self._place()
        return self._center

    def vectors(self, v: Array) -> Array:
        """v: n x r arrays are the client's, and move to the workers for each product."""
        return v

    def shared(self, v: Any) -> Array:
        return np.asarray(padded_columns(v, np.empty(0, dtype=self.dtype)))

    def lasting(self, function: Callable[..., Any], *shared: Any) -> LastingOnCluster:
        return LastingOnCluster(self, function, shared)

    def sums(
        self,
        function: Callable[..., Sequence[Any]],
        items: Sequence[Item],
        *shared: Any,
        stored: Lasting | None = None,
        title: str = "",
    ) -> list[Any]:
        """See PlacedPoints: an item is a task, and so is a total."""
        return self.run(lambda: self._sums(function, items, shared, stored, title))

    def _sums(
        self,
        function: Callable[..., Sequence[Any]],
        items: Sequence[Item],
        shared: tuple[Any, ...],
        stored: Lasting | None,
        title: str,
    ) -> list[Any]:
        # To one worker, from which the others fetch: sending to all waits for ever for one that was just lost.
        sent = self.client.scatter([shared], hash=False)[0]
        held = (
            [[future] for future in stored.of(items)] if isinstance(stored, LastingOnCluster) else [[] for _ in items]
        )
        parts: dict[int, list[tuple[Any, int]]] = defaultdict(list)
        with step(title, len(items), "blocks") as advance:
            for number, (item, own) in enumerate(zip(items, held, strict=True)):
                arguments = [*own, *item.blocks, *(self._sent(argument) for argument in item.arguments)]
                part = self.submit(number, _parts, function, arguments, sent)
                part.add_done_callback(lambda _: advance(1))
                for place, total in enumerate(item.totals):
                    parts[total].append((part, place))
            totals = [
                self.client.submit(_total, [part for part, _ in found], [place for _, place in found], pure=False)
                for _, found in sorted(parts.items())
            ]
            return list(self.client.gather(totals))

    def _sent(self, argument: Any) -> Any:
        return self.client.scatter(argument, hash=False) if isinstance(argument, np.ndarray) else argument

    def of_points(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """See PlacedPoints: on one worker."""
        return self.run(lambda: self.submit(0, _on_host, function, *arguments).result())

    def rows(self, indices: Array) -> Array:
        """See PlacedPoints: in this process."""
        if isinstance(self.x, da.Array):
            return to_numpy(self.client.compute(self.x[indices]).result())
        return to_numpy(self.x[array_namespace(self.x).asarray(indices)])

    def of_inputs(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:

        def blocks() -> list[Any]:
            sent = [self._sent(argument) for argument in arguments]
            return [  # one after the other: what was sent is let go with what is made of it
                self.client.submit(function, self._rows_sent(rows), *sent, pure=False).result()
                for rows in self.sent_rows()
            ]

        return self.run(blocks)

    def submit(self, number: int, function: Callable[..., Any], *args: Any, priority: int = 0) -> Any:
        """``function(points, *args)`` on the worker whose turn ``number`` is, or elsewhere once that one is gone."""
        worker = self.workers[number % len(self.workers)]
        where = {"workers": [worker], "allow_other_workers": True, "priority": priority}
        return self.client.submit(function, self._copies[worker], *args, pure=False, **where)

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
        blocks = [self._rows_sent(rows) for rows in self.sent_rows()]
        if not self._centered:  # once, so that a worker that comes later has the same points
            samples = [self.client.submit(_sampled, block, self.n, pure=False) for block in blocks]
            self._center = self.client.submit(_center, samples, self.kernel, pure=False).result()
            self._centered = True
        given = (blocks, self.dtype, self.gpu, self._center)
        made = {
            worker: self.client.submit(_whole, *given, workers=[worker], allow_other_workers=True, pure=False)
            for worker in missing
        }
        self.client.gather(list(self.client.map(_rows_held, list(made.values()), pure=False)))  # raises what went wrong
        self._copies |= made

    def _rows_sent(self, rows: slice) -> Any:
        """x[rows] as a result on some worker: one that was named may be gone."""
        if isinstance(self.x, da.Array):
            return self.client.compute(self.x[rows].rechunk(-1))
        return self.client.scatter(self.x[rows], hash=False)

    def sent_rows(self) -> list[slice]:
        """Blocks of rows as they are sent."""
        return tile_slices(slice(0, self.n), max(1, SENT_ROWS_BYTES // (4 * self.dimension)))


class LastingOnCluster(Lasting):
    """See Lasting: results that stay on the workers; made again where a worker was lost with them."""

    def __init__(self, points: PointsOnCluster, function: Callable[..., Any], shared: tuple[Any, ...]) -> None:
        self._points, self._function, self._shared = points, function, shared
        self._held: dict[tuple[int, ...], Any] = {}

    def has(self, items: Sequence[Item]) -> bool:
        return all(is_there(self._held.get(item.key)) for item in items)

    def clear(self) -> None:
        self._held = {}

    def of(self, items: Sequence[Item]) -> list[Any]:
        """The futures of ``items``, in order; what belongs to others is let go."""
        held = {item.key: self._held.get(item.key) for item in items}
        missing = [number for number, item in enumerate(items) if not is_there(held[item.key])]
        if missing:
            shared = self._points.client.scatter([self._shared], hash=False)[0]
            for number in missing:
                blocks = list(items[number].blocks)
                held[items[number].key] = self._points.submit(number, _made, self._function, blocks, shared)
        self._held = held
        return list(held.values())


def is_there(future: Any | None) -> bool:
    """Whether a result still exists or is on its way."""
    return future is not None and future.status in ("finished", "pending")


def _parts(
    points: TilePoints, function: Callable[..., Sequence[Any]], arguments: list[Any], shared: tuple[Any, ...]
) -> tuple[Array, ...]:
    return tuple(to_numpy(part) for part in function(points, *arguments, *shared))


def _made(points: TilePoints, function: Callable[..., Any], blocks: list[slice], shared: tuple[Any, ...]) -> Any:
    return function(points, *blocks, *shared)


def _total(parts: list[tuple[Array, ...]], places: list[int]) -> Array:
    total = parts[0][places[0]]
    if len(parts) > 1:
        total = total.copy()  # others may ask for the part
        for part, place in zip(parts[1:], places[1:], strict=True):
            total += part[place]
    return total


def _on_host(points: TilePoints, function: Callable[..., Any], *arguments: Any) -> Any:
    found = function(points, *arguments)
    return to_numpy(found) if hasattr(found, "shape") else found


def _rows_held(points: TilePoints) -> int:
    return int(points.x.shape[0])


def _sampled(block: Any, total: int) -> Array:
    return to_numpy(block[:: max(1, total // CENTER_ROWS)])


def _center(samples: list[Array], kernel: Kernel) -> Array | None:
    """From a sample of rows, in float64: their differences from it are rounded to the operator's dtype once."""
    center = kernel.center(np.concatenate(samples).astype(np.float64))
    return None if center is None else np.asarray(center)


def _whole(blocks: list[Any], dtype: np.dtype[Any], gpu: bool, center: Array | None) -> TilePoints:
    if gpu:
        import cupy as xp
    else:
        xp = np
    x = xp.concatenate([xp.asarray(moved(block, center), dtype=dtype) for block in blocks])
    require_finite(x, "x")
    return TilePoints(x)
