"""Statistics of a version's scores, added up block by block: what one needs of a row is made for a block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import add
from typing import Any

import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.resampling.aggregation import ScoreStatistics, sliced_statistics
from congruence.tasks.scores.summary import mean_columns, slice_groups, slice_rows, whole_columns

BLOCK_ROWS = 2**16


class ScoreBlocks:
    """The columns whose means are metrics (``mean_columns``), of which there are several for each score.

    Args:
        requested: the metrics.
        points: the scores of the rows by column, (v,) each.
        predictive: v laws.
        targets: (v,) or (v, q).
        keys: numbers that stand for the rows' keys, (v,).
        weights: what each row counts in means, (v,); equal by default.
    """

    def __init__(
        self,
        requested: tuple[str, ...],
        points: Mapping[str, Array],
        predictive: Distribution,
        targets: Array,
        keys: Array,
        weights: Array | None = None,
    ) -> None:
        self._requested, self._predictive, self._targets, self._keys = requested, predictive, targets, keys
        self._weights = weights
        # What needs all rows, not a block's.
        self._points = {**points, **whole_columns(requested, points, predictive, targets, weights)}

    def __iter__(self) -> Iterator[tuple[slice, dict[str, Array]]]:
        for start in range(0, len(self._targets), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            points = {name: values[rows] for name, values in self._points.items()}
            yield rows, mean_columns(self._requested, points, self._predictive[rows], self._targets[rows])

    def statistics(self) -> ScoreStatistics:
        """Of all rows."""
        return reduce(
            add,
            (
                ScoreStatistics.of(columns, keys=self._keys[rows], weights=self._weights_of(rows))
                for rows, columns in self
            ),
        )

    def _weights_of(self, rows: slice) -> Array | None:
        return None if self._weights is None else self._weights[rows]

    def slice_table(self, labels: pd.DataFrame, floor_share: float = 1.0) -> pd.DataFrame:
        """The mean-type metrics of each value of each slice column: columns slice, value, rows and one per metric.

        A numeric column of more than 30 values is cut into tenths; of another's values the 29 commonest are kept.

        Args:
            labels: (v, slices).
            floor_share: see ``mean_metrics``; a slice's expected CCE is taken to be the same share of its noise floor.
        """
        groups = {str(name): slice_groups(labels[name]) for name in labels.columns}
        found: dict[str, dict[Any, ScoreStatistics]] = {name: {} for name in groups}
        for rows, columns in self if groups else ():
            for name, (codes, _) in groups.items():
                merged = found[name]
                weights = self._weights_of(rows)
                for code, part in sliced_statistics(
                    columns, codes[rows], keys=self._keys[rows], weights=weights
                ).items():
                    merged[code] = merged[code] + part if code in merged else part
        table = [
            row
            for name, (_, values) in groups.items()
            for row in slice_rows(name, values, dict(sorted(found[name].items())), floor_share)
        ]
        return pd.DataFrame(table)
