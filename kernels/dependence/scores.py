"""Scores by which the dependence of rows is seen: what is left of an outcome beside its predictive distribution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit import pit_values
from congruence.kernels.calibration.pit_scores import mean_scores, pit_scores
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence
from congruence.kernels.distributions import Distribution


def dependence_scores(y: Array, predictive: Distribution) -> Array:
    """Of n rows, (n, r): the four PIT scores without noise of our own; of vector targets, standardised residuals."""
    if y.ndim == 2:
        spread = predictive.std()
        return np.asarray((y - predictive.mean()) / np.where(spread > 0.0, spread, 1.0))
    if predictive.has_steps:
        return mean_scores(*predictive.pit_range(y))
    return pit_scores(pit_values(y, predictive))


def version_blocks(dependence: RowDependence | None, y: Array, predictive: Distribution) -> DependentBlocks | None:
    """Blocks of rows that may depend on each other beside a version's distributions; None of independent rows.

    Raises:
        InvalidInputError: fewer than ten groups or runs of time, of counts fewer than ten that hold any.
    """
    if dependence is None:
        return None
    counts = y if predictive.is_discrete else None
    return dependence.blocks(lambda: dependence_scores(y, predictive), noisy=predictive.is_discrete, counts=counts)


def pair_blocks(
    dependence: RowDependence | None, y: Array, first: Distribution, second: Distribution
) -> DependentBlocks | None:
    """Blocks of rows for the difference of two versions: runs of time as long as the longer of theirs."""
    if dependence is None:
        return None
    both = (first, second)
    noisy = any(predicted.is_discrete for predicted in both)
    scores = partial(_scores_of_all, y, both)
    return dependence.blocks(scores, noisy=noisy, counts=y if noisy else None)


def _scores_of_all(y: Array, models: Sequence[Distribution]) -> Array:
    return np.hstack([dependence_scores(y, predicted) for predicted in models])
