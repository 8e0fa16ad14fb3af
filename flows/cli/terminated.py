"""SIGTERM ends a command in order: its runs in MLflow are ended, so is what it started, and it says one sentence."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

from congruence.tasks.runtime.safe_places import at_safe_places

STATUS = 128 + signal.SIGTERM
SENTENCE = "stopped by SIGTERM; what was finished is kept, and the same command goes on from there"


class Terminated(BaseException):
    """Somebody asked this process to end."""


class Termination:
    """Inside, SIGTERM raises ``Terminated`` in the main thread, once: what ends the work is not ended by a second one.

    While a flow runs, Prefect's handler stands in the place of ours, and raises an exception of its own that libraries
    may wrap in theirs. So what was asked is known by the signal itself, which Python writes to a pipe.

    It is handled ``at_safe_places``. Ctrl-C is so in flows alone: asyncio has a handler of its own for it.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._places = ExitStack()
        self._pipe: tuple[int, int] | None = None
        self._woken: int = -1
        self._seen = False

    def __enter__(self) -> Termination:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._raise)
            self._pipe = os.pipe()
            for end in self._pipe:
                os.set_blocking(end, False)
            self._woken = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            _open.append(self)
            self._places.enter_context(at_safe_places(signal.SIGTERM))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pipe is not None:
            with suppress(Terminated):  # it came at the end
                self._places.close()
            _open.remove(self)
            self._seen = self.asked
            signal.set_wakeup_fd(self._woken)
            for end in self._pipe:
                os.close(end)
            self._pipe = None
            signal.signal(signal.SIGTERM, self._before)

    @property
    def asked(self) -> bool:
        """Whether a SIGTERM has come."""
        if self._pipe is not None and not self._seen:
            with suppress(BlockingIOError):
                self._seen = signal.SIGTERM in os.read(self._pipe[0], 4096)
        return self._seen

    def _raise(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._seen = True
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated


_open: list[Termination] = []


def require_not_terminated() -> None:
    """Raise Terminated where the command was asked to end, and a library took the exception for one of its own."""
    if terminated():
        raise Terminated


@contextmanager
def flow_of_a_command() -> Iterator[None]:
    """Inside, in a flow that a command runs, Ctrl-C and what Prefect's handler hears are handled ``at_safe_places``.

    Prefect's own runner looks for that handler in the runs of its deployments, so there it is left in its place.
    """
    if not _open:
        yield
        return
    with at_safe_places():
        yield


def terminated() -> bool:
    """Whether the command that runs was asked to end."""
    return any(command.asked for command in _open)
