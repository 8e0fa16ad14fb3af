"""Signals that wait until the main thread is where what they raise leaves no lock behind.

Python raises a signal's exception between any two instructions of the main thread, also between the taking of a lock
and the ``try`` that gives it back. ``logging`` has such places, and so has every ``Condition``; another thread that
logs then waits for ever, and whoever waits for that thread. It is not rare: who waited for a lock then waits for the
interpreter, and that is when signals are looked at.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from congruence.tasks.runtime.signal_handlers import SIGNALS, URGENT_SECONDS, HandlersInstead, in_main_thread

_PACKAGE = __name__.partition(".")[0]
_LOOK_SECONDS = 0.02
_OF_LOCKS = {"acquire", "release", "_acquireLock", "_releaseLock", "__enter__", "__exit__"}
"""Functions that wait for a lock, and return with it to where the ``try`` begins."""


@contextmanager
def at_safe_places(*numbers: int) -> Iterator[None]:
    """SIGTERM and Ctrl-C that come inside are handled at the next line of ours, or in a call that waits.

    After two seconds they are handled wherever the main thread is, and so is all that comes once one has been: work
    that ends is not put off. May be nested. Does nothing outside the main thread.

    Args:
        numbers: of other signals, in their place.
    """
    if not in_main_thread():
        yield
        return
    gate = _Gate(numbers or SIGNALS)
    try:
        gate.begin()
        yield
    finally:
        gate.end()


_gates: list[_Gate] = []


class _Gate(HandlersInstead):
    """Passes signals on in safe places."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__(numbers)
        self._since: dict[int, float] = {}
        self._place: tuple[FrameType | None, int] = (None, -1)
        self._stop: _NextLine | None = None
        self._open = False

    def begin(self) -> None:
        _gates.append(self)
        super().begin()

    def end(self) -> None:
        waiting = list(self._since)
        self._pass_all()
        self.restore()
        _gates.remove(self)
        for number in waiting:
            signal.raise_signal(number)

    def hear(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        first = number not in self._since
        if self._open or now - self._since.setdefault(number, now) > URGENT_SECONDS or self._is_safe(frame):
            for gate in _gates:
                gate._pass_all()
            super().hear(number, frame)
            return
        assert frame is not None
        self._place = (frame, frame.f_lasti)
        if first:
            self._stop = self._stop or _NextLine(frame, number)
            # Not a threading.Thread, whose start takes locks, which this thread may hold.
            _thread.start_new_thread(self._send_again, (number,))

    def _pass_all(self) -> None:
        if self._stop is not None:
            self._stop.forget()
        self._open, self._place, self._stop = True, (None, -1), None
        self._since.clear()

    def _is_safe(self, frame: FrameType | None) -> bool:
        """Whether the main thread is in code of ours, or where it was at the last look: in a call that waits."""
        if frame is None or _is_ours(frame):
            return True
        before, instruction = self._place
        return before is frame and instruction == frame.f_lasti and frame.f_code.co_name not in _OF_LOCKS

    def _send_again(self, number: int) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while True:
            time.sleep(_LOOK_SECONDS)
            if number not in self._since:
                return
            signal.pthread_kill(main, number)


class _NextLine:
    """Sends a signal again where the main thread comes back to code of ours from ``frame``, or calls some.

    Not where a debugger, or the like, traces this thread.
    """

    def __init__(self, frame: FrameType, number: int) -> None:
        self._number = number
        own: FrameType | None = frame
        while own is not None and not _is_ours(own):
            own = own.f_back
        self._own = own
        if own is not None and sys.gettrace() is None:
            own.f_trace = self._line
            sys.settrace(self._called)

    def forget(self) -> None:
        """Do nothing any more."""
        if self._own is not None and self._own.f_trace == self._line:
            self._own.f_trace = None
        if sys.gettrace() == self._called:
            sys.settrace(None)

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG002
        if event == "line":
            signal.raise_signal(self._number)
        return self._line

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG002
        if _is_ours(frame) and frame.f_code.co_filename != __file__:
            signal.raise_signal(self._number)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE
