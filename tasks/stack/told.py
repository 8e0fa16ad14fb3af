"""Whether a signal has come, for a thread that looks at it now and then."""

from __future__ import annotations

import signal
import time
from types import FrameType


class Told:
    """True from the first time that the signal ``number`` comes.

    Not a ``threading.Event``: a handler runs in the thread that waits, and where that holds the event's lock at this
    moment, ``set`` waits for it for ever.
    """

    def __init__(self, number: signal.Signals) -> None:
        self._told = False
        signal.signal(number, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._told = True

    def wait(self, seconds: float) -> bool:
        """Whether it has come, after ``seconds`` at the latest."""
        if not self._told:
            time.sleep(seconds)
        return self._told
