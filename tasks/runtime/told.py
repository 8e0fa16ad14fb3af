"""Whether a signal has come, for a thread that looks at it now and then."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Protocol

_SLICE_SECONDS = 0.1


class Stop(Protocol):
    """What work that may be asked to end looks at: a ``threading.Event`` of another thread, or signals."""

    def is_set(self) -> bool:
        """Whether it is asked to."""

    def wait(self, timeout: float) -> bool:
        """Whether it is asked to, after ``timeout`` seconds at the latest."""


class Told:
    """Set from the first time that one of the signals ``numbers`` comes.

    Not a ``threading.Event``: a handler runs in the thread that waits, and where that holds the event's lock at this
    moment, ``set`` waits for it for ever.

    Args:
        numbers: of the signals.
        heard: called at each, with whether one had come before.
    """

    def __init__(self, *numbers: signal.Signals, heard: Callable[[bool], None] | None = None) -> None:
        self._told, self._heard = False, heard
        for number in numbers:
            signal.signal(number, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        before, self._told = self._told, True
        if self._heard is not None:
            self._heard(before)

    def is_set(self) -> bool:
        """See Stop."""
        return self._told

    def wait(self, timeout: float) -> bool:
        """See Stop."""
        end = time.monotonic() + timeout
        # Python goes on with a sleep that a signal interrupted.
        while not self._told and (left := end - time.monotonic()) > 0.0:
            time.sleep(min(left, _SLICE_SECONDS))
        return self._told
