"""Handlers in the place of those that SIGTERM and Ctrl-C have, for a while."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)
URGENT_SECONDS = 2.0
"""A signal is not put off for longer: what it waits for may never come."""


class HandlersInstead:
    """Hears, from ``begin`` to ``restore``, those of some signals that have handlers of Python's, and knows these.

    Others are ignored, or end the process, or are not Python's. To be used in the main thread, where handlers run.
    """

    def __init__(self, numbers: Sequence[int] = SIGNALS) -> None:
        self._numbers = numbers
        self.before: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def begin(self) -> None:
        """Hear them from here on."""
        for number in self._numbers:
            handler = signal.getsignal(number)
            if callable(handler):
                self.before[number] = handler
                signal.signal(number, self.hear)

    def restore(self) -> None:
        """Their own handlers hear them again."""
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def hear(self, number: int, frame: FrameType | None) -> None:
        """What is done when one comes, where the main thread is at ``frame``."""
        self.before[number](number, frame)


def in_main_thread() -> bool:
    """Whether this is the thread in which handlers run."""
    return threading.current_thread() is threading.main_thread()
