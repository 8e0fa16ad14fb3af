"""Weak segments: ranges of features in which a version is wrong, found on one half of the rows, shown on the other.

A shallow tree looks for ranges in which the PIT scores have other means than 0. CCE itself would not do: the values of
neighbours rest on the same targets, so a half that was held out would not be another sample. PIT values of a version
that is true are independent uniforms at any inputs: the p-values of the held-out rows are exact, and Benjamini and
Hochberg's false discovery rate runs over the leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.tree import DecisionTreeRegressor

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit_scores import ORDERS, pit_scores
from congruence.kernels.conditional_calibration.counts import CountReading, CountRows, JumpScores, count_readings
from congruence.kernels.conditional_calibration.coverage import LevelReading, LevelRows, level_readings
from congruence.kernels.conditional_calibration.reading import GroupReading, group_readings
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.dependence.hold_out import halves_of_blocks
from congruence.kernels.engine.results import excess_over
from congruence.kernels.streams import stream
from congruence.tasks.scores.summary import is_numeric
from congruence.tasks.sentences.calibration import LEVEL, NEGLIGIBLE, reading_clause, short_name
from congruence.tasks.sentences.counts import count_clause, count_fault
from congruence.tasks.sentences.levels import level_clause, level_fault

DEPTH, LEAVES = 3, 8
FEWEST_ROWS = 400
"""Rows below which halves are too small to find anything."""

MOST_ROWS = 40_000
"""Rows, drawn at random, beyond which more would cost time and find faults too small to matter."""

_GAIN = 15.0
"""Chi-squared of the four mean scores that a question on counts must gain: chance seldom does, and few claims are soon
cut into pieces that show nothing."""

_TINY = 1e-12
_LARGEST = 1e30  # of single precision, in which sums of all rows must not overflow: a tree takes no infinite numbers
_FEWEST_IN_LEAF, _SHARE_IN_LEAF = 50, 0.03


@dataclass(frozen=True)
class Segment:
    """A range of features in which the version is wrong.

    Attributes:
        name: "age up to 30, area from 3".
        reading: of its held-out rows; of counts with many zeros, what is observed and expected; of predicted quantiles,
            what they cover.
        q_value: over the segments that were tried.
        excess: the mean CCE of its held-out rows beyond what is expected of a true version, see ``excess_over``.
        ranges: the same as ``name``: (column, above, up to), of words "column = word" with the bounds .5.
    """

    name: str
    reading: GroupReading | CountReading | LevelReading
    q_value: float
    excess: float
    ranges: tuple[tuple[str, float, float], ...] = ()

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
    """The segments in which the version is wrong on held-out rows, the most wrong first; none where none is.

    They are found on the first half of the rows and judged on the second. Of a version that is true, 95 of 100 splits
    have none.

    Args:
        features: named columns of rows in random order (``searched_rows``), numbers, truth values or words, (n, k);
            missing values are allowed.
        pit: PIT values, (n,).
        cce: CCE at the rows, (n,).
        expected: what it would be there if the version were true, (n,).
        counts: the rows, where they are counts with many zeros, which are read in their own terms.
        jumps: scores of the rows, where they are counts of any kind, or lie in cells that the version states: random
            numbers hide what few claims say.
        levels: the rows of a version that states quantiles, which are read by what these cover.
        blocks: of the rows, where they depend on each other: halves are of whole blocks.
    """
    columns = _columns(features)
    if len(pit) < FEWEST_ROWS or columns.empty:
        return []
    first, second = np.array_split(np.arange(len(pit)), 2)
    held_blocks = None
    if blocks is not None:
        first, second = halves_of_blocks(blocks).parts
        held_blocks = blocks.of_rows(second)
    table = columns.to_numpy(np.float32)
    fewest = max(_FEWEST_IN_LEAF, int(_SHARE_IN_LEAF * len(first)))
    tree = DecisionTreeRegressor(
        max_depth=DEPTH,
        max_leaf_nodes=LEAVES,
        min_samples_leaf=fewest,
        ccp_alpha=0.0 if jumps is None else _GAIN / (len(ORDERS) * len(first)),
        random_state=0,
    )
    if jumps is None:
        scores = pit_scores(pit[first])
    else:  # of sparse counts none is of variance 1
        scores = jumps[first].values / np.maximum(jumps[first].values.std(axis=0), _TINY)
    tree.fit(table[first], scores)
    if tree.tree_.node_count == 1:
        return []
    ranges = _leaf_ranges(tree, list(columns.columns))
    names = {leaf: ", ".join(_range(*each) for each in parts) for leaf, parts in ranges.items()}
    of_name = {names[leaf]: parts for leaf, parts in ranges.items()}
    leaves = tree.apply(table[second])
    held_out = {name: leaves == leaf for leaf, name in names.items()}
    readings: Mapping[str, GroupReading | CountReading | LevelReading]
    if counts is not None:
        readings, q_values = count_readings(counts[second], held_out, held_blocks)
    elif levels is not None:
        readings, q_values = level_readings(levels[second], held_out, held_blocks)
    else:
        readings, q_values = group_readings((pit if jumps is None else jumps)[second], held_out, held_blocks)
    own, if_true = cce[second], expected[second]
    excess = {
        name: excess_over(float(own[leaves == leaf].mean()), float(if_true[leaves == leaf].mean()))
        for leaf, name in names.items()
        if name in readings
    }
    found = [
        Segment(name, reading, q_values[name], excess[name], of_name[name])
        for name, reading in readings.items()
        if q_values[name] <= LEVEL and _is_worth_naming(reading)
    ]
    return sorted(found, key=lambda segment: -_weight(segment.reading))


def _is_worth_naming(reading: GroupReading | CountReading | LevelReading) -> bool:
    return reading.is_off if isinstance(reading, CountReading | LevelReading) else abs(reading.strength) >= NEGLIGIBLE


def _weight(reading: GroupReading | CountReading | LevelReading) -> float:
    return reading.size if isinstance(reading, CountReading | LevelReading) else reading.strength**2 * reading.share


def _columns(features: pd.DataFrame) -> pd.DataFrame:
    """Numbers as they are, words as one column of 0 and 1 for each, named ``column = word``."""
    parts: dict[str, Any] = {}
    for name in features.columns:
        column = features[name]
        if is_numeric(column):
            numbers = column.to_numpy(float, na_value=np.nan)
            parts[str(name)] = np.clip(numbers, -_LARGEST, _LARGEST).astype(np.float32)
        else:
            words = column.astype("string").fillna("missing")
            parts |= {f"{name} = {word}": (words == word).to_numpy(np.float32) for word in sorted(words.unique())}
    frame = pd.DataFrame(parts, index=features.index)
    return frame[[name for name in frame if len(frame[name].unique()) > 1]]


def _leaf_ranges(tree: DecisionTreeRegressor, names: list[str]) -> dict[int, tuple[tuple[str, float, float], ...]]:
    """The ranges that lead to each leaf, in the order of the questions, each feature once."""
    inner = tree.tree_
    found: dict[int, tuple[tuple[str, float, float], ...]] = {}
    open_nodes: list[tuple[int, dict[str, tuple[float, float]]]] = [(0, {})]
    while open_nodes:
        node, ranges = open_nodes.pop()
        left, right = int(inner.children_left[node]), int(inner.children_right[node])
        if left == right:
            found[node] = tuple((name, *ends) for name, ends in ranges.items())
            continue
        name, threshold = names[int(inner.feature[node])], float(inner.threshold[node])
        low, high = ranges.get(name, (-np.inf, np.inf))
        open_nodes.append((left, ranges | {name: (low, min(high, threshold))}))
        open_nodes.append((right, ranges | {name: (max(low, threshold), high)}))
    return found


def _range(name: str, low: float, high: float) -> str:
    if " = " in name:
        column, _, word = name.partition(" = ")
        return f"{column} is {word}" if low > -np.inf else f"{column} is not {word}"
    if low == -np.inf:
        return f"{name} up to {high:.3g}"
    return f"{name} above {low:.3g}" if high == np.inf else f"{name} {low:.3g} to {high:.3g}"
