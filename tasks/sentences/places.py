"""Slices and regions with what their rows say, and the sentences on all rows and on the places that differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from congruence.tasks.sentences.calibration import MOST_SENTENCES, percent, rest


class PlaceReading(Protocol):
    """What sentences ask of the reading of some rows."""

    @property
    def rows(self) -> int:
        """How many they are."""

    @property
    def share(self) -> float:
        """Of the split."""

    @property
    def size(self) -> float:
        """How large the fault is, for the order of places."""

    @property
    def p_value(self) -> float:
        """Of these rows by themselves."""

    @property
    def is_off(self) -> bool:
        """Whether there is a fault that is worth naming."""


R = TypeVar("R", bound=PlaceReading)


@dataclass(frozen=True)
class Place(Generic[R]):
    """A slice or region, and what its rows say; ``q_value`` over all places that were read."""

    name: str
    q_value: float
    reading: R

    def is_named(self, level: float) -> bool:
        """Whether the place has a fault: beyond chance over all places, and worth naming."""
        return self.q_value <= level and self.reading.is_off


def sentences_on(
    places: Sequence[Place[R]],
    level: float,
    *,
    everywhere: Sequence[str],
    right_on_average: str,
    nothing_named: str,
    clause: Callable[[R], str],
    differs: Callable[[R], bool],
) -> list[str]:
    """Returns at most five sentences: on all rows, on the places that tell something else, and on the rest of them.

    Args:
        places: slices or regions, the largest fault first.
        level: of q-values over them.
        everywhere: the sentences on a fault of all rows; none where all rows together have none.
        right_on_average: the sentence in their place where places have a fault.
        nothing_named: the only sentence where neither has.
        clause: the fault of a reading with its size.
        differs: whether a reading has another fault than all rows.
    """
    named = [place for place in places if place.is_named(level)]
    if not everywhere and not named:
        return [nothing_named]
    sentences = list(everywhere) or [right_on_average]
    apart = [place for place in named if not everywhere or differs(place.reading)]
    shown = apart[: MOST_SENTENCES - 1 - len(sentences)]
    sentences += [
        f"On {place.name} ({place.reading.rows:,} rows, {percent(place.reading.share)}) {clause(place.reading)}."
        for place in shown
    ]
    same = len(named) - len(apart) if everywhere else 0
    return [*sentences, *rest("place", len(places), len(named), len(apart) - len(shown), same)][:MOST_SENTENCES]
