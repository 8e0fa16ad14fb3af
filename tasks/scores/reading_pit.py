"""What the PIT interpreter says of the slices or regions of a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.regions import RegionReading
from congruence.kernels.pit_interpreter import interpret_pit
from congruence.tasks.sentences.interpreter import interpretation_sentence

FEWEST_INTERPRETED = 30  # what the interpreter has been trained on
MOST_INTERPRETED = 8
"""Places that are read, the most wrong first: 20 ms each."""

RESAMPLES = 60
"""Of a place's histogram: only whether a fault is likelier than not is said of it, no interval."""

LEVEL = 0.01


def interpreted_places(places: Sequence[RegionReading], pit: Array, groups: Mapping[str, Array]) -> list[str]:
    """The interpreter's verdict on the PIT values of each place, in words; "" of few rows and beyond the first places.

    Faults are named where uniformity is rejected at 1 % over all places that are read (Bonferroni).

    Args:
        places: the most wrong first.
        pit: of all rows, (n,).
        groups: rows by the places' names.
    """
    read = [place.name for place in places if len(groups[place.name]) >= FEWEST_INTERPRETED][:MOST_INTERPRETED]
    said = {name: _said(pit[groups[name]], LEVEL / len(read)) for name in read}
    return [said.get(place.name, "") for place in places]


def _said(pit: Array, level: float) -> str:
    found = interpret_pit(np.asarray(pit), level=level, resamples=RESAMPLES)
    return interpretation_sentence(found) if found.verdict.findings else found.verdict.label
