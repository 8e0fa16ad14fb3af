"""Who hears how far an evaluation is: people, a server, or nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from congruence.tasks.evaluate.plan import VersionOutcome
from congruence.tasks.runtime.json_logging import log_fields
from congruence.tasks.runtime.steps import Advance

R = TypeVar("R")


class Observer:
    """Hears of an evaluation; this one keeps it to itself."""

    def say(self, line: str) -> None:
        """Hears a line for people."""

    @contextmanager
    def progress(
        self,
        title: str,  # noqa: ARG002
        total: int,  # noqa: ARG002
        unit: str = "rows",  # noqa: ARG002
        found: int = 0,  # noqa: ARG002
        detail: Callable[[], str] | None = None,  # noqa: ARG002
        at_once: int = 1,  # noqa: ARG002
    ) -> Iterator[Advance]:
        """Hears how far ``total`` units are; the value is called with the number of units just done.

        Args:
            title: what is done.
            total: units of the whole.
            unit: what is counted, in the plural.
            found: units that were done before.
            detail: what else there is to say of the work under way, "" for nothing.
            at_once: how many units are worked on at a time.
        """
        yield lambda _done: None

    def stage(self, name: str, split: str, work: Callable[[], R]) -> R:
        """Carries out a stage (index, check, embed, predict, solve or score) of a split, and returns what it gave."""
        with log_fields(stage=name, split=split):
            return work()

    def split_done(self, split: str, outcomes: Sequence[VersionOutcome]) -> None:
        """Hears what became of every version on a split."""
