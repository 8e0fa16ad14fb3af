"""Workers of this machine are forked from a process that has loaded their libraries: each start is seconds shorter.

That process loads them while this one loads its own, on another core, and once for all workers. It has one thread and
no connection, so what forks from it may be used like a newly started process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver

WORKER_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Dask has glibc give each array above 128 KiB back to the system as soon as it is freed: each temporary array is
    # then paid for page by page, a third of the time of elementwise NumPy.
    "MALLOC_TRIM_THRESHOLD_": str(2**27),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}
_METHOD = "distributed.worker.multiprocessing-method"
_begun = False


def preload(module: str) -> None:
    """Begin to load ``module`` for the workers to come.

    On Linux alone: elsewhere forking from a process with system libraries is not safe, and workers load by themselves.
    """
    global _begun
    if sys.platform != "linux":
        return
    with _variables(WORKER_ENVIRONMENT):  # read once, when libraries are loaded
        forkserver.set_forkserver_preload([module])
        forkserver.ensure_running()
    _begun = True


def start_settings() -> dict[str, str]:
    """Dask's settings by which a local cluster's workers start: forked, where that was prepared."""
    return {_METHOD: "forkserver"} if _begun else {}


def start_environment() -> dict[str, str]:
    """Variables of a local cluster's workers; what is forked has those of the time of ``preload``."""
    return (dict(os.environ) if _begun else {}) | WORKER_ENVIRONMENT


@contextmanager
def _variables(environment: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
