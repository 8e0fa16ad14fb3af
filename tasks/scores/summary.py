"""The metrics of a version: what its measurement says, and what is made of all its rows; groups of rows by slices.

What is a mean over rows has its value, interval and slices from sums that are added up block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from congruence.kernels.arrays import Array, mean_over, too_few_rows
from congruence.kernels.conditional_calibration.effects import ConditionalCalibrationTest
from congruence.kernels.conditional_calibration.rare import Extremes, Mass, Masses, extremes, masses
from congruence.kernels.conditional_calibration.reading import GroupReading
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.samples import FEWEST_SCORED
from congruence.kernels.engine.blocks import FoundBlocks
from congruence.kernels.engine.results import CongruenceResult, excess_interval, excess_over
from congruence.kernels.resampling import LARGEST_BLOCK, Estimate, ScoreStatistics, sliced_statistics, too_large_block
from congruence.kernels.rng import stream
from congruence.kernels.scores import central_intervals, holds_interval, resolution
from congruence.kernels.trust.judgement import RejectionCurve, rejection_curve
from congruence.tasks.scores.evaluation import DEPENDENT_BLOCKS, MetricValue, finite_metrics
from congruence.tasks.scores.metrics.metric import INDEPENDENT, Metric, Rows
from congruence.tasks.scores.metrics.registry import METRICS, asked_for, shown
from congruence.tasks.scores.points import blocks_of_means, is_numeric, slice_groups
from congruence.tasks.sentences.calibration import is_off
from congruence.tasks.sentences.counts import MOST_NAMED, extremes_finding, mass_finding
from congruence.tasks.sentences.findings import Finding
from congruence.tasks.solving.pass_runner import VersionMeasurement

BLOCK_ROWS = 2**16

Means = Mapping[str, Any]


def version_metrics(
    requested: tuple[str, ...], rows: Rows, measurement: VersionMeasurement
) -> tuple[dict[str, MetricValue], pd.DataFrame]:
    """The metrics of a version, with intervals where they are means, and the table of its slices.

    What they are means of is made block by block.

    Args:
        requested: which.
        rows: its v rows with their scores (``score_points``).
        measurement: what its Gram system said.
    """
    result = measurement.result
    metrics = _congruence_metrics(result)
    rows = replace(rows, floor_share=floor_share(metrics))
    means = MeanMetrics(requested, rows, blocks_of_means(rows))
    metrics |= means.values()
    slices = means.slice_table(rows.labels)
    metrics |= values_of(requested, rows)
    if result.inference is not None and result.inference.blocks is not None:
        metrics[DEPENDENT_BLOCKS] = MetricValue(float(result.inference.blocks))
    if result.means is not None:
        metrics["cce_std"] = MetricValue(result.std)
    if measurement.calibration is not None:
        metrics |= calibration_metrics(measurement.calibration.test)
    largest = metrics.get("largest_block")
    if largest is not None and largest.value > LARGEST_BLOCK:
        # The band of a true version is no interval: it is simulated with signs of the same blocks.
        kept = {name: value for name, value in metrics.items() if name == "cce_expected"}
        metrics = {name: MetricValue(value.value) for name, value in metrics.items()} | kept
    return metrics, slices


class MeanMetrics:
    """The metrics of a version that are made of means over its rows, of which there are several for each score.

    What is meant is made for a block of rows at a time.

    Args:
        requested: what the evaluation was asked for.
        rows: all of them.
        averaged: blocks of rows that depend on each other, for these means.
    """

    def __init__(self, requested: Sequence[str], rows: Rows, averaged: FoundBlocks = INDEPENDENT) -> None:
        self._metrics = [metric for metric in asked_for(requested) if metric.is_of_means]
        self._rows, self._averaged = rows, averaged
        self._keys = rows.names if averaged.blocks is None else averaged.blocks.labels
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

    def values(self) -> dict[str, MetricValue]:
        """Returns every metric but those that are measured, with its 95 % interval.

        Points are independent, unless there are blocks of rows that depend on each other: too few of these have no
        intervals. Nor are there any where a block or a few weights decide.
        """
        blocks = self._averaged.blocks
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
                estimates[name] = statistics.mean_absolute_deviation(centers, seed=self._rows.seed, blocks=blocks)
        counts = statistics.counts
        pieces = statistics.effective_rows if blocks is None else np.sum(counts) ** 2 / np.sum(counts**2)
        found = {
            name: _value(made[name], estimate, float(pieces))
            for name, estimate in estimates.items()
            if np.isfinite(estimate.value)
        }
        if self._averaged.refused or refused:
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


def _congruence_metrics(result: CongruenceResult) -> dict[str, MetricValue]:
    """The CCE metrics of a version: intervals are those of new targets, not of other points, which share them.

    ``cce_expected`` has the band of a true version as its interval, and ``cce_excess`` is what lies beyond its value.
    """
    test, expected = result.test, result.band
    low, high = result.interval()
    if_true = result.noise_floor if expected is None else expected.mean
    metrics = {
        "cce_mean": MetricValue(result.mean, low, high),
        "cce_noise_floor": MetricValue(result.noise_floor),
        "cce_excess": MetricValue(excess_over(result.mean, if_true), *excess_interval((low, high), if_true)),
        "cce_squared_mean": MetricValue(*result.squared_mean_interval()),
        "cce_error_bound": MetricValue(result.error_bound),
    }
    if expected is not None:
        metrics["cce_expected"] = MetricValue(expected.mean, expected.low, expected.high)
    if test is not None:
        metrics["cce_p_value"] = MetricValue(test.p_value)
        metrics["cce_significant_share"] = MetricValue(mean_over(test.significant_points(), result.weights))
    if result.inference is not None and result.inference.refused:
        metrics = {name: MetricValue(metric.value) for name, metric in metrics.items()}
    return {name: metric for name, metric in metrics.items() if np.isfinite(metric.value)}


def floor_share(metrics: Mapping[str, MetricValue]) -> float:
    """The mean CCE that is expected of a true version over its mean noise floor: a little below 1."""
    expected, floor = metrics.get("cce_expected"), metrics.get("cce_noise_floor")
    if expected is None or floor is None or floor.value <= 0.0:
        return 1.0
    return expected.value / floor.value


def calibration_metrics(test: ConditionalCalibrationTest) -> dict[str, MetricValue]:
    """The p-value of calibration given the input, and the effect of each order, from 0 to 1.

    Its estimate may be negative, and above 1 where scores vary more than a true version's do: all of them is explained.
    """
    metrics = {"calibration_p_value": MetricValue(test.p_value)}
    for order, effect in test.effects.items():
        low, high = (float(np.clip(end, 0.0, 1.0)) for end in (effect.low, effect.high))
        metrics[f"calibration_effect_{order}"] = MetricValue(float(np.clip(effect.estimate, low, high)), low, high)
    return {name: metric for name, metric in metrics.items() if np.isfinite(metric.value)}


LOSSES = {METRICS[name].column: name for name in ("mae", "nll_mean", "crps_mean")}
"""The columns of scores by which withholding is judged, and the metric that is the mean of each."""


def rejection_curves(cce: Any, scores: Mapping[str, Array] | pd.DataFrame) -> dict[str, RejectionCurve]:
    """What withholding the rows of highest CCE (v,) gains, by each of ``LOSSES`` that the scores have, (v,) each.

    An infinite NLL has no mean to follow, and a single row cannot be withheld.
    """
    losses = {name: np.asarray(scores[name]) for name in LOSSES if name in scores}
    known = {name: loss for name, loss in losses.items() if len(loss) > 1 and np.isfinite(loss).all()}
    return {name: rejection_curve(cce, loss) for name, loss in known.items()}


def values_of(requested: Sequence[str], rows: Rows) -> dict[str, MetricValue]:
    """Returns the metrics that are made of all rows at once and have no interval, as far as they are finite."""
    made = {metric.name: metric.value(rows) for metric in asked_for(requested) if metric.value is not None}
    return finite_metrics({name: value for name, value in made.items() if value is not None})


def remarks(metrics: Mapping[str, MetricValue], rows: Rows) -> str:
    """What to know of the scores of ``rows``: rounded targets, and what has no score or no interval, and why."""
    said, draws = [], rows.predictive.draws
    impossible = int(np.isinf(rows.columns["nll"]).sum()) if "nll" in rows.columns else 0
    if impossible:
        targets = "target was" if impossible == 1 else "targets were"
        said.append(f"NLL is infinite: {impossible:,} {targets} given no probability.")
    if (step := metrics.get("target_resolution")) is not None:
        said.append(f"Targets are rounded to {step.value:g}: NLL is of cells of that width.")
    if draws is not None and draws.shape[1] < FEWEST_SCORED:
        said.append(f"No NLL: {draws.shape[1]} draws a row say too little of a density; {FEWEST_SCORED} are needed.")
    elif draws is not None and rows.is_scalar and (equal := int(np.sum(rows.columns["std"] == 0.0))):
        said.append(f"No NLL: in {equal:,} of {len(rows.targets):,} rows all draws are equal, which have no density.")
    largest, effective = metrics.get("largest_block"), metrics.get("effective_rows")
    if largest is not None and largest.value > LARGEST_BLOCK:
        kind = "" if rows.dependence is None else rows.dependence.kind
        said.append(f"No intervals: {too_large_block(largest.value, kind)}.")
    elif effective is not None and (why := too_few_rows(effective.value, len(rows.targets))):
        said.append(f"Means of scores have no interval: {why}.")
    return " ".join(said)


_WILSON = 3.841458820694124  # the squared normal quantile of 95 % intervals


def _value(metric: Metric, estimate: Estimate, pieces: float) -> MetricValue:
    """The metric with its interval, by so many pieces that do not depend on each other.

    Where an interval of 90 % holds every target, or none, nothing varies: its share then has Wilson's (1927) interval.
    """
    if not (np.isfinite(estimate.low) and np.isfinite(estimate.high)):
        return MetricValue(estimate.value)
    bottom, top = metric.bounds
    if np.isfinite(top) and estimate.low == estimate.high and estimate.value in metric.bounds:
        beyond = _WILSON / (pieces + _WILSON)
        return MetricValue(estimate.value, max(bottom, estimate.value - beyond), min(top, estimate.value + beyond))
    # Where all points have the same score, rounding alone could put the value outside.
    low, high = min(max(estimate.low, bottom), estimate.value), max(min(estimate.high, top), estimate.value)
    return MetricValue(estimate.value, low, high)


COVERED = 0.9
FEWEST_COVERED, MOST_COVERED = 500, 10_000
_FOLDS = 5
CLASSIFIER = {"max_iter": 50, "max_leaf_nodes": 8, "random_state": 0}
"""Of scikit-learn's HistGradientBoostingClassifier: a fifth of the time of its defaults, and as much found."""


def coverage_risk(inputs: pd.DataFrame, targets: Array, predictive: Distribution, seed: int) -> dict[str, MetricValue]:
    """``ert_90``, the excess risk of the target coverage (Braun et al. 2025), of central 90 % intervals of scalar laws.

    A classifier says of rows that it has not seen whether more or less than 90 % of the targets there are covered; the
    number is by how much that is so, in the mean over the rows. MAPIE has the same, by a package that loads PyTorch.
    Of more than 10,000 rows it is that of as many at random.

    None of counts, whose intervals cover more than their level though they are right, nor of quantiles that do not
    state the ends of that interval, nor of draws too few to hold it; none of fewer than 500 rows.

    Args:
        inputs: numbers or words, (n, k).
        targets: (n,).
        predictive: n laws.
        seed: of the rows drawn.
    """
    if predictive.is_discrete or targets.ndim != 1 or inputs.empty or len(targets) < FEWEST_COVERED:
        return {}
    levels, tail = predictive.quantile_levels, (1.0 - COVERED) / 2.0
    if not holds_interval(predictive, COVERED):
        return {}
    if levels is not None and not all(np.isclose(levels, end).any() for end in (tail, 1.0 - tail)):
        return {}
    from sklearn.model_selection import KFold

    rows = stream(seed, "rows of the excess risk of coverage").permutation(len(targets))[:MOST_COVERED]
    ((low, high),) = central_intervals(predictive[rows], (COVERED,))
    x, covered = _numbers(inputs.iloc[rows]), (low <= targets[rows]) & (targets[rows] <= high)
    risks = []
    with threadpool_limits(limits=1):  # on a busy machine OpenMP's threads wait for each other
        for known, unseen in KFold(_FOLDS, shuffle=True, random_state=0).split(x):
            expected = _expected_coverage(x[known], covered[known], x[unseen])
            risks.append(np.mean(np.sign(expected - COVERED) * (covered[unseen] - COVERED)))
    return finite_metrics({"ert_90": float(np.mean(risks))})


def _expected_coverage(x: Array, covered: Array, at: Array) -> Array:
    """The share of the targets that a classifier, fitted to rows (x, covered), expects to be covered at other rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    if covered.all() or not covered.any():  # it knows of no other class
        return np.full(len(at), float(covered[0]))
    return np.asarray(HistGradientBoostingClassifier(**CLASSIFIER).fit(x, covered).predict_proba(at)[:, 1])


def _numbers(inputs: pd.DataFrame) -> Array:
    """Numbers as they are, words by their codes; what is missing lies below all that is known."""
    columns = []
    for name in inputs.columns:
        column = inputs[name]
        if is_numeric(column):
            values = column.to_numpy(float, na_value=np.nan)
            known = values[np.isfinite(values)]
            columns.append(np.where(np.isfinite(values), values, known.min() - 1.0 if len(known) else 0.0))
        else:
            columns.append(slice_groups(column)[0].astype(float))
    return np.column_stack(columns)


NOT_STATED = "Targets far out were not counted: what was predicted states no probability as small as 0.001."


FEW = 0.1
"""Share of the targets: of more far out, the spread or the mean is what is wrong."""


COUNTED = (0.0, 1.0)
"""Values whose masses the finding on counts with many zeros has anyway."""


@dataclass(frozen=True)
class RareTargets:
    """The targets of a version far out, and the values that many share; None of either where it was not looked for."""

    far: Extremes | None = None
    shared: Masses | None = None

    @classmethod
    def of(cls, rows: Rows) -> RareTargets:
        """Nothing of vectors, and of rows that depend on each other in too few blocks."""
        targets, predictive, blocks = rows.targets, rows.predictive, rows.found.blocks
        if targets.ndim != 1 or rows.found.refused:
            return cls()
        step = resolution(targets)
        found = cls(shared=masses(targets, predictive, step, blocks))
        return replace(found, far=extremes(targets, predictive, step, blocks, found.masses))

    @property
    def masses(self) -> tuple[Mass, ...]:
        """The values that many share whose number is wrong, the most wrong first."""
        return () if self.shared is None else self.shared.faults()

    def metrics(self) -> dict[str, MetricValue]:
        """The p-values of both, and what the most is wrong with: numbers of targets, and shares of a value."""
        known: dict[str, float] = {}
        if self.far is not None and self.far.p_value is not None and (most := self.far.most) is not None:
            known |= {"extremes_p_value": self.far.p_value, "extremes_level": most.level}
            known |= {"extremes_observed": most.observed, "extremes_expected": most.expected}
        if self.shared is not None and self.shared.p_value is not None:
            known["masses_p_value"] = self.shared.p_value
            for mass in self.masses[:1]:
                known |= {"mass_value": mass.value, "mass_observed": mass.observed_share}
                known["mass_expected"] = mass.expected_share
        return finite_metrics(known)

    @property
    def method(self) -> str:
        """What was not looked at, if anything was not."""
        return NOT_STATED if self.far is not None and not self.far.counts else ""

    def findings(
        self, overall: GroupReading | None, names: Callable[[Array], list[str]], *, of_counts: bool
    ) -> list[Finding]:
        """The largest fault of a single value, and targets far out beyond what the fault of all rows explains.

        Args:
            overall: the reading of all rows by their PIT values; None of versions that are read in their own terms.
            names: of rows by their numbers.
            of_counts: whether counts with many zeros are read, whose finding speaks of 0 and 1.
        """
        found = [mass_finding(mass) for mass in self.masses if not (of_counts and mass.value in COUNTED)][:1]
        shift, factor = (overall.shift, overall.factor) if overall is not None and is_off(overall) else (0.0, 1.0)
        beyond = None if self.far is None else self.far.beyond(shift, factor)
        if self.far is not None and beyond is not None and beyond.observed <= FEW * self.far.rows:
            found.append(extremes_finding(self.far, beyond, names(self.far.farthest[:MOST_NAMED])))
        return found
