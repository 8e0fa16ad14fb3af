"""Two versions on different rows: stored predictions of versions that were in use one after the other, or side by side.

Nothing cancels as it does on the same rows, so the interval of a difference is the wider one of two independent
estimates. Each row (or block of rows that depend on each other) contributes to its own version's estimate, and the
difference is a sum of all of these contributions: its standard error is sqrt(SE_1^2 + SE_2^2), and skewed contributions
lean the interval as in ``kernels.dependence.sums_of_blocks``.

The mean CCE of few rows is larger than that of many, whatever the version: E|e|^2 = |b|^2 + E|s|^2, and the noise s
does not cancel. So each version's own noise, known from its residuals, is taken off its mean square, and what is
compared is the root of what is left, |b|, with the sign of what is left: chance leaves less than 0 of a true version.
The ends of its interval come from those of the two squares, which are not symmetric about the roots (method of variance
estimates recovery; Zou and Donner 2008).
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import SumOfBlocks, two_sided_p_value, without_each
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.comparison.differences import CCE, REACH, SQUARED_CCE, MetricDifference, pair_blocks
from congruence.tasks.scores.metrics.metric import Metric
from congruence.tasks.scores.metrics.registry import METRICS, ROW_WEIGHT


def disjoint_differences(first: ComparedVersion, second: ComparedVersion) -> dict[str, MetricDifference]:
    """The metrics of two versions on rows that they do not share, as far as both have them.

    These are CCE, functions of means over points, and the effects of calibration given the input.

    Raises:
        TooFewBlocksError: the rows of a version depend on each other in too few blocks.
    """
    found = _cce_differences(first, second)
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


def _cce_differences(first: ComparedVersion, second: ComparedVersion) -> dict[str, MetricDifference]:
    """The mean CCE^2 beyond the noise of each one's rows, and its root; none where an evaluation lacks the noise."""
    squares = [each for each in map(_square_beyond_noise, (first, second)) if each is not None]
    if len(squares) < 2:
        return {}
    rows, found = first.split.valid_rows + second.split.valid_rows, {}
    for name, power in ((SQUARED_CCE, 1.0), (CCE, 0.5)):
        (a, a_low, a_high), (b, b_low, b_high) = ((np.sign(each) * np.abs(each) ** power).tolist() for each in squares)
        low, high = a - b - math.hypot(a - a_low, b_high - b), a - b + math.hypot(a_high - a, b - b_low)
        error = (high - low) / (2.0 * REACH)
        p_value = two_sided_p_value((a - b) / error, None) if name == SQUARED_CCE and error > 0.0 else None
        found[name] = MetricDifference(a, b, a - b, low, high, p_value, rows)
    return found


def _square_beyond_noise(version: ComparedVersion) -> Array | None:
    """The mean CCE^2 less its noise, and the ends of its interval, (3,); None where the evaluation lacks them.

    Residuals of an ensemble have its own errors in them, and so must the mean from which they are taken. The interval
    of an evaluation is of new targets at the same inputs; other rows have other inputs, too, and other targets to whose
    variance the output kernel is scaled: CCE^2 goes about with that scale.
    """
    metric, noise, scores = version.metrics.get(SQUARED_CCE), version.influence_noise, version.scores
    if noise is None or metric is None or metric.low is None or metric.high is None:
        return None
    valid = scores["valid"].to_numpy(bool)
    weights = scores[ROW_WEIGHT].to_numpy(np.float64)[valid] if ROW_WEIGHT in scores else None
    squares = scores["cce"].to_numpy(np.float64)[valid] ** 2
    beyond = float(np.average(squares, weights=weights)) - float(np.mean(noise))
    of_scale = 0.0
    if "target" in scores:
        apart = pd.to_numeric(scores["target"], errors="coerce").to_numpy(np.float64)[valid]
        apart = (apart - apart.mean()) ** 2
        of_scale = float(np.std(apart) / np.mean(apart)) if np.mean(apart) > 0.0 else 0.0
    more = REACH * math.hypot(float(np.std(squares)), max(beyond, 0.0) * of_scale) / math.sqrt(len(squares))
    low, high = (math.hypot(end - metric.value, more) for end in (metric.low, metric.high))
    return np.array([beyond, beyond - low, beyond + high])


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
