"""Metrics of one version: what its measurement says, and what is made of all its rows; groups of rows by slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.effects import ConditionalCalibrationTest
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.samples import FEWEST_SCORED
from congruence.kernels.engine.results import (
    CongruenceResult,
    CongruenceTest,
    ExpectedCongruence,
    excess_interval,
    excess_over,
)
from congruence.kernels.resampling.aggregation import LARGEST_BLOCK, too_large_block
from congruence.kernels.weights import mean_over, too_few_rows
from congruence.tasks.scores.evaluation import MetricValue, finite_metrics
from congruence.tasks.scores.metrics.registry import asked_for
from congruence.tasks.scores.metrics.rows import Rows

SLICE_VALUES = 30


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
    """The p-value of calibration given the input, and the effect of each order, from 0 to 1.

    Its estimate may be negative, and above 1 where scores vary more than a true version's do: all of them is explained.
    """
    metrics = {"calibration_p_value": MetricValue(test.p_value)}
    for order, effect in test.effects.items():
        low, high = (float(np.clip(end, 0.0, 1.0)) for end in (effect.low, effect.high))
        metrics[f"calibration_effect_{order}"] = MetricValue(float(np.clip(effect.estimate, low, high)), low, high)
    return {name: metric for name, metric in metrics.items() if np.isfinite(metric.value)}


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


def values_of(requested: Sequence[str], rows: Rows) -> dict[str, MetricValue]:
    """Returns the metrics that are made of all rows at once and have no interval, as far as they are finite."""
    made = {metric.name: metric.value(rows) for metric in asked_for(requested) if metric.value is not None}
    return finite_metrics({name: value for name, value in made.items() if value is not None})


def remarks(metrics: Mapping[str, MetricValue], rows: int, predictive: Distribution, kind: str = "") -> str:
    """What to know of the scores of so many ``rows``: rounded targets, and what has no score or no interval, and why.

    ``kind`` is of the blocks of rows that depend on each other, where the split names any.
    """
    said, draws = [], predictive.draws
    if (step := metrics.get("target_resolution")) is not None:
        said.append(f"Targets are rounded to {step.value:g}: NLL is of cells of that width.")
    if draws is not None and draws.shape[1] < FEWEST_SCORED:
        said.append(f"No NLL: {draws.shape[1]} draws a row say too little of a density; {FEWEST_SCORED} are needed.")
    largest, effective = metrics.get("largest_block"), metrics.get("effective_rows")
    if largest is not None and largest.value > LARGEST_BLOCK:
        said.append(f"No intervals: {too_large_block(largest.value, kind)}.")
    elif effective is not None and (why := too_few_rows(effective.value, rows)):
        said.append(f"Means of scores have no interval: {why}.")
    return " ".join(said)
