"""The worker processes of a local cluster, kept alive: on a busy machine they start slowly, and some die."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from distributed import Status, Worker

_LOOK_SECONDS = 2.0
_SAID_AFTER_SECONDS = 20.0
MOST_STARTS = 3
_THREADS = "threads"
_ENDED = (Status.closed, Status.failed)
_kept: set[str] = set()


def are_kept(scheduler: str) -> bool:
    """Whether the workers of the scheduler at that address are started again by this process where they end."""
    return scheduler in _kept


@contextmanager
def kept_workers(cluster: Any, announce: Callable[[str], None]) -> Iterator[None]:
    """Starts worker processes again whose nanny has given up; if they do not come, a worker of threads in this process.

    A nanny starts its worker again by itself where that dies in its work. It gives up on one whose first start fails,
    and starts one that dies in a later start again and again, for ever.

    Args:
        cluster: a ``LocalCluster`` of processes.
        announce: takes a line for the person who waits.
    """
    keeper = _Keeper(cluster, announce)
    address = str(cluster.scheduler_address)
    _kept.add(address)
    thread = threading.Thread(target=keeper.run, name="congruence-workers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        keeper.stopped.set()
        thread.join()
        _kept.discard(address)


class _Keeper:
    def __init__(self, cluster: Any, announce: Callable[[str], None]) -> None:
        self.stopped = threading.Event()
        self._cluster, self._announce = cluster, announce
        self._alone_since: float | None = None
        self._said = False
        self._starts: dict[Any, set[int]] = {}

    def run(self) -> None:
        while not self.stopped.wait(_LOOK_SECONDS):
            if self._cluster.scheduler_info["workers"]:
                self._alone_since, self._said = None, False
                self._starts.clear()
                self._open_given_up()
            else:
                self._while_alone()

    def _open_given_up(self) -> None:
        """Others work: one that was given up is opened anew, now and then."""
        given_up = [name for name, worker in dict(self._cluster.workers).items() if worker.status in _ENDED]
        for name in given_up:
            self._cluster.workers.pop(name, None)
        if given_up:
            self._announce(f"{_counted(given_up)} of the local cluster ended; starting again")
            self._cluster.scale(len(self._cluster.worker_spec))

    def _while_alone(self) -> None:
        now = time.monotonic()
        if self._alone_since is None:
            self._alone_since = now
            return
        names = [name for name in self._cluster.worker_spec if name != _THREADS]
        for name in names:
            pid = getattr(self._cluster.workers.get(name), "pid", None)
            if pid is not None:
                self._starts.setdefault(name, set()).add(int(pid))
        if names and all(self._is_hopeless(name) for name in names):
            self._announce(f"{_counted(names)} ended whenever started; going on with threads in this process")
            self._give_way(names)
        elif not self._said and now - self._alone_since > _SAID_AFTER_SECONDS:
            self._said = True
            self._announce("the worker processes are slow to start, the machine is busy; still waiting")

    def _is_hopeless(self, name: Any) -> bool:
        status = getattr(self._cluster.workers.get(name), "status", None)
        return status in _ENDED or len(self._starts.get(name, ())) > MOST_STARTS

    def _give_way(self, names: list[Any]) -> None:
        for name in names:
            del self._cluster.worker_spec[name]
        options = {"nthreads": len(names), "dashboard": False, "host": "127.0.0.1"}
        self._cluster.worker_spec[_THREADS] = {"cls": Worker, "options": options}
        self._cluster.scale(1)


def _counted(names: list[Any]) -> str:
    return f"{len(names)} worker process{'es' if len(names) > 1 else ''}"
