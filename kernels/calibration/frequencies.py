"""How often each count is observed, and how often a version expects it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.errors import InvalidInputError

ROWS = 5_000
BINS = 40
_TAIL = 0.999


@dataclass(frozen=True)
class CountFrequencies:
    """Counts observed and predicted.

    Attributes:
        starts: the first count of each bin, (k,); the last bin holds all counts from there up.
        observed: rows in each bin, (k,).
        expected: sum over the rows of the predicted probability of the bin, (k,).
        std: standard deviation of ``observed`` if the version is true, (k,).
        rows: that these are taken of.
    """

    starts: Array = field(repr=False)
    observed: Array = field(repr=False)
    expected: Array = field(repr=False)
    std: Array = field(repr=False)
    rows: int


def count_frequencies(y: Any, predictive: Distribution, *, rows: int = ROWS) -> CountFrequencies:
    """Observed and expected frequencies of counts, in bins of equal width, at most 40 or so.

    The bins reach up to where a thousandth of the targets, and of the predictions, is left.

    Args:
        y: counts, (n,).
        predictive: n distributions of counts.
        rows: at most as many are taken, evenly spread: the sums cost rows times bins.

    Raises:
        InvalidInputError: fewer than two targets, another number of predictions, or predictions that are no counts'.
    """
    targets = require_targets(y, "y")
    if targets.ndim != 1 or len(targets) < 2:
        raise InvalidInputError(f"y: shape {targets.shape}, expected two or more counts (n,)")
    if len(predictive) != len(targets):
        raise InvalidInputError(f"predictive: {len(predictive)} rows for {len(targets)} targets; give one a row")
    if not predictive.is_discrete:
        raise InvalidInputError(f"predictive: {type(predictive).__name__} is not of counts; see pit_histogram")
    chosen = np.unique(np.linspace(0, len(targets) - 1, min(rows, len(targets))).astype(int))
    return _frequencies(targets[chosen], predictive[chosen])


def _frequencies(targets: Array, predictive: Distribution) -> CountFrequencies:
    ends = (float(np.quantile(targets, _TAIL)), float(np.quantile(predictive.quantile(_TAIL), 0.9)))
    first = float(np.floor(min(np.min(targets), np.quantile(predictive.quantile(1.0 - _TAIL), 0.1))))
    width = max(1.0, float(np.ceil((max(ends) + 1.0 - first) / BINS)))
    starts = np.arange(first, max(max(ends), first + width) + 1.0, width)
    ends_of_bins = starts[1:] - 1.0
    if width == 1.0 and predictive.counts is not None:
        cdf = predictive.counts.cumulative(ends_of_bins)
    else:
        cdf = predictive.cdf(ends_of_bins[None, :])
    below = np.column_stack([np.zeros(len(targets)), cdf, np.ones(len(targets))])
    chance = np.clip(np.diff(below, axis=1), 0.0, 1.0)
    observed = np.bincount(np.searchsorted(starts, targets, side="right") - 1, minlength=len(starts)).astype(float)
    std = np.sqrt(np.sum(chance * (1.0 - chance), axis=0))
    return CountFrequencies(starts, observed, chance.sum(axis=0), std, len(targets))
