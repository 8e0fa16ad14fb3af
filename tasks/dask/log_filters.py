"""What Dask leaves unsaid where we say it ourselves: that its parts do not find or lose each other, or end slowly."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import WorkerPlugin
from distributed.comm.core import CommClosedError
from tornado.iostream import StreamClosedError

_DASK = "distributed"
_LOGGERS = (f"{_DASK}.worker", f"{_DASK}.core", f"{_DASK}.batched", f"{_DASK}.comm.tcp", "tornado.application")
_WITH_HANDLERS = (_DASK, f"{_DASK}.client", f"{_DASK}.gc", "tornado", "tornado.application")
_CLOSED = (CommClosedError, StreamClosedError, ConnectionError)


@contextmanager
def quiet_dask() -> Iterator[None]:
    """Inside, Dask writes nothing to this process's terminal.

    It tells of every attempt to connect by a traceback, and of every worker that is slow to end.
    """

    def of_others(record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] not in (_DASK, "tornado")

    handlers = [handler for name in _WITH_HANDLERS for handler in logging.getLogger(name).handlers]
    for handler in handlers:
        handler.addFilter(of_others)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(of_others)


class LeaveTheEndToTheClient(WorkerPlugin):
    """Drops, from the log of a worker, the tracebacks of closed connections: a heartbeat may be under way at the end.

    For clusters whose scheduler lives in the process that the person started: how that ends it says itself, in one
    sentence, and its workers write to the same terminal.
    """

    name = "congruence-lost-scheduler"

    def setup(self, worker: Any) -> None:  # noqa: ARG002
        """Called by the worker, when it starts or joins."""
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_tells_of_no_closed_connection)

    def teardown(self, worker: Any) -> None:  # noqa: ARG002
        """Called when the worker ends: looking through all that it has loaded once more would take seconds."""
        gc.freeze()


def _tells_of_no_closed_connection(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], _CLOSED))
