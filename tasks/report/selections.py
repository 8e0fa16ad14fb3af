"""Which rows a sentence, a place or a segment speaks of, so that a page can select them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from congruence.tasks.scores.metrics.registry import REGION
from congruence.tasks.scores.wrong import Segment
from congruence.tasks.sentences.findings import place_in_words

SLICE = "slice:"
"""Before the name of a slice column, which may be a feature, too."""

FAULT = "calibration_fault"
ALL_RIGHT = "no fault was found"

Selection = dict[str, Any]
"""``{"any": [[condition, ...], ...]}``: rows that meet all conditions of one of the lists; a condition is
``{"column", "value"}``, ``{"column", "not"}`` or ``{"column", "above", "upto"}``."""


def places_of(columns: Mapping[str, Sequence[str]]) -> dict[str, Selection]:
    """The selection of each place by its name, and by that in a sentence, from the page's slice and region columns."""
    found: dict[str, Selection] = {}
    for column, values in columns.items():
        for value in values:
            is_region = column == REGION
            names = (value, place_in_words(value)) if is_region else (f"{column} {value}", f"{column} is {value}")
            chosen = _one({"column": column if is_region else f"{SLICE}{column}", "value": value})
            found |= {name.removeprefix("where "): chosen for name in names}
    return found


def of_sentence(sentence: str, places: pd.DataFrame, known: Mapping[str, Selection], flagged: bool) -> Selection | None:
    """The rows that ``sentence`` speaks of.

    The places that it names; those without a fault where it says that these have none; else, where it speaks of all
    rows, the rows around which a fault was found.
    """
    names = [name for name in known if _names(sentence, name)]
    names = [name for k, name in enumerate(names) if known[name] not in [known[other] for other in names[:k]]]
    if ALL_RIGHT in sentence and not places.empty:
        names = [name for name in places.loc[places["fault"] == "", "place"] if name in known]
    elif not names:
        return _one({"column": FAULT, "not": ""}) if flagged else {"any": [[]]}
    return {"any": [lists for name in names for lists in known[name]["any"]]} if names else None


def of_segment(segment: Segment) -> Selection:
    """The rows of a segment's ranges."""
    conditions: list[dict[str, Any]] = []
    for name, low, high in segment.ranges:
        column, equals, word = name.partition(" = ")
        if equals:
            conditions.append({"column": column, "value" if low > 0.0 else "not": word})
        else:
            ends = {"above": low, "upto": high}
            conditions.append({"column": column, **{end: at for end, at in ends.items() if abs(at) != float("inf")}})
    return {"any": [conditions]}


def _one(condition: dict[str, Any]) -> Selection:
    return {"any": [[condition]]}


def _names(sentence: str, place: str) -> bool:
    """Whether the sentence names the place as a whole: "digit 1" is not in "digit 10", nor "size 1" in "size 1.5"."""
    return place in sentence and re.search(rf"(?<![^\W_]){re.escape(place)}(?![^\W_]|[.,]\d)", sentence) is not None
