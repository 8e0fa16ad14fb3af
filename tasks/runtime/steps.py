"""Long steps of a computation say what they are and how far they are, to a listener or in lines of a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

Advance = Callable[[int], None]
Listener = Callable[[str, int, str], Advance | None]
"""Given title, units of the whole and what they are called: what takes the units done, or None for no interest."""

LINE_SECONDS = 5.0
_SHORTEST_SECONDS = 0.5
"""Of work from which a rate is stated: from less it would be a rate of nothing in particular."""

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


class Lines:
    """Plain lines, at most one every few seconds and always one at the end.

    Args:
        title: what is done.
        total: units of it.
        unit: in the plural.
        out: takes the lines.
        found: units that were done before.
        clock: seconds.
        shortest: work that takes fewer seconds than that has no line at all; the first comes after that time.
        at_once: how many units are worked on at a time.
    """

    def __init__(
        self,
        title: str,
        total: int,
        unit: str,
        out: Callable[[str], None],
        found: int = 0,
        clock: Callable[[], float] = time.monotonic,
        shortest: float = 0.0,
        at_once: int = 1,
    ) -> None:
        self._out, self._shortest, self._at_once = out, shortest, max(1, at_once)
        self.title, self.total, self.unit, self.found = title, total, unit, min(found, total)
        self.made = 0
        self._clock = clock
        self._started = self._last = self._ended = clock()  # the last: when units ended
        if found and self.found == total:
            out(f"{title}: all {total:,} {unit} already done")

    def advance(self, done: int) -> None:
        """``done`` more units are done."""
        self.made += done
        now = self._clock()
        self._ended = now if done else self._ended
        complete = self.found + self.made >= self.total
        pause = self._shortest if self._shortest and self._last == self._started else LINE_SECONDS
        if not done or now - self._started < self._shortest or (not complete and now - self._last < pause):
            return
        self._last = now
        counted = f"{self.found + self.made:,} of {self.total:,} {self.unit}"
        found = f" ({self.found:,} already done)" if self.found else ""
        self._out(f"{self.title}: {counted}{found}{self._pace(now - self._started, complete)}")

    def remind(self, detail: str = "") -> None:
        """Say how far it is and since when, though no more units are done."""
        seconds = self._clock() - self._started
        self._last = self._clock()
        if self.found + self.made == 0 and 1 < self.total <= self._at_once:  # they end together: "0 of 5" misleads
            counted = f"{self.total:,} {self.unit} at once"
        else:
            counted = f"{self.found + self.made:,} of {self.total:,} {self.unit}"
        left = f", {self._left(seconds):.0f} s left" if self.made else ""
        self._out(f"{self.title}: {counted} after {seconds:.0f} s{left}{f'; {detail}' if detail else ''}")

    def _left(self, seconds: float) -> float:
        """At the pace up to the last units that ended, round by round of those that are worked on at a time.

        What has passed since was spent on the next ones.
        """
        ended = self._ended - self._started
        rounds, made = (-(-units // self._at_once) for units in (self.total - self.found, self.made))
        of_a_round = ended / made
        rest = (rounds - made) * of_a_round  # 0 in the last round, whose others are about to end
        return max(rest - (seconds - ended), max(rest, of_a_round) / 10.0)

    def _pace(self, seconds: float, complete: bool) -> str:
        if seconds < _SHORTEST_SECONDS or not self.made:
            return ""
        pace = pace_of(self.made, seconds, self.unit)
        if complete:
            return f", {pace}, took {seconds:.0f} s"
        return f", {pace}, {self._left(seconds):.0f} s left"


def pace_of(units: int, seconds: float, unit: str) -> str:
    """Units per second, or seconds per unit where they are slow: "0 versions/s" would say nothing."""
    rate = units / seconds
    if rate >= 10:
        return f"{rate:,.0f} {unit}/s"
    if rate >= 1:
        return f"{rate:.1f} {unit}/s"
    singular = unit.removesuffix("s")
    return f"{seconds / units:.{1 if rate > 0.1 else 0}f} s a {singular}"
