"""Weak segments: ranges of features in which a version is wrong in another way than elsewhere, down to ten rows.

They are looked for by the PIT scores (``kernels.conditional_calibration.segments``). CCE itself would not do: the
values of neighbours rest on the same targets. The p-value is of the whole search.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.segments import (
    Feature,
    FoundSegment,
    Range,
    SearchedRows,
    faulty_segments,
)
from congruence.kernels.engine.results import excess_over
from congruence.kernels.streams import stream
from congruence.tasks.scores.rows_read import RowsRead
from congruence.tasks.scores.wrong import Segment
from congruence.tasks.sentences.calibration import LEVEL

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
        reading = kind.read(rows, chosen)
        if kind.is_off(reading):
            sizes = None if rows.targets is None else rows.targets[chosen]
            excess = excess_over(float(cce[chosen].mean()), float(expected[chosen].mean()))
            finding = kind.finding(reading, name, "", sizes)
            found.append(Segment(name, finding, segment.p_value, excess, _ranges(segment)))
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
