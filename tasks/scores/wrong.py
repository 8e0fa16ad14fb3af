"""What is wrong with a version, as it is written down; and the search for parts of the rows where it is worst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.local_reading import LocalDistribution
from congruence.kernels.conditional_calibration.segments import (
    Feature,
    FoundSegment,
    Range,
    SearchedRows,
    faulty_segments,
)
from congruence.kernels.engine.results import excess_over
from congruence.kernels.rng import stream
from congruence.tasks.scores.rows_read import RowsRead
from congruence.tasks.sentences.calibration import LEVEL, listed
from congruence.tasks.sentences.findings import Finding

BEYOND_CHANCE = 2.0
"""Standard errors of a paired difference from which a number is said to get better or worse."""

MOST_LOST = 1.0
"""Of a score, its own size: a correction that loses more is none, however few rows say so."""

_PROPER = ("NLL", "CRPS")


@dataclass(frozen=True)
class WrongPlace:
    """A slice, region or target that is named wrong: how many rows it has, and the fault in words."""

    place: str
    rows: int
    fault: str


@dataclass(frozen=True)
class Segment:
    """A range of features in which the version is wrong.

    Attributes:
        name: "age up to 30, area from 3".
        finding: what is wrong there, by rows that had no part in where its ends lie (``FoundSegment.judged_by``).
        p_value: of the whole search.
        excess: the mean CCE of its rows beyond what is expected of a true version, see ``excess_over``.
        ranges: the same as ``name``: (column, above, up to), of words "column = word" with the bounds .5.
        gain: what a spread of its own explains, see ``TargetRows.gain_of_part``.
    """

    name: str
    finding: Finding
    p_value: float
    excess: float
    ranges: tuple[tuple[str, float, float], ...] = ()
    gain: float = 0.0

    @property
    def place(self) -> str:
        """The slice that it is, if it is one: "area c"."""
        return self.lies_in[0] if len(self.ranges) == 1 and self.lies_in else ""

    @property
    def lies_in(self) -> tuple[str, ...]:
        """The slices that hold it: ("area c",) of "area is c, age up to 30"."""
        named = [(*column.partition(" = "), low) for column, low, _ in self.ranges]
        return tuple(f"{column} {word}" for column, equals, word, low in named if equals and low > 0.0)

    def repeats(self, place: Finding) -> bool:
        """Whether it is a slice that is named with its fault, or a part of one with the same fault."""
        part = place.place in self.lies_in and self.finding.repeats(place)
        return place.place == self.place or part


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


@dataclass(frozen=True)
class PreviewRow:
    """One number, on held-out rows, as the version is and as it would be.

    Attributes:
        name: as people read it.
        now, then: before and after.
        error: standard error of their difference, where it is a mean over rows.
    """

    name: str
    now: float
    then: float
    error: float | None = None

    @property
    def is_p_value(self) -> bool:
        """Whether it is one."""
        return self.error is None

    @property
    def is_better(self) -> bool:
        """Whether it falls by more than chance."""
        return self.error is not None and self.now - self.then > BEYOND_CHANCE * self.error

    @property
    def is_worse(self) -> bool:
        """Whether it rises by more than chance."""
        return self.error is not None and self.then - self.now > BEYOND_CHANCE * self.error


def judgement(rows: Sequence[PreviewRow]) -> str:
    """What a correction does on rows that it has not seen, what gets worse as well: "NLL and CCE fall, MAE rises"."""
    better = [row.name for row in rows if row.is_better]
    worse = [row.name for row in rows if row.is_worse]
    parts = []
    if better:
        parts.append(f"{listed(better)} {'falls' if len(better) == 1 else 'fall'} (better)")
    if worse:
        parts.append(f"{listed(worse)} {'rises' if len(worse) == 1 else 'rise'} (worse)")
    return ", ".join(parts) if parts else "nothing changes beyond chance"


@dataclass(frozen=True)
class CorrectionPreview:
    """What recalibrating would change.

    Attributes:
        said: what it does, in words; "" where cross-validation chooses no change.
        fitted_on: rows that it was fitted on.
        rows: other rows, on which all numbers are.
        table: NLL where there is one, CRPS, CCE, MAE, and the p-value of calibration given the input.
    """

    said: str
    fitted_on: int
    rows: int
    table: tuple[PreviewRow, ...]

    @property
    def improves(self) -> bool:
        """Whether there is a correction, and some number falls by more than chance."""
        return bool(self.said) and any(row.is_better for row in self.table)

    @property
    def harms(self) -> bool:
        """Whether a proper score gets worse by more than chance, or by what no correction should cost in any row."""
        proper = [row for row in self.table if row.name in _PROPER]
        return any(row.is_worse or row.then > row.now + MOST_LOST * max(1.0, abs(row.now)) for row in proper)

    @property
    def judgement(self) -> str:
        """See ``judgement``."""
        return judgement(self.table)

    def as_plain(self) -> dict[str, object]:
        """As JSON values."""
        return {**vars(self), "table": [vars(row) for row in self.table]}


FEWEST_ROWS = 200
"""Rows below which places as small as segments say nothing."""

MOST_ROWS = 40_000
"""Rows, drawn at random, beyond which more would cost time and find faults too small to matter."""


def searched_rows(count: int, seed: int = 0) -> Array:
    """Which of ``count`` rows segments are looked for in, in random order: 40,000 of more rows."""
    return np.asarray(stream(seed, "halves of weak segments").permutation(count)[:MOST_ROWS])


def weak_segments(features: pd.DataFrame, rows: RowsRead, cce: Array, expected: Array) -> list[Segment]:
    """The segments in which the version is wrong, the most wrong first; none where none is.

    Of a version that is true, 95 of 100 splits have none.

    Args:
        features: named columns of numbers, truth values or words, (n, k); missing values are allowed.
        rows: the n rows.
        cce: CCE at the rows, (n,).
        expected: what it would be there if the version were true, (n,).
    """
    if len(rows) < FEWEST_ROWS:
        return []
    columns = [_feature(str(name), features[name]) for name in features.columns]
    kind, found = rows.kind, []
    whole = {each.name: ends for each in columns if (ends := _whole_ends(each)) is not None}
    for segment in faulty_segments(columns, SearchedRows.of(rows.pit, rows.jumps, rows.blocks), level=LEVEL):
        chosen, name = segment.rows, ", ".join(_range(each, whole.get(each.feature)) for each in segment.ranges)
        judged = segment.judged_by
        reading = kind.read(rows, judged)
        if kind.is_off(reading):
            sizes = None if rows.targets is None else rows.targets[judged]
            excess = excess_over(float(cce[chosen].mean()), float(expected[chosen].mean()))
            finding = kind.finding(reading, name, "", sizes)
            finding = replace(finding, rows=len(chosen), share=len(chosen) / len(rows))
            gain = 0.0 if rows.targets is None else rows.targets.gain_of_part(chosen)
            found.append(Segment(name, finding, segment.p_value, excess, _ranges(segment), gain))
    return sorted(found, key=lambda segment: -segment.finding.weight)


def is_numeric(values: pd.Series[Any]) -> bool:
    """Whether a column holds numbers, rather than truth values or words."""
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _feature(name: str, column: pd.Series) -> Feature:
    if is_numeric(column):
        return Feature(name, column.to_numpy(np.float64, na_value=np.nan))
    return Feature(name, column.astype("string").fillna("missing").to_numpy(str))


def _whole_ends(feature: Feature) -> tuple[float, float] | None:
    """The least and the largest value of a column of whole numbers; None of others."""
    if feature.values.dtype.kind != "f":
        return None
    known = feature.values[np.isfinite(feature.values)]
    return (float(known.min()), float(known.max())) if len(known) and np.all(known == np.floor(known)) else None


def _range(part: Range, whole: tuple[float, float] | None) -> str:
    if part.word is not None:
        return f"{part.feature} is {'not ' if part.is_not else ''}{part.word}"
    low, high = part.above, part.up_to
    if whole is not None:  # "2 or more", not "above 1.5"
        low, high = np.floor(low) + 1.0, np.floor(high)
        if max(low, whole[0]) == min(high, whole[1]):
            return f"{part.feature} is {max(low, whole[0]):.6g}"
        if np.isinf(high):
            return f"{part.feature} from {low:.6g}"
    if np.isinf(low):
        return f"{part.feature} up to {high:.3g}" if whole is None else f"{part.feature} up to {high:.6g}"
    if np.isinf(high):
        return f"{part.feature} above {low:.3g}"
    return f"{part.feature} {low:.3g} to {high:.3g}" if whole is None else f"{part.feature} {low:.6g} to {high:.6g}"


def _ranges(segment: FoundSegment) -> tuple[tuple[str, float, float], ...]:
    """See ``Segment.ranges``."""
    return tuple(
        (part.feature, part.above, part.up_to)
        if part.word is None
        else (f"{part.feature} = {part.word}", *((-np.inf, 0.5) if part.is_not else (0.5, np.inf)))
        for part in segment.ranges
    )
