"""The scores of a version's rows, each by itself, and the metrics that are made of them."""

from __future__ import annotations

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration import pit_values
from congruence.kernels.conditional_calibration.version_calibration import VersionCalibration
from congruence.kernels.congruence.expected import ExpectedCongruence
from congruence.kernels.congruence.outcome import CongruenceTest, benjamini_hochberg
from congruence.kernels.congruence.result import CongruenceResult
from congruence.kernels.distributions import Distribution
from congruence.kernels.scores import point_scores
from congruence.tasks.scores.evaluation import Metric
from congruence.tasks.scores.summary import (
    calibration_metrics,
    congruence_metrics,
    estimated,
    mean_columns,
    other_metrics,
    whole_columns,
)

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
    names = np.arange(len(targets)) if keys is None else keys
    found: dict[str, Array] = {}
    scored: dict[str, int] = {}
    for start in range(0, max(1, len(targets)), CHUNK_ROWS):
        chunk = slice(start, start + CHUNK_ROWS)
        scores = point_scores(predictive[chunk], targets[chunk])
        if targets.ndim == 1:
            scores["pit"] = pit_values(targets[chunk], predictive[chunk], seed=seed, keys=names[chunk])
        for name, values in scores.items():
            if name not in found:
                found[name], scored[name] = np.empty((len(targets), *values.shape[1:]), values.dtype), 0
            found[name][chunk] = values
            scored[name] += len(values)
    # A score that a part of the rows does not have (a density, for example) is no column.
    return points | {name: values for name, values in found.items() if scored[name] == len(targets)}


def summarise(
    result: CongruenceResult,
    predictive: Distribution,
    targets: Array,
    points: dict[str, Array],
    requested: tuple[str, ...],
    *,
    seed: int,
    keys: Array | None,
    test: CongruenceTest | None = None,
    expected: ExpectedCongruence | None = None,
    calibration: VersionCalibration | None = None,
    weights: Array | None = None,
) -> dict[str, Metric]:
    """The metrics of a version from the scores of its rows (``score_points``), with intervals where they are means."""
    metrics = congruence_metrics(result, test, expected)
    whole = {**points, **whole_columns(requested, points, predictive, targets, weights)}
    metrics |= estimated(mean_columns(requested, whole, predictive, targets), keys, seed, weights)
    if calibration is not None:
        metrics |= calibration_metrics(calibration.test)
    return metrics | other_metrics(requested, points, predictive, targets, seed, weights)
