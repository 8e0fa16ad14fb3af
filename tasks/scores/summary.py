"""Metrics of one version: means of per-point columns, functions of such means, and tests, by the names of `metrics:`.

Every mean-type metric gets its interval from one bootstrap of mergeable statistics, for the split and for each slice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.decomposition import ScoreDecomposition, crps_decomposition, marginal_crps
from congruence.kernels.calibration.regression import even_levels
from congruence.kernels.calibration.totals import has_total, poisson_deviances
from congruence.kernels.calibration.uniformity import chi_square, cramer_von_mises, kolmogorov_smirnov
from congruence.kernels.conditional_calibration.effects import ConditionalCalibrationTest
from congruence.kernels.congruence.expected import ExpectedCongruence
from congruence.kernels.congruence.outcome import CongruenceTest
from congruence.kernels.congruence.result import CongruenceResult, excess_interval, excess_over
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.resampling.aggregation import Estimate, ScoreStatistics
from congruence.kernels.row_blocks.dependence import FoundBlocks
from congruence.kernels.scores import central_intervals, covered, sharpness_of
from congruence.kernels.streams import stream
from congruence.kernels.weights import mean_over
from congruence.tasks.scores.evaluation import MetricValue, finite_metrics
from congruence.tasks.scores.kernel_calibration import kernel_calibration_error
from congruence.tasks.scores.names import MEANS, SHARES_OF_QUANTILES

PIT_LEVELS = {f"pit_{j}": float(level) for j, level in enumerate(even_levels())}
COVERAGE_LEVELS = (0.5, 0.8, 0.9, 0.95)
WHOLE_COLUMNS = ("marginal_crps", "actual", "expected", "poisson_deviance")
_REQUESTED_MEANS = {name.removesuffix("_mean"): column for name, column in MEANS.items()}
DECOMPOSED_ROWS = 10_000
PIT_P_VALUES = ("pit_ks_p_value", "pit_cvm_p_value", "pit_chi2_p_value")
_FEWEST_OF_CHI_SQUARE = 10  # rows: two bins of five
SLICE_VALUES = 30
CCE_MEANS = ("cce_mean", "cce_noise_floor", "cce_excess")

INDEPENDENT = FoundBlocks()
Means = Mapping[str, Any]


def mean_columns(
    requested: tuple[str, ...], points: Mapping[str, Array], predictive: Distribution, targets: Array
) -> dict[str, Array]:
    """The per-point columns whose means make the mean-type metrics, each (v,).

    ``points`` are the scores of the rows by column, with the ``whole_columns`` among them.
    """
    taken = ["cce", "cce_noise_floor"]
    taken += [column for metric, column in {**_REQUESTED_MEANS, "rmse": "squared_error"}.items() if metric in requested]
    columns = {name: points[name] for name in (*taken, *WHOLE_COLUMNS) if name in points}
    if "ece" in requested and "pit" in points:
        columns |= {name: points["pit"] <= level for name, level in PIT_LEVELS.items()}
    if "coverage" in requested and targets.ndim == 1:
        columns |= coverage_columns(predictive, targets)
    return columns


def whole_columns(
    requested: tuple[str, ...],
    points: Mapping[str, Array],
    predictive: Distribution,
    targets: Array,
    weights: Array | None = None,
) -> dict[str, Array]:
    """Columns that no block of rows can make alone, (v,) each.

    The CRPS of the marginal law; of counts the parts of actual over expected, and the Poisson deviance, where no target
    is negative and every mean is positive.
    """
    found: dict[str, Array] = {}
    if targets.ndim != 1:
        return found
    if "crps" in requested and "crps" in points:
        found["marginal_crps"] = marginal_crps(targets, weights)
    if predictive.is_discrete and "mean" in points and has_total(targets, points["mean"]):
        if "actual_over_expected" in requested:
            found |= {"actual": targets, "expected": points["mean"]}
        if "deviance" in requested:
            found["poisson_deviance"] = poisson_deviances(targets, points["mean"])
    return found


def coverage_columns(predictive: Distribution, targets: Array) -> dict[str, Array]:
    """Whether each target lies in its central intervals, and how wide these are, (v,)."""
    columns = {}
    for level, (low, high) in zip(COVERAGE_LEVELS, central_intervals(predictive, COVERAGE_LEVELS), strict=True):
        columns[f"covered_{level}"] = covered(predictive, targets, level, interval=(low, high))
        columns[f"width_{level}"] = high - low
    return columns


def mean_metrics(columns: Collection[str], floor_share: float = 1.0) -> dict[str, Callable[[Means], Any]]:
    """The mean-type metrics that columns of these names allow, as functions of their means.

    ``floor_share``: the mean CCE expected of a true version, as a share of the mean noise floor.
    """
    functions: dict[str, Callable[[Means], Any]] = {
        "cce_mean": lambda mean: mean["cce"],
        "cce_noise_floor": lambda mean: mean["cce_noise_floor"],
        "cce_excess": lambda mean: np.sqrt(
            np.maximum(mean["cce"] ** 2 - (floor_share * mean["cce_noise_floor"]) ** 2, 0.0)
        ),
    }
    functions |= {name: _mean(column) for name, column in MEANS.items() if column in columns}
    if "marginal_crps" in columns:
        functions["crps_skill"] = lambda mean: (
            1.0 - mean["crps"] / np.where(mean["marginal_crps"] > 0.0, mean["marginal_crps"], np.nan)
        )
    if "actual" in columns:
        functions["actual_over_expected"] = lambda mean: (
            mean["actual"] / np.where(mean["expected"] > 0.0, mean["expected"], np.nan)
        )
    if "poisson_deviance" in columns:
        functions["deviance"] = _mean("poisson_deviance")
    if "squared_error" in columns:
        functions["rmse"] = lambda mean: np.sqrt(mean["squared_error"])
    if "pit_0" in columns:
        functions["ece"] = lambda mean: (
            sum(abs(mean[name] - level) for name, level in PIT_LEVELS.items()) / len(PIT_LEVELS)
        )
    for level in COVERAGE_LEVELS:
        if f"covered_{level}" in columns:
            functions[f"coverage_{level:.0%}".rstrip("%")] = _mean(f"covered_{level}")
            functions[f"width_{level:.0%}".rstrip("%")] = _mean(f"width_{level}")
    return functions


def _mean(column: str) -> Callable[[Means], Any]:
    return lambda mean: mean[column]


def estimated_of(
    statistics: ScoreStatistics, seed: int, blocks: DependentBlocks | None = None, *, has_intervals: bool = True
) -> dict[str, MetricValue]:
    """Every mean-type metric but CCE's, with its 95 % bootstrap interval, from the merged statistics of blocks of rows.

    Points are independent, unless ``blocks`` of rows that depend on each other were the keys of the statistics; these
    are too few for intervals without ``has_intervals``.
    """
    functions = {name: function for name, function in mean_metrics(statistics.names).items() if name not in CCE_MEANS}
    if not functions:
        return {}
    estimates = statistics.estimates(functions, seed=seed, blocks=blocks)
    if "ece" in estimates:
        estimates["ece"] = statistics.mean_absolute_deviation(PIT_LEVELS, seed=seed, blocks=blocks)
    found = {name: _metric(estimate) for name, estimate in estimates.items() if np.isfinite(estimate.value)}
    if not has_intervals:
        found = {name: MetricValue(metric.value) for name, metric in found.items()}
    return found if statistics.weighted is None else found | {"effective_rows": MetricValue(statistics.effective_rows)}


def congruence_metrics(
    result: CongruenceResult,
    test: CongruenceTest | None = None,
    expected: ExpectedCongruence | None = None,
    *,
    has_intervals: bool = True,
) -> dict[str, MetricValue]:
    """The CCE metrics of a version: intervals are those of new targets, not of other points, which share them.

    ``cce_expected`` has the band of a true version as its interval, and ``cce_excess`` is what lies beyond its value.
    """
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
    if not has_intervals:
        metrics = {name: MetricValue(metric.value) for name, metric in metrics.items()}
    return {name: metric for name, metric in metrics.items() if np.isfinite(metric.value)}


def floor_share(metrics: Mapping[str, MetricValue]) -> float:
    """The mean CCE that is expected of a true version over its mean noise floor: a little below 1."""
    expected, floor = metrics.get("cce_expected"), metrics.get("cce_noise_floor")
    if expected is None or floor is None or floor.value <= 0.0:
        return 1.0
    return expected.value / floor.value


def calibration_metrics(test: ConditionalCalibrationTest) -> dict[str, MetricValue]:
    """The p-value of calibration given the input, and the effect of each order, 0 where its estimate is negative."""
    metrics = {"calibration_p_value": MetricValue(test.p_value)}
    for order, effect in test.effects.items():
        low, high = max(effect.low, 0.0), max(effect.high, 0.0)
        metrics[f"calibration_effect_{order}"] = MetricValue(float(np.clip(effect.estimate, low, high)), low, high)
    return {name: metric for name, metric in metrics.items() if np.isfinite(metric.value)}


def _metric(estimate: Estimate) -> MetricValue:
    if not (np.isfinite(estimate.low) and np.isfinite(estimate.high)):
        return MetricValue(estimate.value)
    # Where all points have the same score, rounding alone could put the value outside.
    return MetricValue(estimate.value, min(estimate.low, estimate.value), max(estimate.high, estimate.value))


def slice_rows(
    name: str, values: Array, groups: Mapping[Any, ScoreStatistics], floor_share: float
) -> Iterator[dict[str, Any]]:
    """The rows of ``ScoreBlocks.slice_table`` for one slice column: ``values`` names the groups by their numbers."""
    for code, statistics in groups.items():
        if not statistics.counts.any():  # none of its rows counts
            continue
        means, functions = statistics.means(), mean_metrics(statistics.names, floor_share)
        measured = {metric: float(function(means)) for metric, function in functions.items()}
        effective = {} if statistics.weighted is None else {"effective_rows": statistics.effective_rows}
        yield {"slice": name, "value": str(values[code]), "rows": statistics.rows, **effective, **measured}


def slice_groups(values: pd.Series[Any]) -> tuple[Array, Array]:
    """The group of each row by a slice column: its number (n,), and the sorted names of the groups.

    A missing value is a group of its own, and so is one without an end where numbers are cut into tenths. Texts are
    made of groups and not of rows.
    """
    codes: Array
    codes, distinct = pd.factorize(values)
    if len(distinct) > SLICE_VALUES and pd.api.types.is_numeric_dtype(values):
        finite = np.isfinite(values.to_numpy(float, na_value=np.nan))
        cut = pd.qcut(values.where(finite), 10, duplicates="drop")
        codes, distinct = cut.cat.codes.to_numpy(), cut.cat.categories
    names = pd.Series(distinct).astype("string").fillna("missing").to_numpy(dtype=object)
    if len(names) > SLICE_VALUES:
        rows = np.bincount(codes[codes >= 0], minlength=len(names))
        names[np.argsort(-rows, kind="stable")[SLICE_VALUES - 1 :]] = "other"
    # The name at the end is that of missing values, whose code is -1; several groups may have one name.
    every, merged = np.unique(np.append(names, "missing").astype(str), return_inverse=True)
    groups = merged.astype(np.int32)[codes]
    used = np.bincount(groups, minlength=len(every)) > 0
    return (np.cumsum(used, dtype=np.int32) - 1)[groups], every[used]


def is_numeric(values: pd.Series[Any]) -> bool:
    """Whether a column holds numbers, rather than truth values or words."""
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def tenths(values: Array) -> tuple[Array, list[str], list[float]]:
    """The bin of each of n numbers by tenths of them, the names of the bins, and the edges between one and the next.

    No bin is empty; what is not finite has the last one, "missing".
    """
    known = np.isfinite(values)
    if not known.any():
        return np.zeros(len(values), dtype=np.intp), ["missing"], []
    edges = np.unique(np.quantile(values[known], np.linspace(0.0, 1.0, 11)[1:-1]))
    ends = [f"{edge:.3g}" for edge in edges]
    names = [f"up to {ends[0]}", *(f"{a} to {b}" for a, b in pairwise(ends)), f"{ends[-1]} and more", "missing"]
    found = np.where(known, np.searchsorted(edges, values, side="right"), len(edges) + 1)
    used, codes = np.unique(found, return_inverse=True)
    return codes, [names[k] for k in used], [float(edges[k - 1]) for k in used[1:] if k <= len(edges)]


def other_metrics(
    requested: tuple[str, ...],
    points: Mapping[str, Array],
    predictive: Distribution,
    targets: Array,
    seed: int,
    weights: Array | None = None,
    found: FoundBlocks = INDEPENDENT,
) -> dict[str, MetricValue]:
    """Metrics without an interval: sharpness, uniformity of the PIT, CRPS taken apart, the SKCE.

    Tests, of uniformity and of the SKCE, are of the rows as they are, whatever these count in means. Of rows that
    depend on each other, tests of uniformity have no p-value, and the SKCE's is by their blocks.
    """
    metrics = column_metrics(requested, points, weights)
    if found.refused or found.blocks is not None:
        metrics = {name: metric for name, metric in metrics.items() if name not in PIT_P_VALUES}
    if "crps" in requested and "crps" in points and targets.ndim == 1:
        metrics |= score_decomposition(predictive, targets, seed, weights)
    if "skce" in requested:
        error = kernel_calibration_error(predictive, targets, seed, found.blocks, weights)
        if found.refused:
            error.pop("skce_p_value", None)
        metrics |= error
    return metrics


def column_metrics(
    requested: tuple[str, ...], points: Mapping[str, Array], weights: Array | None = None
) -> dict[str, MetricValue]:
    """Those of ``other_metrics`` that the columns alone give."""
    values: dict[str, float] = {}
    if "sharpness" in requested and "std" in points:
        values["sharpness"] = sharpness_of(points["std"], weights)
    for name, column in SHARES_OF_QUANTILES.items():
        if column in points:
            values[name] = mean_over(points[column], weights)
    if "pit" in requested and "pit" in points:
        values["pit_ks_p_value"] = kolmogorov_smirnov(points["pit"]).p_value
        values["pit_cvm_p_value"] = cramer_von_mises(points["pit"]).p_value
        if len(points["pit"]) >= _FEWEST_OF_CHI_SQUARE:
            values["pit_chi2_p_value"] = chi_square(points["pit"]).p_value
    return finite_metrics(values)


def score_decomposition(
    predictive: Distribution, targets: Array, seed: int, weights: Array | None = None
) -> dict[str, MetricValue]:
    """Miscalibration, discrimination and uncertainty of the CRPS, by ``decomposed``."""
    found = decomposed(predictive, targets, seed, weights)
    return finite_metrics(
        {f"crps_{part}": found.crps(part) for part in ("miscalibration", "discrimination", "uncertainty")}
    )


def decomposed(predictive: Distribution, targets: Array, seed: int, weights: Array | None = None) -> ScoreDecomposition:
    """The quantile scores taken apart by level; of more than 10,000 rows, of as many at random."""
    if len(targets) > DECOMPOSED_ROWS:
        chosen = stream(seed, "rows of the score decomposition").choice(len(targets), DECOMPOSED_ROWS, replace=False)
        rows = np.sort(chosen)
        predictive, targets = predictive[rows], targets[rows]
        weights = None if weights is None else weights[rows]
    return crps_decomposition(targets, predictive, weights=weights)
