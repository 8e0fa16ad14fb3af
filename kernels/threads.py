"""Work spread over the cores of this process: one Python thread per core, each with a one-thread BLAS.

A Gram tile is a small matrix product and an elementwise part. BLAS threads would leave the elementwise part on one
core; tiles in parallel use every core for both, and a tile stays in the cache of the core that made it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from threading import Event, Lock
from typing import TypeVar

from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")


_ALONE: ContextVar[bool] = ContextVar("on one core")


@cache
def usable_cores() -> int:
    """The cores that this process may use: those it may run on, within the processor time of its control group."""
    import joblib  # and with it multiprocessing: a tenth of a second

    return int(joblib.cpu_count())


def available_threads() -> int:
    """Cores that this process may use, one inside ``on_one_core``; OMP_NUM_THREADS where smaller."""
    cores = 1 if _ALONE.get(False) else usable_cores()
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores, int(wanted)) if wanted.isdigit() else cores)


@cache
def _threads() -> ThreadpoolController:
    return ThreadpoolController()  # looks through every loaded library: once is enough


def _blas_has_threads() -> bool:
    """Whether a limit changes anything: the thread that would hold it takes a millisecond to come and go."""
    return any(each.num_threads != 1 for each in _threads().lib_controllers if each.user_api == "blas")


class _SingleThreadedBlas:
    """One-thread BLAS while anyone wants it; the last to leave lifts the limit.

    The limit is the process's, and threadpoolctl lets only the thread that set it change it: a thread of its own holds
    it, so that users may come and go in any order. It is always the same one: a thread created for every solve
    takes the heap that a worker of the last solve had, and what was freed there stays unused.
    """

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)  # a child has no thread but the one that forked

    def _forget(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._unwanted = Event()
        self._holder = ThreadPoolExecutor(1, thread_name_prefix="single-threaded-blas")
        self._held: Future[None] | None = None

    def enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1 and _blas_has_threads():
                limited, self._unwanted = Event(), Event()
                self._held = self._holder.submit(self._hold, limited, self._unwanted)
                limited.wait()

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._held is not None:
                self._unwanted.set()
                self._held.result()
                self._held = None

    @staticmethod
    def _hold(limited: Event, unwanted: Event) -> None:
        try:
            with _threads().limit(limits=1, user_api="blas"):
                limited.set()
                unwanted.wait()
        finally:
            limited.set()


_SINGLE_THREADED_BLAS = _SingleThreadedBlas()


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """BLAS on the calling thread alone, around many short calls of ``map_on_threads``.

    The threads of a BLAS spin for a tenth of a second after their last product, on the cores that ours then want.
    """
    _SINGLE_THREADED_BLAS.enter()
    try:
        yield
    finally:
        _SINGLE_THREADED_BLAS.leave()


@contextmanager
def on_one_core() -> Iterator[None]:
    """Inside, this thread computes alone: without threads of ours, of a BLAS or of OpenMP."""
    token = _ALONE.set(True)
    try:
        with _threads().limit(limits=1):
            yield
    finally:
        _ALONE.reset(token)


def map_on_threads(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None
) -> list[Result]:
    """``[function(item) for item in items]`` on ``threads`` threads, in order; the first exception is raised.

    By default on ``available_threads``, but no more than there are items.
    """
    items = list(items)
    threads = min(len(items), available_threads()) if threads is None else threads
    if threads <= 1:
        return [function(item) for item in items]
    with single_threaded_blas(), ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))
