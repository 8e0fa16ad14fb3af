"""Work spread over the cores of this process: one Python thread per core, each with a one-thread BLAS.

A Gram tile is a small matrix product and an elementwise part. BLAS threads would leave the elementwise part on one
core; tiles in parallel use every core for both, and a tile stays in the cache of the core that made it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

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


def map_on_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> list[Result]:
    """``[function(item) for item in items]`` on ``threads`` threads, in order; the first exception is raised."""
    if threads <= 1:
        return [function(item) for item in items]
    with _blas().limit(limits=1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))
