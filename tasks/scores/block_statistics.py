"""Statistics of a version's scores, added up block by block: what one needs of a row is made for a block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.decomposition import marginal_crps
from congruence.kernels.distributions import Distribution
from congruence.kernels.resampling.aggregation import ScoreStatistics, sliced_statistics
from congruence.kernels.streams import hashed_keys
from congruence.tasks.scores.summary import mean_columns, slice_groups, slice_rows

BLOCK_ROWS = 2**16


class ScoreBlocks:
    """The columns whose means are metrics (``mean_columns``), of which there are several for each score.

    Args:
        requested: the metrics.
        points: the scores of the rows by column, (v,) each.
        predictive: v laws.
        targets: (v,) or (v, q).
        keys: numbers that stand for the rows' keys, (v,).
    """

    def __init__(
        self,
        requested: tuple[str, ...],
        points: Mapping[str, Array],
        predictive: Distribution,
        targets: Array,
        keys: Array,
    ) -> None:
        self._requested, self._predictive, self._targets, self._keys = requested, predictive, targets, keys
        self._points = dict(points)
        if "crps" in points and "crps" in requested and targets.ndim == 1:
            self._points["marginal_crps"] = marginal_crps(targets)  # of all rows, not of a block's

    def __iter__(self) -> Iterator[tuple[slice, dict[str, Array]]]:
        for start in range(0, len(self._targets), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            points = {name: values[rows] for name, values in self._points.items()}
            yield rows, mean_columns(self._requested, points, self._predictive[rows], self._targets[rows])

    def statistics(self) -> ScoreStatistics:
        """Of all rows."""
        return reduce(add, (ScoreStatistics.of(columns, keys=self._keys[rows]) for rows, columns in self))

    def slice_table(self, labels: pd.DataFrame, floor_share: float = 1.0) -> pd.DataFrame:
        """``summary.slice_table`` of the labels (v, slices)."""
        groups = {str(name): slice_groups(labels[name]) for name in labels.columns}
        found: dict[str, dict[Any, ScoreStatistics]] = {name: {} for name in groups}
        for rows, columns in self if groups else ():
            for name, (codes, _) in groups.items():
                merged = found[name]
                for code, part in sliced_statistics(columns, codes[rows], keys=self._keys[rows]).items():
                    merged[code] = merged[code] + part if code in merged else part
        table = [
            row
            for name, (_, values) in groups.items()
            for row in slice_rows(name, values, dict(sorted(found[name].items())), floor_share)
        ]
        return pd.DataFrame(table)


def hashed_by_block(keys: pd.Series[Any]) -> Array:
    """Numbers that stand for keys, (n,): texts are made of a block at a time."""
    parts = [hashed_keys(keys.iloc[start : start + BLOCK_ROWS].to_numpy()) for start in range(0, len(keys), BLOCK_ROWS)]
    return np.concatenate(parts) if parts else hashed_keys(keys.to_numpy())
