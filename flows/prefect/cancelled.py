"""A run of a deployment whose process nobody looks after any more still ends when it is cancelled.

Prefect's worker ends the process of a run that is cancelled. A run on the stack's work pool outlives its worker, and
the next worker does not know its process: the run itself then looks whether it is to end.
"""

from __future__ import annotations

import contextvars
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import Abort
from prefect.states import Cancelled

LOOK_SECONDS = 15.0
LEFT_TO_THE_WORKER_SECONDS = 45.0
"""A worker that knows the process has ended or killed it within 30 s."""
GRACE_SECONDS = 30.0
_PARENT = os.getppid()
_ASK_SECONDS = {"timeout": 30.0}

log = logging.getLogger(__name__)


@contextmanager
def ended_when_cancelled() -> Iterator[None]:
    """Inside, a deployment's run that is cancelled and that no worker ends is ended in the way a worker would.

    That is by SIGTERM, which ends its runs in MLflow and its claims in order, and after ``GRACE_SECONDS`` by SIGKILL.
    It is Cancelled then.

    Raises:
        prefect.exceptions.Abort: in the place of what the SIGTERM raised; the engine leaves the run's state as it is.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        yield
        return
    watch = _Watch(context.flow_run.id)
    watch.start()
    try:
        yield
    except BaseException:
        if watch.ended:
            watch.mark()
            raise Abort("cancelled while no worker looked after its process") from None
        raise
    finally:
        watch.over.set()


class _Watch(threading.Thread):
    """Asks Prefect now and then whether a run is cancelled, and ends this process if it is and nobody else does."""

    def __init__(self, run: UUID) -> None:
        super().__init__(name="cancelled", daemon=True)
        self._run, self._context = run, contextvars.copy_context()  # which server is asked may be a matter of it
        self.over, self.ended = threading.Event(), False

    def run(self) -> None:
        self._context.run(self._look)

    def _look(self) -> None:
        since: float | None = None
        while not self.over.wait(LOOK_SECONDS):
            try:
                cancelled = self._is_cancelled()
            except Exception as error:  # of a server that is away: asked again
                log.debug("asking whether the run is cancelled: %s", error)
                continue
            if not cancelled:
                since = None
                continue
            since = since if since is not None else time.monotonic()
            if os.getppid() != _PARENT or time.monotonic() - since > LEFT_TO_THE_WORKER_SECONDS:
                self._end()
                return

    def _is_cancelled(self) -> bool:
        with get_client(sync_client=True, httpx_settings=_ASK_SECONDS) as client:
            state = client.read_flow_run(self._run).state
        return state is not None and (state.is_cancelling() or state.is_cancelled())

    def _end(self) -> None:
        log.warning("the run is cancelled and no worker ends its process: it ends itself")
        self.ended = True
        _signal(signal.SIGTERM)
        time.sleep(GRACE_SECONDS)  # only a process that does not end comes further
        if not self.over.is_set():
            self.mark()
        _signal(signal.SIGKILL)

    def mark(self) -> None:
        """The run is Cancelled, unless its server is away: that marks it itself after some minutes of Cancelling."""
        try:
            with get_client(sync_client=True, httpx_settings=_ASK_SECONDS) as client:
                client.set_flow_run_state(self._run, Cancelled(message="ended after its worker"), force=True)
        except Exception as error:
            log.warning("the run could not be marked as cancelled: %s", error)


def _signal(number: signal.Signals) -> None:
    """To this process, with what it has started, where it leads a group, as a worker starts it."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), number)
    else:
        os.kill(os.getpid(), number)
