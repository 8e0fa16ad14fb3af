"""Progress of long stages: a bar in a terminal, lines in a log, a progress artifact on a Prefect server."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import FlowRunContext
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

console = Console(file=sys.stderr, highlight=False)
_ARTIFACT_SECONDS = 2.0
_LINE_SECONDS = 15.0

Advance = Callable[[int], None]


@contextmanager
def stage(title: str, total: int, unit: str = "rows") -> Iterator[Advance]:
    """Shows how far a stage of ``total`` units is; the value is called with the number of units just done."""
    artifact = _Artifact(title, total)
    if console.is_terminal:
        with _bar() as bar:
            task = bar.add_task(title, total=total)

            def advance(done: int) -> None:
                bar.advance(task, done)
                artifact.advance(done)

            yield advance
    else:
        lines = _Lines(title, total, unit)

        def advance(done: int) -> None:
            lines.advance(done)
            artifact.advance(done)

        yield advance
    artifact.finish()


def say(line: str) -> None:
    """Show a line among the stages. (A flow that names the console itself could not be sent to a worker.)"""
    console.print(line, soft_wrap=True)


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description:<34}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )


class _Lines:
    """Plain lines, at most one every few seconds and always one at the end."""

    def __init__(self, title: str, total: int, unit: str) -> None:
        self.title, self.total, self.unit = title, total, unit
        self.done = 0
        self.started = self.last = time.monotonic()

    def advance(self, done: int) -> None:
        self.done += done
        now = time.monotonic()
        if self.done < self.total and now - self.last < _LINE_SECONDS:
            return
        self.last = now
        seconds = max(now - self.started, 1e-9)
        rate = self.done / seconds
        left = (self.total - self.done) / rate if rate > 0 else float("inf")
        console.print(
            f"{self.title}: {self.done:,} of {self.total:,} {self.unit}, {rate:,.0f} {self.unit}/s, {left:.0f} s left"
        )


class _Artifact:
    """A Prefect progress artifact, updated every few seconds; none outside a flow run."""

    def __init__(self, title: str, total: int) -> None:
        self.total = max(total, 1)
        self.done = 0
        self.last = time.monotonic()
        self.identity: UUID | None = None
        if FlowRunContext.get() is not None:
            created = create_progress_artifact(progress=0.0, description=title)
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
            update_progress_artifact(self.identity, progress=min(100.0, 100.0 * self.done / self.total))
