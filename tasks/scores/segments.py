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
from congruence.kernels.conditional_calibration.counts import CountRows, JumpScores, count_reading
from congruence.kernels.conditional_calibration.coverage import LevelRows, level_reading
from congruence.kernels.conditional_calibration.reading import group_reading
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
from congruence.tasks.scores.sizes import TargetRows
from congruence.tasks.sentences.calibration import LEVEL, NEGLIGIBLE
from congruence.tasks.sentences.counts import count_finding
from congruence.tasks.sentences.findings import Finding, group_finding
from congruence.tasks.sentences.levels import level_finding

FEWEST_ROWS = 200
"""Rows below which places as small as segments say nothing."""

MOST_ROWS = 40_000
"""Rows, drawn at random, beyond which more would cost time and find faults too small to matter."""


@dataclass(frozen=True)
class Segment:
    """A range of features in which the version is wrong.

    Attributes:
        name: "age up to 30, area from 3".
        finding: what is wrong there. The rows were chosen for their fault, so that it is rather smaller than it looks.
        p_value: of the whole search.
        excess: the mean CCE of its rows beyond what is expected of a true version, see ``excess_over``.
        ranges: the same as ``name``: (column, above, up to), of words "column = word" with the bounds .5.
    """

    name: str
    finding: Finding
    p_value: float
    excess: float
    ranges: tuple[tuple[str, float, float], ...] = ()

    @property
    def place(self) -> str:
        """The slice that it is, if it is one: "area c"."""
        (column, equals, word), low = self.ranges[0][0].partition(" = "), self.ranges[0][1]
        return f"{column} {word}" if equals and len(self.ranges) == 1 and low > 0.0 else ""


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
    targets: TargetRows | None = None,
    members: int | None = None,
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
        targets: the rows in the targets' own unit.
        members: of an ensemble, by whose ranks its law is read.
    """
    if len(pit) < FEWEST_ROWS:
        return []
    columns = [_feature(str(name), features[name]) for name in features.columns]

    found = []
    for segment in faulty_segments(columns, SearchedRows.of(pit, jumps, blocks), level=LEVEL):
        rows, name = segment.rows, _name(segment)
        finding = None
        if counts is not None:
            of_counts = count_reading(counts, rows, blocks)
            finding = count_finding(of_counts, name) if of_counts.is_off else None
        elif levels is not None:
            of_levels = level_reading(levels, rows, blocks)
            finding = level_finding(of_levels, name) if of_levels.is_off else None
        else:
            of_scores = group_reading(pit if jumps is None else jumps, rows, blocks=blocks, members=members)
            if abs(of_scores.strength) >= NEGLIGIBLE:
                finding = group_finding(of_scores, name, sizes=None if targets is None else targets[rows])
        if finding is not None:
            excess = excess_over(float(cce[rows].mean()), float(expected[rows].mean()))
            found.append(Segment(name, finding, segment.p_value, excess, _ranges(segment)))
    return sorted(found, key=lambda segment: -segment.finding.weight)


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
