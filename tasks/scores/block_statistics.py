"""Metrics that are made of means over rows: values, intervals and slices from sums that are added up block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.resampling.aggregation import Estimate, ScoreStatistics, sliced_statistics
from congruence.tasks.scores.evaluation import MetricValue
from congruence.tasks.scores.metrics.metric import Metric
from congruence.tasks.scores.metrics.registry import METRICS, asked_for, shown
from congruence.tasks.scores.metrics.rows import Rows
from congruence.tasks.scores.summary import slice_groups

BLOCK_ROWS = 2**16

Means = Mapping[str, Any]


class MeanMetrics:
    """The metrics of a version that are made of means over its rows, of which there are several for each score.

    What is meant is made for a block of rows at a time.

    Args:
        requested: what the evaluation was asked for.
        rows: all of them.
        keys: numbers that stand for the rows' keys, (v,).
    """

    def __init__(self, requested: Sequence[str], rows: Rows, keys: Array) -> None:
        self._metrics = [metric for metric in asked_for(requested) if metric.is_of_means]
        self._rows, self._keys = rows, keys
        self._terms: dict[str, list[str]] = {}  # by metric what its terms are called, the same in every block

    def __iter__(self) -> Iterator[tuple[slice, dict[str, Array]]]:
        for start in range(0, len(self._keys), BLOCK_ROWS):
            part = slice(start, start + BLOCK_ROWS)
            rows = self._rows.block(part)
            columns: dict[str, Array] = {}
            for metric in self._metrics:
                if (terms := metric.terms_of(rows)) is not None:
                    each = terms.reshape(len(terms), -1).T
                    names = [metric.name] if len(each) == 1 else [f"{metric.name} {j}" for j in range(len(each))]
                    self._terms[metric.name] = names
                    columns |= zip(names, each, strict=True)
            yield part, columns

    def statistics(self) -> ScoreStatistics:
        """Returns the sums of what is meant, of all rows."""
        parts = (
            ScoreStatistics.of(columns, keys=self._keys[part], weights=self._weights_of(part)) for part, columns in self
        )
        return reduce(add, parts)

    def values(
        self, seed: int, blocks: DependentBlocks | None = None, *, has_intervals: bool = True
    ) -> dict[str, MetricValue]:
        """Returns every metric but those that are measured, with its 95 % interval.

        Points are independent, unless ``blocks`` of rows that depend on each other were the keys; these are too few for
        intervals without ``has_intervals``. Nor are there any where a block or a few weights decide.
        """
        statistics = self.statistics()
        refused = statistics.too_few(blocks) if statistics.counts.any() else ""
        made = {metric.name: metric for metric in self._metrics if metric.name in self._terms and not metric.measured}
        if not made:
            return {}
        functions = {name: self._function(metric) for name, metric in made.items()}
        estimates = statistics.estimates(functions)
        for name, metric in made.items():
            if metric.centers:
                centers = dict(zip(self._terms[name], metric.centers, strict=True))
                estimates[name] = statistics.mean_absolute_deviation(centers, seed=seed, blocks=blocks)
        found = {
            name: _value(made[name], estimate) for name, estimate in estimates.items() if np.isfinite(estimate.value)
        }
        if not has_intervals or refused:
            found = {name: MetricValue(value.value) for name, value in found.items()}
        if statistics.weighted is not None:
            found["effective_rows"] = MetricValue(statistics.effective_rows)
        if blocks is not None:
            found["largest_block"] = MetricValue(statistics.largest)
        return found

    def slice_table(self, labels: pd.DataFrame) -> pd.DataFrame:
        """Returns the metrics of each value of each slice column: columns slice, value, rows and one per metric.

        A numeric column of more than 30 values is cut into tenths; of another's values the 29 commonest are kept. A
        slice's expected CCE is taken to be the same share of its noise floor as that of all rows.

        Args:
            labels: (v, slices).
        """
        groups = {str(name): slice_groups(labels[name]) for name in labels.columns}
        found: dict[str, dict[Any, ScoreStatistics]] = {name: {} for name in groups}
        for part, columns in self if groups else ():
            for name, (codes, _) in groups.items():
                merged = found[name]
                for code, sums in sliced_statistics(
                    columns, codes[part], keys=self._keys[part], weights=self._weights_of(part)
                ).items():
                    merged[code] = merged[code] + sums if code in merged else sums
        table = [
            {"slice": name, "value": str(values[code]), **self._of_slice(statistics)}
            for name, (_, values) in groups.items()
            for code, statistics in sorted(found[name].items())
            if statistics.counts.any()  # some of its rows count
        ]
        return pd.DataFrame(table)

    def _of_slice(self, statistics: ScoreStatistics) -> dict[str, float]:
        means = statistics.means()
        found = {name: float(self._function(METRICS[name])(means)) for name in shown("slices") if name in self._terms}
        effective = {} if statistics.weighted is None else {"effective_rows": statistics.effective_rows}
        return {"rows": statistics.rows, **effective, **found}

    def _function(self, metric: Metric) -> Callable[[Means], Any]:
        """The metric as a function of the means by name."""
        terms = self._terms[metric.name]
        return lambda means: metric.reduced(np.stack([means[name] for name in terms], axis=-1))

    def _weights_of(self, part: slice) -> Array | None:
        return None if self._rows.weights is None else self._rows.weights[part]


def _value(metric: Metric, estimate: Estimate) -> MetricValue:
    if not (np.isfinite(estimate.low) and np.isfinite(estimate.high)):
        return MetricValue(estimate.value)
    bottom, top = metric.bounds
    # Where all points have the same score, rounding alone could put the value outside.
    low, high = min(max(estimate.low, bottom), estimate.value), max(min(estimate.high, top), estimate.value)
    return MetricValue(estimate.value, low, high)
