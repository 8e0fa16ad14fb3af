"""Dask says nothing on a person's terminal of the end of a cluster: the command itself says it."""

from __future__ import annotations

import logging

import pytest
from distributed.comm.core import CommClosedError

from congruence.tasks.dask.clusters import dask_client, quiet_dask
from congruence.tasks.settings.computing import ClusterSettings


def test_a_worker_leaves_it_to_the_client_to_say_that_the_scheduler_went() -> None:
    def written() -> list[str]:
        """What a worker writes of two errors, one of which is that of a heartbeat whose scheduler has closed."""
        lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("distributed.worker")
        logger.addHandler(handler)
        try:
            for error in (CommClosedError("Stream is closed"), ValueError("of the work")):
                try:
                    raise error
                except type(error):
                    logger.exception("%s", error)
        finally:
            logger.removeHandler(handler)
        return lines

    with dask_client(ClusterSettings(kind="local", workers=1)) as client:
        assert list(client.run(written).values()) == [["of the work"]]


def test_a_nanny_does_not_tell_of_a_worker_that_is_slow_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    handler = logging.StreamHandler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    nanny = logging.getLogger("distributed.nanny")
    monkeypatch.setattr(logging.getLogger("distributed"), "handlers", [handler])
    with quiet_dask():
        nanny.error("Worker process still alive after 4.0 seconds, killing")
    nanny.error("Restarting worker")
    assert lines == ["Restarting worker"]
