"""Weak segments: ranges of features in which a version is wrong in another way than elsewhere, down to ten rows.

They are looked for by the PIT scores (``kernels.conditional_calibration.segments``). CCE itself would not do: the
values of neighbours rest on the same targets. The p-value is of the whole search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.counts import CountReading, CountRows, JumpScores, count_reading
from congruence.kernels.conditional_calibration.coverage import LevelReading, LevelRows, level_reading
from congruence.kernels.conditional_calibration.reading import GroupReading, group_reading
from congruence.kernels.conditional_calibration.segments import (
    Feature,
    FoundSegment,
    Range,
    SearchedRows,
    faulty_segments,
)
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.engine.results import excess_over
from congruence.kernels.streams import stream
from congruence.tasks.sentences.calibration import LEVEL, NEGLIGIBLE, reading_clause, short_name
from congruence.tasks.sentences.counts import count_clause, count_fault
from congruence.tasks.sentences.levels import level_clause, level_fault

FEWEST_ROWS = 200
"""Rows below which places as small as segments say nothing."""

MOST_ROWS = 40_000
"""Rows, drawn at random, beyond which more would cost time and find faults too small to matter."""

Reading = GroupReading | CountReading | LevelReading


@dataclass(frozen=True)
class Segment:
    """A range of features in which the version is wrong.

    Attributes:
        name: "age up to 30, area from 3".
        reading: of its rows; of counts with many zeros, what is observed and expected; of predicted quantiles, what
            they cover. The rows were chosen for their fault, so that it is rather smaller than it looks.
        p_value: of the whole search.
        excess: the mean CCE of its rows beyond what is expected of a true version, see ``excess_over``.
        ranges: the same as ``name``: (column, above, up to), of words "column = word" with the bounds .5.
    """

    name: str
    reading: Reading
    p_value: float
    excess: float
    ranges: tuple[tuple[str, float, float], ...] = ()

    @property
    def place(self) -> str:
        """The slice that it is, if it is one: "area c"."""
        (column, equals, word), low = self.ranges[0][0].partition(" = "), self.ranges[0][1]
        return f"{column} {word}" if equals and len(self.ranges) == 1 and low > 0.0 else ""

    @property
    def weight(self) -> float:
        """What the fault weighs: by its size, and by the share of the rows."""
        reading = self.reading
        return reading.strength**2 * reading.share if isinstance(reading, GroupReading) else reading.size

    @property
    def fault(self) -> str:
        """In two to four words."""
        if isinstance(self.reading, CountReading):
            return count_fault(self.reading)
        if isinstance(self.reading, LevelReading):
            return level_fault(self.reading)
        return short_name(self.reading.dominant, self.reading.strength)

    @property
    def sentence(self) -> str:
        """With its size and 95 % interval."""
        if isinstance(self.reading, CountReading):
            return count_clause(self.reading)
        if isinstance(self.reading, LevelReading):
            return level_clause(self.reading)
        return reading_clause(self.reading)


def searched_rows(count: int, seed: int = 0) -> Array:
    """Which of ``count`` rows segments are looked for in, in random order: 40,000 of more rows."""
    return np.asarray(stream(seed, "halves of weak segments").permutation(count)[:MOST_ROWS])


def weak_segments(
    features: pd.DataFrame,
    pit: Array,
    cce: Array,
    expected: Array,
    counts: CountRows | None = None,
    jumps: JumpScores | None = None,
    levels: LevelRows | None = None,
    blocks: DependentBlocks | None = None,
) -> list[Segment]:
    """The segments in which the version is wrong, the most wrong first; none where none is.

    Of a version that is true, 95 of 100 splits have none.

    Args:
        features: named columns of numbers, truth values or words, (n, k); missing values are allowed.
        pit: PIT values, (n,).
        cce: CCE at the rows, (n,).
        expected: what it would be there if the version were true, (n,).
        counts: the rows, where they are counts with many zeros, which are read in their own terms.
        jumps: scores of the rows, where they are counts of any kind, or lie in cells that the version states: random
            numbers hide what few claims say.
        levels: the rows of a version that states quantiles, which are read by what these cover.
        blocks: of the rows, where they depend on each other.
    """
    if len(pit) < FEWEST_ROWS:
        return []
    columns = [_feature(str(name), features[name]) for name in features.columns]

    def read(rows: Array) -> Reading:
        if counts is not None:
            return count_reading(counts, rows, blocks)
        if levels is not None:
            return level_reading(levels, rows, blocks)
        return group_reading(pit if jumps is None else jumps, rows, blocks=blocks)

    found = []
    for segment in faulty_segments(columns, SearchedRows.of(pit, jumps, blocks), level=LEVEL):
        reading = read(segment.rows)
        if _is_worth_naming(reading):
            excess = excess_over(float(cce[segment.rows].mean()), float(expected[segment.rows].mean()))
            found.append(Segment(_name(segment), reading, segment.p_value, excess, _ranges(segment)))
    return sorted(found, key=lambda segment: -segment.weight)


def _is_worth_naming(reading: Reading) -> bool:
    return reading.is_off if isinstance(reading, CountReading | LevelReading) else abs(reading.strength) >= NEGLIGIBLE


def is_numeric(values: pd.Series[Any]) -> bool:
    """Whether a column holds numbers, rather than truth values or words."""
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _feature(name: str, column: pd.Series) -> Feature:
    if is_numeric(column):
        return Feature(name, column.to_numpy(np.float64, na_value=np.nan))
    return Feature(name, column.astype("string").fillna("missing").to_numpy(str))


def _name(segment: FoundSegment) -> str:
    return ", ".join(_range(each) for each in segment.ranges)


def _range(part: Range) -> str:
    if part.word is not None:
        return f"{part.feature} is {'not ' if part.is_not else ''}{part.word}"
    if np.isinf(part.above):
        return f"{part.feature} up to {part.up_to:.3g}"
    if np.isinf(part.up_to):
        return f"{part.feature} above {part.above:.3g}"
    return f"{part.feature} {part.above:.3g} to {part.up_to:.3g}"


def _ranges(segment: FoundSegment) -> tuple[tuple[str, float, float], ...]:
    """See ``Segment.ranges``."""
    return tuple(
        (part.feature, part.above, part.up_to)
        if part.word is None
        else (f"{part.feature} = {part.word}", *((-np.inf, 0.5) if part.is_not else (0.5, np.inf)))
        for part in segment.ranges
    )
