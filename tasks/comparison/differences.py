"""Differences of the metrics of two versions: on the same rows, and on rows that differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtri

from congruence.kernels.arrays import Array, effective_rows, mean_one, too_few_rows
from congruence.kernels.dependence.blocks import (
    DependentBlocks,
    SumOfBlocks,
    TooFewBlocksError,
    t_quantile,
    two_sided_p_value,
    without_each,
)
from congruence.kernels.engine.results import LEVEL, CongruenceInfluence, difference_of_influences
from congruence.kernels.errors import ProtocolError
from congruence.kernels.resampling import LARGEST_BLOCK, PairedResampling, too_large_block
from congruence.tasks.comparison.compared import ComparedVersion, Pair
from congruence.tasks.scores.evaluation import DEPENDENT_BLOCKS, Columns
from congruence.tasks.scores.metrics.metric import Metric
from congruence.tasks.scores.metrics.registry import METRICS, mean_columns
from congruence.tasks.sentences.calibration import signed

CCE, SQUARED_CCE = "cce_mean", "cce_squared_mean"
_TINY = float(np.finfo(np.float64).tiny)
REACH = float(ndtri((1.0 + LEVEL) / 2.0))  # standard errors from a normal interval's middle to its end


OF_STATED = ("crps_mean", "ece")
"""The metrics that are other quantities of quantiles at other levels, and of whole distributions."""


class MissingInfluenceError(ProtocolError):
    """CCE that cannot be compared: names the version, what its evaluation lacks, and how to get it."""


@dataclass(frozen=True)
class MetricDifference:
    """A metric of two versions on the same rows; lower is better, so a negative difference favours ``first``.

    Attributes:
        difference: first - second.
        low, high: its 95 % interval.
        p_value: two-sided; None where there is no test (the mean CCE has its test in its squares).
        rows: that the interval rests on: reference rows for CCE, points for the others.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float | None
    rows: int

    def __str__(self) -> str:
        return f"{signed(self.difference)} [{signed(self.low)}, {signed(self.high)}]"

    @property
    def side(self) -> Literal["better", "worse", ""]:
        """Where ``first`` stands; "" where the interval holds 0."""
        return self.side_among(1)

    def side_among(self, differences: int) -> Literal["better", "worse", ""]:
        """Where ``first`` stands as one of so many differences.

        Were all of them 0, any had a side in at most 1 of 20 splits: Bonferroni's, by the interval made wider as a
        normal one would be.
        """
        wider = float(ndtri(1.0 - (1.0 - LEVEL) / (2.0 * differences))) / REACH
        low, high = (self.difference + wider * (end - self.difference) for end in (self.low, self.high))
        return "better" if high < 0.0 else "worse" if low > 0.0 else ""

    @property
    def standard_error(self) -> float:
        """Half the interval's width in units of 1.96: the standard error where the interval is normal."""
        return (self.high - self.low) / (2.0 * REACH)

    def rows_that_decide(self, limit: float, difference: float | None = None) -> float:
        """How many rows would move the 95 % interval to one side of ``limit``: rows * (1.96 SE / |D - limit|)^2.

        Args:
            limit: that the interval holds.
            difference: D, what the difference truly is; by default what was found, which is known to a standard error
                only, so that the answer is a rough one. Infinite where it is the limit.
        """
        distance = abs((self.difference if difference is None else difference) - limit)
        return math.inf if distance == 0.0 else self.rows * (REACH * self.standard_error / distance) ** 2


def cce_differences(first: ComparedVersion, second: ComparedVersion) -> dict[str, MetricDifference]:
    """``cce_squared_mean`` and ``cce_mean`` compared by the influence of the reference rows.

    Raises:
        MissingInfluenceError: a version's evaluation does not hold what its reference rows contribute, or the two were
            estimated on other reference rows.
    """
    one, two = _influence(first), _influence(second)
    assert first.influence is not None
    assert second.influence is not None
    if not first.shares_rows(second) and list(first.influence["key"]) != list(second.influence["key"]):
        raise MissingInfluenceError(
            f"CCE of {first.label} and {second.label} was estimated on other reference rows, so its difference has no "
            f"interval; evaluate both again: {first.again}; {second.again}"
        )
    rows = len(one.squared)
    blocks = Pair(first, second, first.valid).blocks()
    if blocks is not None and len(blocks.labels) != rows:
        raise MissingInfluenceError(
            f"CCE of {first.label} and {second.label} was estimated on a reference split of its own, whose groups and "
            "times are not known here, so its difference has no interval"
        )
    counts = [version.metrics.get(DEPENDENT_BLOCKS) for version in (first, second)]
    shares = blocks is None or (counts[0] is not None and counts[0] == counts[1])
    targets = first.shares_targets(second)
    found = difference_of_influences(one, two, blocks, shares_signs=shares, shares_targets=targets)
    # |a| - |b| = (|a|^2 - |b|^2) / (|a| + |b|)
    of_draws = (_noise_of_draws(first) - _noise_of_draws(second)) / max(one.mean + two.mean, _TINY)
    of_mean, low, high = (each - of_draws for each in (found.mean_difference, found.mean_low, found.mean_high))
    return {
        CCE: MetricDifference(one.mean, two.mean, of_mean, low, high, p_value=None, rows=rows),
        SQUARED_CCE: MetricDifference(
            one.squared_mean, two.squared_mean, found.difference, found.low, found.high, found.p_value, rows
        ),
    }


def _noise_of_draws(version: ComparedVersion) -> float:
    """What the chance of so few draws adds to the mean CCE^2 of a version; 0 where it does not state draws.

    By it the mean CCE of 5 draws is 8 % above that of 50 draws of the same distribution, which is no fault.
    """
    squared = version.metrics.get(SQUARED_CCE)
    if version.stated != "draws" or squared is None:
        return 0.0
    valid = version.valid
    squares = version.column("cce", valid) ** 2
    return max(float(np.average(squares, weights=version.weights(valid))) - squared.value, 0.0)


def effect_differences(pair: Pair) -> dict[str, MetricDifference]:
    """The effects of calibration given the input, by what each row contributes to them; none where it is not known.

    Linear in the rows, which are independent; the quadratic part is counted twice, so that intervals are wide enough
    where both effects are near 0 (``effects.LeaveOneOut.influence``).
    """
    found = {}
    for name, column in [(each.name, each.influence) for each in METRICS.values() if each.influence]:
        a, b = pair.first.metrics.get(name), pair.second.metrics.get(name)
        if a is None or b is None or column not in pair:
            continue
        one, two = pair.columns(column)
        blocks, count = pair.blocks(), None
        error = float(np.sqrt(np.sum((one - two) ** 2))) / len(one)
        if blocks is not None:
            error, count = blocks.standard_error(one - two), blocks.effective
        difference = a.value - b.value
        p_value = two_sided_p_value(difference / error, count) if error > 0.0 else 1.0
        reach = t_quantile(count, LEVEL) * error
        ends = difference - reach, difference + reach
        found[name] = MetricDifference(a.value, b.value, difference, *ends, p_value, len(one))
    return found


def _influence(version: ComparedVersion) -> CongruenceInfluence:
    squared, mean = version.metrics.get(SQUARED_CCE), version.metrics.get(CCE)
    if version.influence is None or version.influence_noise is None or squared is None or mean is None:
        raise MissingInfluenceError(
            f"CCE of {version.label} has no interval to compare by: its evaluation does not hold what each reference "
            f"row contributes; evaluate it again: {version.again}"
        )
    rows, noise = version.influence, version.influence_noise
    return CongruenceInfluence(
        squared.value,
        mean.value,
        rows["cce_squared_influence"].to_numpy(np.float64),
        rows["cce_influence"].to_numpy(np.float64),
        noise=noise,
    )


def point_differences(pair: Pair, *, resamples: int, seed: int) -> dict[str, MetricDifference]:
    """The metrics that are functions of means over points, from the scores of the points valid in both versions.

    One metric at a time: no more than its two columns are in memory. ``resamples`` and ``seed`` are those of the
    bootstrap and of the permutation test.

    Raises:
        InvalidInputError: fewer than two points.
        TooFewBlocksError: a block holds too large a share of the rows, or weights leave too few effective rows.
    """
    points = int(np.count_nonzero(pair.rows))
    weights = pair.first.weights(pair.rows)
    counted = None if weights is None else mean_one(weights, points)
    blocks = pair.blocks(mean_columns().values())
    _require_many(counted, blocks, points)
    resampling = PairedResampling(points, resamples, seed, counted, blocks)
    found: dict[str, MetricDifference] = {}
    for name, metric in METRICS.items():
        if metric.is_compared and metric.column in pair:
            one, two = pair.columns(metric.column)
            if np.isfinite(one).all() and np.isfinite(two).all():
                item = resampling.compare(metric.prepared(one), metric.prepared(two), metric.reduced)
                found[name] = MetricDifference(**vars(item), rows=points)
    return found


def _require_many(weights: Array | None, blocks: DependentBlocks | None, points: int) -> None:
    if blocks is not None:
        sizes = blocks.sums(np.ones(points) if weights is None else weights)
        if (share := float(np.max(sizes) / np.sum(sizes))) > LARGEST_BLOCK:
            raise TooFewBlocksError(f"no interval: {too_large_block(share, blocks.kind)}")
    if weights is not None and (why := too_few_rows(effective_rows(weights), points)):
        raise TooFewBlocksError(f"no interval: {why}")


def infinite_metrics(scores: Columns) -> frozenset[str]:
    """The means that are infinite: a target to which the prediction gave no probability makes the NLL so."""
    return frozenset(
        name for name, column in mean_columns().items() if column in scores and np.isposinf(scores[column]).any()
    )


def disjoint_differences(first: ComparedVersion, second: ComparedVersion) -> dict[str, MetricDifference]:
    """The metrics of two versions on rows that they do not share, as far as both have them.

    These are CCE, functions of means over points, and the effects of calibration given the input.

    Raises:
        TooFewBlocksError: the rows of a version depend on each other in too few blocks, of which one is too large, or
            weights leave too few effective rows.
    """
    found, sides = _cce_differences(first, second), []
    for version in (first, second):
        rows = version.valid
        blocks = Pair(version, version, rows).blocks()
        _require_many(version.weights(rows), blocks, int(rows.sum()))
        # The number of each valid row's block: a row by itself where rows are independent.
        sides.append((version, rows, np.arange(int(rows.sum())) if blocks is None else np.asarray(blocks.labels)))
    for name, metric in METRICS.items():
        one, two = (_contributions(version, name, metric, rows, labels) for version, rows, labels in sides)
        if one is not None and two is not None:
            difference, known = one[0] - two[0], SumOfBlocks.of(np.concatenate([one[1], -two[1]]))
            ends, count = known.interval(difference), sum(int(rows.sum()) for _, rows, _ in sides)
            found[name] = MetricDifference(one[0], two[0], difference, *ends, known.p_value(difference), count)
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
    valid = version.valid
    weights, squares = version.weights(valid), version.column("cce", valid) ** 2
    beyond = float(np.average(squares, weights=weights)) - float(np.mean(noise))
    of_scale = 0.0
    if "target" in scores:
        apart = version.column("target", valid)
        apart = (apart - apart.mean()) ** 2
        of_scale = float(np.std(apart) / np.mean(apart)) if np.mean(apart) > 0.0 else 0.0
    more = REACH * math.hypot(float(np.std(squares)), max(beyond, 0.0) * of_scale) / math.sqrt(len(squares))
    low, high = (math.hypot(end - metric.value, more) for end in (metric.low, metric.high))
    return np.array([beyond, beyond - low, beyond + high])


def _contributions(
    version: ComparedVersion, name: str, metric: Metric, rows: Array, labels: Array
) -> tuple[float, Array] | None:
    """A metric of one version, and what each of its blocks contributes to it beyond the mean; None without one."""
    scores = version.scores
    if metric.influence:
        if metric.influence not in scores or name not in version.metrics:
            return None
        influence = version.column(metric.influence, rows)
        sums = np.bincount(labels, influence) / len(influence)
        return version.metrics[name].value, sums - sums.mean()
    if not metric.is_compared or metric.column not in scores:
        return None
    values = version.column(metric.column, rows)
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    weights = version.weights(rows)
    weights = np.ones(len(values)) if weights is None else weights
    columns = metric.prepared(values)
    columns = columns[:, None] if columns.ndim == 1 else columns
    sums = np.stack([np.bincount(labels, column * weights) for column in columns.T], axis=1)
    counts = np.bincount(labels, weights)
    value = float(metric.reduced(sums.sum(axis=0) / counts.sum()))
    apart = np.asarray(metric.reduced(without_each(sums, counts)))
    return value, (apart.mean() - apart) * (len(apart) - 1.0) / len(apart)
