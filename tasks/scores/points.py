"""The scores of a version's rows, each by itself, and the metrics that are made of them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.calibration import pit_values
from congruence.kernels.calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.local_reading import PREFIX
from congruence.kernels.conditional_calibration.version_calibration import VersionCalibration
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.dependence import FoundBlocks
from congruence.kernels.engine.results import CongruenceResult, CongruenceTest, benjamini_hochberg
from congruence.kernels.resampling.aggregation import LARGEST_BLOCK
from congruence.kernels.rounding import resolution
from congruence.kernels.scores import point_scores
from congruence.tasks.scores.block_statistics import MeanMetrics
from congruence.tasks.scores.dependence import blocks_of_means
from congruence.tasks.scores.evaluation import DEPENDENT_BLOCKS, MetricValue
from congruence.tasks.scores.metrics.registry import METRICS
from congruence.tasks.scores.metrics.rows import INDEPENDENT, Rows
from congruence.tasks.scores.summary import calibration_metrics, congruence_metrics, floor_share, values_of
from congruence.tasks.solving.measurement import VersionMeasurement

CHUNK_ROWS = 2**16  # scores make several arrays of their rows in passing


def score_points(
    result: CongruenceResult,
    predictive: Distribution,
    targets: Array,
    *,
    seed: int,
    keys: Array | None,
    test: CongruenceTest | None = None,
    calibration: VersionCalibration | None = None,
) -> dict[str, Array]:
    """Every score of every evaluated row; ``keys`` name the rows for the randomised PIT of counts.

    ``calibration_fault`` is text, all others are numbers.
    """
    points = {"cce": result.values, "cce_noise_floor": result.noise_floor_values, "cce_excess": result.excess_values}
    if test is not None:
        points["cce_p_value"] = test.point_p_values
        points["cce_q_value"] = benjamini_hochberg(test.point_p_values)
    if calibration is not None:
        points |= calibration.columns()
        if predictive.quantile_levels is not None and f"{PREFIX}fault" in points:
            # Of a few levels skew and tails cannot be told from bias and spread, which they show, too.
            bias, spread = (np.abs(points[f"{PREFIX}{order}"]) for order in ORDERS[:2])
            plain = np.where(bias >= spread, *ORDERS[:2])
            points[f"{PREFIX}fault"] = np.where(points[f"{PREFIX}fault"] == "", "", plain).astype(object)
            for name in ("shift", "factor"):  # in predicted spreads, which are an interpolation
                del points[f"{PREFIX}{name}"]
    names, step = np.arange(len(targets)) if keys is None else keys, resolution(targets)
    found: dict[str, Array] = {}
    scored: dict[str, int] = {}
    for start in range(0, max(1, len(targets)), CHUNK_ROWS):
        chunk = slice(start, start + CHUNK_ROWS)
        scores = point_scores(predictive[chunk], targets[chunk], step)
        if targets.ndim == 1:
            scores["pit"] = pit_values(targets[chunk], predictive[chunk], seed=seed, keys=names[chunk])
        for metric in METRICS.values():
            if metric.point is not None and (made := metric.point(targets[chunk], predictive[chunk])) is not None:
                scores[metric.column] = made
        for name, values in scores.items():
            if name not in found:
                found[name], scored[name] = np.empty((len(targets), *values.shape[1:]), values.dtype), 0
            found[name][chunk] = values
            scored[name] += len(values)
    # A score that a part of the rows does not have (a density, for example) is no column.
    return points | {name: values for name, values in found.items() if scored[name] == len(targets)}


def version_metrics(
    requested: tuple[str, ...],
    points: dict[str, Array],
    predictive: Distribution,
    targets: Array,
    measurement: VersionMeasurement,
    *,
    seed: int,
    keys: Array | None = None,
    labels: pd.DataFrame | None = None,
    weights: Array | None = None,
    dependence: RowDependence | None = None,
    found: FoundBlocks = INDEPENDENT,
) -> tuple[dict[str, MetricValue], pd.DataFrame]:
    """The metrics of a version, with intervals where they are means, and the table of its slices.

    What they are means of is made block by block.

    Args:
        requested: which.
        points: the scores of its v rows (``score_points``).
        predictive: v laws.
        targets: (v,) or (v, q).
        measurement: what its Gram system said.
        seed: of the bootstrap, and of samples of rows.
        keys: numbers that stand for the rows' keys, (v,); row numbers by default.
        labels: slice columns, (v, slices).
        weights: what each row counts in means, (v,); equal by default.
        dependence: which rows may depend on each other.
        found: blocks of these by the version's scores.
    """
    inference = measurement.inference
    averaged = blocks_of_means(dependence, points, predictive, targets)
    names = np.arange(len(targets)) if keys is None else keys
    metrics = congruence_metrics(
        measurement.result,
        measurement.test,
        measurement.expected,
        has_intervals=inference is None or not inference.refused,
    )
    rows = Rows(points, targets, predictive, weights, seed, found, floor_share(metrics))
    means = MeanMetrics(requested, rows, names if averaged.blocks is None else averaged.blocks.labels)
    metrics |= means.values(seed, averaged.blocks, has_intervals=not averaged.refused)
    slices = pd.DataFrame() if labels is None else means.slice_table(labels)
    metrics |= values_of(requested, rows)
    if inference is not None and inference.blocks is not None:
        metrics[DEPENDENT_BLOCKS] = MetricValue(float(inference.blocks))
    if measurement.repeat_std is not None:
        metrics["cce_std"] = MetricValue(measurement.repeat_std)
    if measurement.calibration is not None:
        metrics |= calibration_metrics(measurement.calibration.test)
    largest = metrics.get("largest_block")
    if largest is not None and largest.value > LARGEST_BLOCK:
        # The band of a true version is no interval: it is simulated with signs of the same blocks.
        kept = {name: value for name, value in metrics.items() if name == "cce_expected"}
        metrics = {name: MetricValue(value.value) for name, value in metrics.items()} | kept
    return metrics, slices
