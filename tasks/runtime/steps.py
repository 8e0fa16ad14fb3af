"""Long steps of a computation say what they are and how far they are, to a listener; there is none by default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

Advance = Callable[[int], None]
Listener = Callable[[str, int, str], Advance | None]
"""Given title, units of the whole and what they are called: what takes the units done, or None for no interest."""

_listener: Listener | None = None
_subject: ContextVar[str] = ContextVar("subject of a step", default="")


def listen(listener: Listener | None) -> None:
    """Let ``listener`` hear of the steps of this process from now on."""
    global _listener
    _listener = listener


@contextmanager
def about(subject: str) -> Iterator[None]:
    """Steps inside, in this thread, are of ``subject``: a version, say."""
    token = _subject.set(subject)
    try:
        yield
    finally:
        _subject.reset(token)


def _unheard(_done: int) -> None:
    """Nobody listens."""


@contextmanager
def step(title: str, total: int, unit: str) -> Iterator[Advance]:
    """A step of ``total`` units, unheard without a title; the value is called with the number just done."""
    subject = _subject.get()
    heard = None
    if _listener is not None and title:
        heard = _listener(f"{title} of {subject}" if subject else title, total, unit)
    if heard is None:
        yield _unheard
        return
    lock = Lock()

    def advance(done: int) -> None:
        with lock:
            heard(done)

    yield advance
