"""Passes over the blocks of a split on a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from threading import Event, Lock, Thread
from typing import Any, TypeVar
from uuid import uuid4

import dask
import numpy as np
from distributed import Client, as_completed

from congruence.kernels.engine.blocks import BlockSums, Pass, Passes, RowBlocks, merged, places_of, sums_of_blocks
from congruence.tasks.solving.least_busy import LeastBusy
from congruence.tasks.solving.solve_progress import SolveProgress

TASKS = 64  # of a pass, at most: each takes neighbouring blocks
ARITY = 8  # sums merged at once
IN_FLIGHT = 2  # tasks for each thread of the cluster
_TIMES = "times of tasks"  # beside what a pass adds up
_configuring = Lock()  # Dask's configuration belongs to the process


T = TypeVar("T")


@dataclass(frozen=True)
class PassesOnCluster(Passes):
    """Passes on the workers: each has at most so many tasks waiting or running, and is given the next when one ends.

    Attributes:
        client: of the cluster.
        blocks: an address, which goes to every task.
        progress: is told of every part that ends.
        seconds: of each pass so far, by its name: of its tasks together, over the threads of the cluster. By the clock
            a pass beside others would have their seconds, too.
        unwanted: set where nobody wants the rest of the passes: the next one raises.
    """

    client: Client
    blocks: RowBlocks
    progress: SolveProgress
    seconds: dict[str, float] = field(default_factory=dict)
    unwanted: Event = field(default_factory=Event)

    @property
    def sizes(self) -> Sequence[int]:
        return self.blocks.sizes

    def __call__(self, name: str, function: Callable[..., Pass], *context: Any) -> Pass:
        if self.unwanted.is_set():
            raise CancelledError(f"{name}: no longer wanted")
        places = places_of(self.sizes)
        groups = np.array_split(np.arange(len(places)), min(TASKS, len(places)))
        with _configuring, dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GiB"}):
            shared = self.client.submit(_as_it_is, (self.blocks, *context), pure=False)
        tree, running, workers = _Tree(self.client), as_completed(loop=self.client.loop), LeastBusy(self.client)
        ended = self.progress.pass_of(name, len(groups))
        for group in groups:
            while (worker := workers.worker(IN_FLIGHT)) is None and not running.is_empty():
                _require_well(next(running))
            part = workers.submit(
                worker,
                _timed,
                function,
                [places[at] for at in group],
                shared,
                key=f"{name.replace(' ', '-')}-{uuid4()}",  # by which durations are told apart, and shown to people
            )
            part.add_done_callback(lambda _: ended())
            running.add(part)
            tree.add(part)
        result: Pass = tree.root().result()
        spent = result.pop(_TIMES).added["seconds"] / max(1, sum(self.client.nthreads().values()))
        self.seconds[name] = self.seconds.get(name, 0.0) + spent
        return result


@contextmanager
def side_by_side(run: PassesOnCluster, function: Callable[[Passes], T]) -> Iterator[Future[T]]:
    """What ``function`` makes of passes of its own while others are run inside: neither waits for the other's steps.

    Between two passes, and at the end of each, there is work for one worker alone; so the others have some meanwhile.
    """
    beside, made, context = replace(run, unwanted=Event()), Future[T](), copy_context()

    def make() -> None:
        try:
            made.set_result(context.run(function, beside))
        except BaseException as error:
            made.set_exception(error)

    thread = Thread(target=make, daemon=True, name="passes-beside")  # an ending process waits for no pass
    thread.start()
    try:
        yield made
    except BaseException:
        beside.unwanted.set()
        thread.join()
        raise


class _Tree:
    """Sums merged ``ARITY`` at a time, in the order of the blocks."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._levels: list[list[Any]] = [[]]

    def add(self, part: Any) -> None:
        """The next part."""
        for level in range(len(self._levels) + 1):
            if level == len(self._levels):
                self._levels.append([])
            self._levels[level].append(part)
            if len(self._levels[level]) < ARITY:
                return
            part = self._merged(self._levels[level])
            self._levels[level] = []

    def root(self) -> Any:
        """Everything that was added; earlier parts are on higher levels."""
        return self._merged([part for level in reversed(self._levels) for part in level])

    def _merged(self, parts: list[Any]) -> Any:
        return self._client.submit(merged, list(parts), pure=False)


def _require_well(part: Any) -> None:
    """Raise what went wrong in a part that has ended; nothing is fetched."""
    if part.status in ("error", "cancelled"):
        part.result()


def _as_it_is(context: tuple[Any, ...]) -> tuple[Any, ...]:
    """A task, so that the scheduler can make it again where it was lost."""
    return context


def _timed(function: Callable[..., Pass], places: list[tuple[int, int]], shared: tuple[Any, ...]) -> Pass:
    started, times = time.perf_counter(), BlockSums()
    total = sums_of_blocks(function, places, shared)
    times.add("seconds", time.perf_counter() - started)
    return {**total, _TIMES: times}
