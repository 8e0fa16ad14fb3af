"""What is wrong with a version, and where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from congruence.kernels.conditional_calibration.local_reading import LocalDistribution

if TYPE_CHECKING:
    from congruence.tasks.scores.segments import Segment


@dataclass(frozen=True)
class WrongPlace:
    """A slice, region or target that is named wrong: how many rows it has, and the fault in words."""

    place: str
    rows: int
    fault: str


@dataclass(frozen=True)
class WhatIsWrong:
    """The reading of one version.

    Attributes:
        sentences: at most five: the fault over all rows, the places that differ, the rest.
        places: the slices, or regions where the split has none, or the single targets of vector targets, the most wrong
            first: ``place``, ``rows``, ``fault`` in words ("" where none is found), ``shift`` in predicted spreads,
            ``factor`` of the targets' spread over the predicted, ``q_value``, and for slices and regions ``pit``, what
            the PIT interpreter says. Of counts with many zeros, in the place of shift, factor and ``pit``: the sums
            ``observed`` and ``expected``, their ``ratio`` with ``ratio_low`` and ``ratio_high`` (95 %), and the shares
            ``zeros_observed``, ``zeros_expected``, ``ones_...`` and ``more_...`` (two and more). Of versions that state
            quantiles: what the widest central interval ``holds`` of the targets where ``stated`` is right, with
            ``holds_low`` and ``holds_high`` (95 %).
        method: how it was tested, in a sentence.
        region: name of the region of the inputs that is most wrong; None for vector targets.
        row: the number of its medoid in the split.
        curve: the local P-P plot there, one row.
        fault: the largest in a few words, "" where none is named.
        p_value: of the places, all of them together; None where none was read.
        segments: ranges of features in which the version is wrong in another way than elsewhere.
    """

    sentences: tuple[str, ...]
    places: pd.DataFrame = field(repr=False)
    method: str = ""
    region: str | None = None
    row: int | None = None
    curve: LocalDistribution | None = field(default=None, repr=False)
    fault: str = ""
    p_value: float | None = None
    segments: tuple[Segment, ...] = ()

    def named(self) -> tuple[WrongPlace, ...]:
        """The places with a fault, those of the most rows first."""
        table = self.places
        if table.empty:
            return ()
        faulty = table[table["fault"] != ""].sort_values("rows", ascending=False, kind="stable")
        columns = (faulty[name].tolist() for name in ("place", "rows", "fault"))
        return tuple(WrongPlace(str(place), int(rows), str(fault)) for place, rows, fault in zip(*columns, strict=True))
