"""What a command says to the person who runs it: lines and progress on standard error; its results."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from threading import Event, Thread
from typing import TYPE_CHECKING

from rich.console import Console

from congruence.tasks.runtime.lines import LINE_SECONDS, LOGGER, Advance, Lines, is_json

if TYPE_CHECKING:
    from uuid import UUID

    from rich.progress import Progress


LOG_WIDTH = 160
"""Characters of a line where standard output is no terminal."""

console = Console(stderr=True, highlight=False)


def results() -> Console:
    """Where results are printed: as wide as the terminal, or as a line of a log."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)


_last_said = time.monotonic()


def seconds_of_silence() -> float:
    """Since the last line of ``say``."""
    return time.monotonic() - _last_said


def say(line: str) -> None:
    """Show a line among the stages. (A flow that names the console itself could not be sent to a worker.)"""
    global _last_said
    _last_said = time.monotonic()
    if is_json():
        logging.getLogger(LOGGER).info("%s", line)
    else:
        console.print(line, soft_wrap=True, markup=False)


_ARTIFACT_SECONDS = 2.0
_LOOK_SECONDS = 0.5

Detail = Callable[[], str]


@contextmanager
def stage(
    title: str, total: int, unit: str = "rows", found: int = 0, detail: Detail | None = None, at_once: int = 1
) -> Iterator[Advance]:
    """Shows how far a stage of ``total`` units is; the value is called with the number of units just done.

    In a log there is a line at least every 5 s, of the stage or of a step of it, also while no unit is done.

    Args:
        title: what is done.
        total: units of the whole stage.
        unit: what is counted, in the plural.
        found: units that were done before this run; no rate and no forecast counts them.
        detail: what else there is to say of the work under way, "" for nothing; asked only where nothing else was said.
        at_once: how many units are worked on at a time: when the first ends, so many are about to.
    """
    artifact = _Artifact(title, total, found)
    if console.is_terminal and not is_json():
        with _bar() as bar:
            task = bar.add_task(title, total=total)
            bar.advance(task, found)

            def advance(done: int) -> None:
                bar.advance(task, done)
                artifact.advance(done)

            yield advance
    else:
        lines = Lines(title, total, unit, say, found, at_once=at_once)

        def advance(done: int) -> None:
            lines.advance(done)
            artifact.advance(done)

        with _never_silent(lines, detail):
            yield advance
    artifact.finish()


@contextmanager
def _never_silent(lines: Lines, detail: Detail | None) -> Iterator[None]:
    """Has ``lines`` say how far they are where nobody has said anything for 5 s."""
    ended = Event()

    def watch() -> None:
        while not ended.wait(_LOOK_SECONDS):
            if seconds_of_silence() >= LINE_SECONDS - _LOOK_SECONDS:
                lines.remind("" if detail is None else detail())

    thread = Thread(target=copy_context().run, args=(watch,), daemon=True, name="progress")  # with fields of log lines
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _bar() -> Progress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description:<34}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )


class _Artifact:
    """A Prefect progress artifact, updated every few seconds; none outside a flow run."""

    def __init__(self, title: str, total: int, found: int) -> None:
        self.total = max(total, 1)
        self.done = found
        self.last = time.monotonic()
        self.identity: UUID | None = None
        if _in_a_flow():
            from uuid import UUID

            from prefect.artifacts import create_progress_artifact

            created = create_progress_artifact(progress=100.0 * found / self.total, description=title)
            self.identity = created if isinstance(created, UUID) else None

    def advance(self, done: int) -> None:
        self.done += done
        if time.monotonic() - self.last > _ARTIFACT_SECONDS:
            self._update()

    def finish(self) -> None:
        self._update()

    def _update(self) -> None:
        self.last = time.monotonic()
        if self.identity is not None:
            from prefect.artifacts import update_progress_artifact

            update_progress_artifact(self.identity, progress=min(100.0, 100.0 * self.done / self.total))


def _in_a_flow() -> bool:
    if "prefect.context" not in sys.modules:  # then there is none, and Prefect need not be loaded to say so
        return False
    from prefect.context import FlowRunContext

    return FlowRunContext.get() is not None
