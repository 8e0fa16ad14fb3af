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
    segments: Sequence[Place[R]],
    level: float,
    *,
    p: str,
    size: float,
    everywhere: Sequence[str],
    right_on_average: str,
    nothing_named: str,
    clause: Callable[[R], str],
    differs: Callable[[R], bool],
) -> list[str]:
    """Returns at most five sentences: the largest fault, the places that tell something else, and the rest of them.

    Args:
        places: slices or regions.
        segments: in which the version was found to be wrong.
        level: of q-values over the places.
        p: the version's p-value, in words.
        size: of the fault of all rows.
        everywhere: the sentences on a fault of all rows; none where all rows together have none.
        right_on_average: the sentence that says so.
        nothing_named: the only sentence where neither has.
        clause: the fault of a reading with its size.
        differs: whether a reading has another fault than all rows.
    """
    wrong = [place for place in places if place.is_named(level)]
    told = sorted([*wrong, *segments], key=lambda place: -place.reading.size)
    if not everywhere and not told:
        return [nothing_named]
    same, words = 0, [f"n {_where(place)} {clause(place.reading)}." for place in told]
    if not everywhere or (told and told[0].reading.size > size):
        sentences = [f"The predictions are wrong ({p}): o{words[0]}", *([] if everywhere else [right_on_average])]
        apart = words[1:]
    else:
        sentences = list(everywhere)
        apart = [said for said, place in zip(words, told, strict=True) if differs(place.reading)]
        same = len([place for place in wrong if not differs(place.reading)])
    shown = apart[: MOST_SENTENCES - 1 - len(sentences)]
    sentences += [f"O{said}" for said in shown]
    return [*sentences, *rest("place", len(places), len(wrong), len(apart) - len(shown), same)][:MOST_SENTENCES]


def _where(place: Place[R]) -> str:
    return f"{place.name} ({place.reading.rows:,} rows, {percent(place.reading.share)})"
