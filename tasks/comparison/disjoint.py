"""Two versions on different rows: stored predictions of versions that were in use one after the other, or side by side.

Nothing cancels as it does on the same rows, so the interval of a difference is the wider one of two independent
estimates. Each row (or block of rows that depend on each other) contributes to its own version's estimate, and the
difference is a sum of all of these contributions: its standard error is sqrt(SE_1^2 + SE_2^2), and skewed contributions
lean the interval as in ``kernels.dependence.sums_of_blocks``. CCE is left out: each has a floor of its own rows, which
does not cancel either.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.sums_of_blocks import SumOfBlocks, without_each
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.comparison.differences import MetricDifference, pair_blocks
from congruence.tasks.scores.metrics.metric import Metric
from congruence.tasks.scores.metrics.registry import METRICS, ROW_WEIGHT


def disjoint_differences(first: ComparedVersion, second: ComparedVersion) -> dict[str, MetricDifference]:
    """The metrics of two versions on rows that they do not share, as far as both have them.

    These are functions of means over points, and the effects of calibration given the input.

    Raises:
        TooFewBlocksError: the rows of a version depend on each other in too few blocks.
    """
    found = {}
    valid = [version.scores["valid"].to_numpy(bool) for version in (first, second)]
    labels = [_labels(version, rows) for version, rows in zip((first, second), valid, strict=True)]
    for name, metric in METRICS.items():
        parts = []
        for version, rows, blocks in zip((first, second), valid, labels, strict=True):
            part = _contributions(version, name, metric, rows, blocks)
            if part is not None:
                parts.append(part)
        if len(parts) == 2:
            (a, one), (b, two) = parts
            known = SumOfBlocks.of(np.concatenate([one, -two]))
            low, high = known.interval(a - b)
            count = sum(int(each.sum()) for each in valid)
            found[name] = MetricDifference(a, b, a - b, low, high, known.p_value(a - b), count)
    return found


def shared_keys(first: ComparedVersion, second: ComparedVersion) -> int:
    """How many keys both versions scored."""
    one, two = (version.scores["key"].to_numpy()[version.scores["valid"].to_numpy(bool)] for version in (first, second))
    return int(pd.Index(one).isin(pd.Index(two)).sum())


def _labels(version: ComparedVersion, rows: Array) -> Array:
    """The number of each valid row's block: a row by itself where rows are independent."""
    blocks = pair_blocks(version, version, rows)
    return np.arange(int(rows.sum())) if blocks is None else np.asarray(blocks.labels)


def _contributions(
    version: ComparedVersion, name: str, metric: Metric, rows: Array, labels: Array
) -> tuple[float, Array] | None:
    """A metric of one version, and what each of its blocks contributes to it beyond the mean; None without one."""
    scores = version.scores
    if metric.influence:
        if metric.influence not in scores or name not in version.metrics:
            return None
        influence = scores[metric.influence].to_numpy(np.float64)[rows]
        sums = np.bincount(labels, influence) / len(influence)
        return version.metrics[name].value, sums - sums.mean()
    if not metric.is_compared or metric.column not in scores:
        return None
    values = scores[metric.column].to_numpy(np.float64)[rows]
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    weights = scores[ROW_WEIGHT].to_numpy(np.float64)[rows] if ROW_WEIGHT in scores else np.ones(len(values))
    columns = metric.prepared(values)
    columns = columns[:, None] if columns.ndim == 1 else columns
    sums = np.stack([np.bincount(labels, column * weights) for column in columns.T], axis=1)
    counts = np.bincount(labels, weights)
    value = float(metric.reduced(sums.sum(axis=0) / counts.sum()))
    apart = np.asarray(metric.reduced(without_each(sums, counts)))
    return value, (apart.mean() - apart) * (len(apart) - 1.0) / len(apart)
