"""Handlers for tests of signals: what they raise is known, also where a shell made Ctrl-C ignored."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Asked(BaseException):
    """What ``ask`` raises."""


def ask(number: int, frame: FrameType | None) -> None:
    """A handler that raises."""
    raise Asked(number)


@contextmanager
def hearing(handlers: dict[signal.Signals, Callable[..., Any]]) -> Iterator[None]:
    """Inside, signals are heard by ``handlers``; what a shell starts in the background ignores Ctrl-C."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, found)
