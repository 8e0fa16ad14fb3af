"""Progress of long stages: a bar in a terminal, lines in a log, a progress artifact on a Prefect server."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from congruence.flows.cli.console import console, say, seconds_of_silence
from congruence.tasks.runtime.json_logging import is_json

if TYPE_CHECKING:
    from uuid import UUID

    from rich.progress import Progress

_ARTIFACT_SECONDS = 2.0
_LINE_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_SHORTEST_SECONDS = 0.5
"""Of work from which a rate is stated: from less it would be a rate of nothing in particular."""

Advance = Callable[[int], None]
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
        lines = Lines(title, total, unit, found, at_once=at_once)

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
            if seconds_of_silence() >= _LINE_SECONDS - _LOOK_SECONDS:
                lines.remind("" if detail is None else detail())

    thread = Thread(target=watch, daemon=True, name="progress")
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


class Lines:
    """Plain lines, at most one every few seconds and always one at the end.

    Args:
        title: what is done.
        total: units of it.
        unit: in the plural.
        found: units that were done before.
        clock: seconds.
        out: takes the lines.
        shortest: work that takes fewer seconds than that has no line at all; the first comes after that time.
        at_once: how many units are worked on at a time.
    """

    def __init__(
        self,
        title: str,
        total: int,
        unit: str,
        found: int = 0,
        clock: Callable[[], float] = time.monotonic,
        out: Callable[[str], None] = say,
        shortest: float = 0.0,
        at_once: int = 1,
    ) -> None:
        self._out, self._shortest, self._at_once = out, shortest, max(1, at_once)
        self.title, self.total, self.unit, self.found = title, total, unit, min(found, total)
        self.made = 0
        self._clock = clock
        self._started = self._last = self._ended = clock()  # the last: when units ended
        if found and self.found == total:
            out(f"{title}: all {total:,} {unit} found done")

    def advance(self, done: int) -> None:
        """``done`` more units are done."""
        self.made += done
        now = self._clock()
        self._ended = now if done else self._ended
        complete = self.found + self.made >= self.total
        pause = self._shortest if self._shortest and self._last == self._started else _LINE_SECONDS
        if not done or now - self._started < self._shortest or (not complete and now - self._last < pause):
            return
        self._last = now
        counted = f"{self.found + self.made:,} of {self.total:,} {self.unit}"
        found = f" ({self.found:,} found done)" if self.found else ""
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
