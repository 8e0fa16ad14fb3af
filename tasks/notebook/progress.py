"""A line that says how far a call is, once it has taken two seconds."""

from __future__ import annotations

import sys
import time
from threading import Event, Thread
from types import TracebackType
from typing import Self

BEFORE = 2.0
"""Seconds that pass in silence."""
_WIDTH = 24


class Progress:
    """A bar on the standard error of a terminal or a notebook, drawn twice a second by a thread of its own.

    Args:
        total: how much work there is, in steps of any size.
        shown: whether to draw; by default where somebody looks.
    """

    def __init__(self, total: float, *, shown: bool | None = None) -> None:
        self._total, self._done, self._said = total, 0.0, ""
        self._started, self._ended = time.monotonic(), Event()
        looked_at = sys.stderr.isatty() or "ipykernel" in sys.modules
        self._thread = Thread(target=self._draw, daemon=True) if (looked_at if shown is None else shown) else None

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def say(self, what: str, done: float = 0.0) -> None:
        """What is done next, after so many more steps."""
        self._said, self._done = what, self._done + done

    def _draw(self) -> None:
        drawn = 0
        if not self._ended.wait(BEFORE):
            while True:
                filled = int(_WIDTH * min(1.0, self._done / self._total))
                passed = time.monotonic() - self._started
                line = f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {self._said} ({passed:.0f} s)"
                sys.stderr.write("\r" + line.ljust(drawn))
                sys.stderr.flush()
                drawn = len(line)
                if self._ended.wait(0.5):
                    break
            sys.stderr.write("\r" + " " * drawn + "\r")
            sys.stderr.flush()
