"""Log lines as JSON objects, one a line on standard error, where CONGRUENCE_LOG=json: for those who collect logs.

Every line has ``time``, ``level``, ``logger`` and ``message``, and where they are known the run, the evaluation, the
split, the stage, the version, the shards and the worker that it is about. Secrets are masked, as they are everywhere.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.masking import mask_text

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
