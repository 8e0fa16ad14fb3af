"""What a process tells while it works: lines of JSON where they are asked for, and how far a long step is."""

from __future__ import annotations

import datetime
import json
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any

from congruence.tasks.runtime.errors import SettingsError, mask_text

VARIABLE = "CONGRUENCE_LOG"
LOGGER = "congruence"
_KINDS = ("", "text", "json")
_OWN_HANDLERS = (
    "distributed",
    "distributed.client",
    "distributed.gc",
    "tornado",
    "tornado.application",
    "bokeh",
    "mlflow",
)
"""Loggers to which their packages give a handler of their own as they are imported."""

Fields = Mapping[str, str]

_fields: ContextVar[Fields] = ContextVar("fields of log lines", default=MappingProxyType({}))
_known: list[Callable[[logging.LogRecord], Fields]] = []


def is_json() -> bool:
    """Whether this process writes its lines as JSON."""
    return os.environ.get(VARIABLE) == "json"


def require_known_kind() -> None:
    """Refuse a CONGRUENCE_LOG that says neither text nor json.

    Raises:
        SettingsError: names it.
    """
    if (kind := os.environ.get(VARIABLE, "")) not in _KINDS:
        raise SettingsError(f"{VARIABLE}: is {kind!r}; write json, or text (the default)")


@contextmanager
def log_fields(**fields: str) -> Iterator[None]:
    """Lines that this thread logs inside have these fields, too."""
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def fields_of_lines() -> dict[str, str]:
    """The fields that lines of this thread have now, for work that goes on elsewhere."""
    return dict(_fields.get())


def know(source: Callable[[logging.LogRecord], Fields]) -> None:
    """Ask ``source`` for fields of every line from now on; asked again for the same one, nothing changes."""
    if source not in _known:
        _known.append(source)


class JsonLines(logging.Formatter):
    """A record as a JSON object without line breaks."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        said: dict[str, str] = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for source in (*_known, _of_worker):
            said |= source(record)
        said |= _fields.get()
        if record.exc_info:
            said["traceback"] = record.exc_text or self.formatException(record.exc_info)
        return json.dumps({name: mask_text(value) for name, value in said.items()}, ensure_ascii=False)


def use_json_lines() -> None:
    """Write the lines of every logger of this process as JSON, where CONGRUENCE_LOG says so.

    To be called at the start, and again after Dask or Prefect were imported, which bring handlers: what is done already
    is not done twice.
    """
    if not is_json():
        return
    root = logging.getLogger()
    ours: list[logging.Handler] = [handler for handler in root.handlers if isinstance(handler, StandardError)] or [
        StandardError()
    ]
    # Those that write to the terminal give way; those of others (tests, collectors) stay.
    root.handlers = [handler for handler in root.handlers if not _writes_to_terminal(handler)] + ours
    logging.getLogger(LOGGER).setLevel(logging.INFO)
    for name in _OWN_HANDLERS:
        logger = logging.getLogger(name)
        if any(_writes_to_terminal(handler) for handler in logger.handlers):
            logger.handlers = [handler for handler in logger.handlers if not _writes_to_terminal(handler)] + ours


class StandardError(logging.StreamHandler):  # type: ignore[type-arg]
    """To standard error, as it is when a line is written.

    Prefect leaves a handler of the root logger alone whose class has a public name, and replaces all others.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line."""
        self.stream = sys.stderr
        super().emit(record)


def _writes_to_terminal(handler: logging.Handler) -> bool:
    return getattr(handler, "stream", None) in (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)


def _of_worker(record: logging.LogRecord) -> Fields:  # noqa: ARG001
    """The Dask worker whose task this thread carries out."""
    worker = sys.modules.get("distributed.worker")
    if worker is None:
        return {}
    try:
        own: Any = worker.get_worker()
        return {"worker": str(own.name)}
    except ValueError:
        return {}


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


@contextmanager
def step(title: str, total: int, unit: str) -> Iterator[Advance]:
    """A step of ``total`` units, of what it is ``about``; the value is called with the number just done."""
    subject = _subject.get()
    heard = None if _listener is None else _listener(f"{title} of {subject}" if subject else title, total, unit)
    yield heard or (lambda _done: None)


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


evaluation_file: ContextVar[Path | None] = ContextVar("evaluation_file", default=None)
"""The evaluation file of the command."""


def with_file(text: str) -> str:
    """Commands in ``text`` with the evaluation file in the place of FILE, where this command has one."""
    if (file := evaluation_file.get()) is None:
        return text
    return re.sub(r"(?<=\bcongruence )(\w+) FILE\b", lambda found: f"{found[1]} {shlex.quote(str(file))}", text)
