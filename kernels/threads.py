"""Work spread over the cores of this process: one Python thread per core, each with a one-thread BLAS.

A Gram tile is a small matrix product and an elementwise part. BLAS threads would leave the elementwise part on one
core; tiles in parallel use every core for both, and a tile stays in the cache of the core that made it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_threads() -> int:
    """Cores that this process may use, or OMP_NUM_THREADS where it is smaller."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores, int(wanted))) if wanted.isdigit() else cores


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()  # looks through every loaded library: once is enough


class _SingleThreaded:
    """One-thread BLAS while anyone wants it: the limit is the process's, so the last to leave lifts it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._limit: Any = None

    def enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._limit = _blas().limit(limits=1, user_api="blas")

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._limit.restore_original_limits()


_SINGLE_THREADED = _SingleThreaded()


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """BLAS on the calling thread alone, around many short calls of ``map_on_threads``.

    The threads of a BLAS spin for a tenth of a second after their last product, on the cores that ours then want.
    """
    _SINGLE_THREADED.enter()
    try:
        yield
    finally:
        _SINGLE_THREADED.leave()


def map_on_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> list[Result]:
    """``[function(item) for item in items]`` on ``threads`` threads, in order; the first exception is raised."""
    if threads <= 1:
        return [function(item) for item in items]
    with single_threaded_blas(), ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))
