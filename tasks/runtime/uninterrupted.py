"""Steps that a signal may not cut in two: what it raises is raised after them.

Python raises a signal's exception between any two instructions of the main thread, inside a library's as well. Where
SQLAlchemy is about to give up a transaction, the database stays locked, for this process too, as long as it lives.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from congruence.tasks.runtime.signal_handlers import URGENT_SECONDS, HandlersInstead, in_main_thread


@contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGTERM and Ctrl-C that come inside are handled at its end; a second one, after two seconds, at once.

    May be nested. Does nothing outside the main thread, where no handler runs.
    """
    if not in_main_thread():
        yield
        return
    put_off = _PutOff()
    try:
        put_off.begin()
        yield
    finally:
        put_off.end()


class _PutOff(HandlersInstead):
    """Keeps the first that comes of each."""

    def __init__(self) -> None:
        super().__init__()
        self._came: dict[int, float] = {}
        self._over = False

    def end(self) -> None:
        # From here on whatever comes is passed on, also where one that raises leaves this handler in its place.
        self._over = True
        self.restore()
        for number in self._came:
            signal.raise_signal(number)

    def hear(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._over or now - self._came.get(number, now) > URGENT_SECONDS:
            self._came.pop(number, None)
            super().hear(number, frame)
        else:
            self._came.setdefault(number, now)
