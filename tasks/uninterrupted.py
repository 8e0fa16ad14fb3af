"""Steps that a signal may not cut in two: what it raises is raised after them.

Python raises a signal's exception between any two instructions of the main thread, inside a library's as well. Where
SQLAlchemy is about to give up a transaction, the database stays locked, for this process too, as long as it lives.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)
URGENT_SECONDS = 2.0
"""A signal that comes again after this long is not put off: the step may be waiting for something that never comes."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGTERM and Ctrl-C that come inside are handled at its end; a second one, after two seconds, at once.

    May be nested. Does nothing outside the main thread, where no handler runs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    put_off = _PutOff()
    try:
        put_off.begin()
        yield
    finally:
        put_off.end()


class _PutOff:
    """A handler in the place of the signals' own, which keeps the first that comes of each."""

    def __init__(self) -> None:
        found = {number: signal.getsignal(number) for number in SIGNALS}
        # Others are ignored, end the process, or are not Python's.
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {
            number: handler for number, handler in found.items() if callable(handler)
        }
        self._came: dict[int, float] = {}
        self._over = False

    def begin(self) -> None:
        for number in self._before:
            signal.signal(number, self._hear)

    def end(self) -> None:
        # From here on whatever comes is passed on, also where one that raises leaves this handler in its place.
        self._over = True
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for number in self._came:
            signal.raise_signal(number)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._over or now - self._came.get(number, now) > URGENT_SECONDS:
            self._came.pop(number, None)
            self._before[number](number, frame)
        else:
            self._came.setdefault(number, now)
