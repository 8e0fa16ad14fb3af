"""Confidence intervals of a mean over points, and of the difference of two versions' means.

Scores (NLL, CRPS, errors) of different points are independent, and the bootstrap over points says how far another test
set would move their mean. CCE values are not: all of them rest on the targets of one reference split. Over *query*
points of their own, an interval answers "another sample of inputs, same conditional estimates" and leaves out that
another reference split would give other estimates; the noise floor says how large that is, and ``evaluate_protocol``
with bootstraps (protocol ``ecai``) resamples the reference itself: its ``std`` is that variation. The difference of two
versions' mean CCE belongs to ``congruence_difference``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from congruence.kernels.resampling.aggregation import Estimate, ScoreStatistics
from congruence.kernels.resampling.paired import PairedDifference, PairedResampling, PointMetric, mean_of

RESAMPLES = 2000


def bootstrap_interval(
    values: Any, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0, keys: Any | None = None
) -> Estimate:
    """The mean of point values (n,) with a percentile bootstrap interval over the points.

    Above some thousand points, random groups are resampled instead of points, at a cost that does not grow with n.

    Args:
        values: a score of every point.
        level: coverage.
        resamples: bootstrap samples.
        seed: of the bootstrap.
        keys: one name per point, so that the interval does not depend on their order; row numbers by default.

    Raises:
        InvalidInputError: a NaN, no values, or a level outside (0, 1).
    """
    statistics = ScoreStatistics.of({"mean": values}, keys=keys)
    return statistics.estimates(level=level, resamples=resamples, seed=seed)["mean"]


def paired_difference(first: Any, second: Any, *, resamples: int = RESAMPLES, seed: int = 0) -> PairedDifference:
    """Mean of ``first`` minus mean of ``second`` (n,), scores of two versions at the same points; not for CCE.

    The interval resamples points with both their values; the p-value exchanges the two values of random points, which
    for a difference of means is the sign-flip test.

    Raises:
        InvalidInputError: different lengths, fewer than two points, or values not finite.
    """
    columns = [np.asarray(values, dtype=np.float64)[:, None] for values in (first, second)]
    return PairedResampling(len(columns[0]), resamples, seed).compare(PointMetric(columns[0], columns[1], mean_of))
