"""What a command says to the person who runs it: lines, progress and errors, on standard error; its results."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from threading import Event, Thread
from typing import TYPE_CHECKING

from rich.console import Console

from congruence.kernels.errors import CongruenceError
from congruence.tasks.runtime.errors import ClusterError, SurroundingsError, chain, trouble
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


API = "PREFECT_API_URL"


def explained(error: BaseException) -> CongruenceError | None:
    """``error`` where it is one of ours, else ours in its place; None for what nobody foresaw."""
    if isinstance(error, CongruenceError):
        return error
    if not isinstance(error, Exception):
        return None
    if (message := trouble(error)) is not None:
        return SurroundingsError(message)
    causes = [cause for cause in chain(error) if _of_prefect(cause)]
    if any(_is_unknown_login(cause) for cause in causes):
        return ClusterError(
            f"the Prefect server at {_address()} rejected the credentials; set PREFECT_API_AUTH_STRING (user:password) "
            "or PREFECT_API_KEY to one that it knows"
        )
    if causes:
        return ClusterError(
            f"the Prefect server at {_address()} was lost, or cannot do its work ({_in_a_line(error)}); see its log "
            "and its disk, start it again where that is yours to do, or unset PREFECT_API_URL to run without it; "
            "finished work is saved; run the same command to resume"
        )
    return None


@contextmanager
def explaining() -> Iterator[None]:
    """Raises ours in place of the errors inside that can be explained."""
    try:
        yield
    except Exception as error:
        ours = explained(error)
        if ours is None or ours is error:
            raise
        raise ours from error


def _of_prefect(error: BaseException) -> bool:
    """Whether a request to the Prefect server failed: others that speak HTTP fail with the same types."""
    if type(error).__module__.partition(".")[0] not in ("httpx", "httpcore", "prefect"):
        return isinstance(error, RuntimeError) and str(error).startswith("Failed to reach API at")
    try:
        url = str(error.request.url)  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):
        return False
    return bool(_address()) and url.startswith(_address())


def _is_unknown_login(error: BaseException) -> bool:
    return getattr(getattr(error, "response", None), "status_code", None) in (401, 403)


def _address() -> str:
    if given := os.environ.get(API):
        return given
    from prefect.settings import PREFECT_API_URL

    return PREFECT_API_URL.value() or ""


def _in_a_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:150]}" if text else type(error).__name__
