"""Who hears how far an evaluation is: people, a server, or nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from congruence.tasks.evaluate.plan import VersionOutcome
from congruence.tasks.runtime.steps import Advance


@contextmanager
def _unseen(*_: Any, **__: Any) -> Iterator[Advance]:
    yield lambda _done: None


def _plain(_name: str, _split: str, work: Callable[[], Any]) -> Any:
    return work()


@dataclass(frozen=True)
class Observer:
    """Hears of an evaluation; one that is made without anything keeps it to itself.

    Attributes:
        say: is given lines for people.
        progress: is given what is done, how many units that is, their ``unit`` in the plural, how many were ``found``
            done before, what else there is to say of the work (``detail``), and how many units are worked on
            ``at_once``; inside, its value is called with the number of units just done.
        stage: carries out a stage (index, check, embed, predict, solve or score) of a split, and returns what it gave.
        split_done: is given the outcomes of all versions on a split.
    """

    say: Callable[[str], object] = lambda _line: None
    progress: Callable[..., AbstractContextManager[Advance]] = _unseen
    stage: Callable[[str, str, Callable[[], Any]], Any] = _plain
    split_done: Callable[[str, Sequence[VersionOutcome]], object] = lambda _split, _outcomes: None
