"""How signals end a command: one sentence, a few seconds for ``finally``, and no process left."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

END_SECONDS = 3.5
"""How long ``finally`` and ``except`` may take: marking runs as failed in an MLflow that hangs would last minutes."""

_take: list[Callable[[], None]] = []


class Stopped(KeyboardInterrupt):
    """A signal that asks the command to end; raised in the main thread, once."""


@contextmanager
def ended_by_signals(said: str) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP end the body by ``Stopped``, and the process with status 128 + the signal's number.

    The body has ``END_SECONDS`` for its end, or until a second signal; then what this process started is killed.

    Args:
        said: follows "Stopped by SIGTERM." and the like, for the person who stopped the command.
    """
    # What nohup, or a shell that starts a job in the background, has switched off stays off.
    stops = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    first: list[int] = []

    def stop(number: int, frame: FrameType | None = None) -> None:  # noqa: ARG001
        if first:
            _kill_children()
            os._exit(128 + first[0])
        first.append(number)
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, END_SECONDS)
        _say(number, said)
        raise Stopped(f"Stopped by {signal.Signals(number).name}.")

    def take() -> None:
        for number in stops:
            signal.signal(number, stop)

    take()
    _take[:] = [take]
    try:
        yield
    finally:
        if first:
            stop(first[0])
        for number in stops:
            signal.signal(number, signal.SIG_DFL)


def take_signals_back() -> None:
    """Put a command's handlers in place again of those that Prefect's flows bring; without a command, nothing."""
    for take in _take:
        take()


def _say(number: int, said: str) -> None:
    """The last line on standard error: what the end of Dask, Prefect and MLflow has libraries say goes nowhere."""
    line = sentence = f"Stopped by {signal.Signals(number).name}. {said}".rstrip()
    if os.environ.get("CONGRUENCE_LOG") == "json":
        now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        line = json.dumps({"time": now, "level": "error", "logger": "congruence", "message": sentence})
    elif os.isatty(2):
        line = f"\x1b[?25h\r\n{sentence}"  # a progress bar hides the cursor, and ends in no new line
    with suppress(OSError):  # nobody reads it any more
        os.write(2, f"{line}\n".encode())
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _kill_children() -> None:
    import psutil  # a command that nobody stops does without

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()
