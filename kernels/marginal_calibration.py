"""Marginal calibration: do levels, counts and totals of the predictions hold over all rows, as often as they say?

Levels of regression (Kuleshov et al. 2018); how often each count is observed and expected; totals of targets that add
up (counts, amounts): actual over expected, lift and deviance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from scipy.special import xlogy

from congruence.kernels.arrays import Array, require_targets, require_weights
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import PitKind, cell_step, pit_values, require_pit
from congruence.kernels.scores import matched_targets

EDGE = 1e-5
LEVELS = 50


def even_levels(count: int = LEVELS) -> Array:
    """``count`` levels, evenly spaced over [1e-5, 1 - 1e-5]: those of the expected calibration error."""
    return np.linspace(EDGE, 1.0 - EDGE, count)


def expected_calibration_error(
    y: Any,
    predictive: Distribution,
    *,
    levels: int | np.integer[Any] | Sequence[float] | Array = LEVELS,
    weights: Literal["uniform", "frequency"] = "uniform",
    alpha: float = 1.0,
    pit: PitKind = "randomized",
    seed: int = 0,
    keys: Any | None = None,
    row_weights: Any | None = None,
) -> float:
    """sum_j w_j |p_j - phat_j|^alpha, where phat_j is the share of PIT values at or below level p_j.

    Targets that are rounded coarsely have the PIT values of the cells around them, as in evaluations.

    Args:
        predictive: n scalar distributions.
        y: targets (n,).
        levels: the p_j, or how many, evenly spaced over [1e-5, 1 - 1e-5].
        weights: "uniform" 1/m, or "frequency", proportional to phat_j. With 50 levels, alpha 1 and
            ``pit="nonrandomized"`` the latter is the public code of Young et al. (2025).
        alpha: power of the difference.
        pit: treatment of jumps, see ``pit_values``. "nonrandomized" gives even the true distribution of counts a large
            error.
        seed: of the randomised PIT.
        keys: row keys of the randomised PIT.
        row_weights: what each row counts in phat_j, (n,).

    Raises:
        InvalidInputError: levels outside [0, 1], an unknown weighting, or alpha not positive.
    """
    step = cell_step(matched_targets(predictive, y), predictive)
    values = pit_values(y, predictive, kind=pit, seed=seed, keys=keys, step=step)
    return calibration_error_of_pit(values, levels=levels, weights=weights, alpha=alpha, row_weights=row_weights)


def calibration_error_of_pit(
    values: Array,
    *,
    levels: int | np.integer[Any] | Sequence[float] | Array = LEVELS,
    weights: Literal["uniform", "frequency"] = "uniform",
    alpha: float = 1.0,
    row_weights: Any | None = None,
) -> float:
    """``expected_calibration_error`` from PIT values (n,)."""
    if not alpha > 0:
        raise InvalidInputError(f"alpha: is {alpha}, expected a positive power")
    expected, observed = reliability_curve(values, levels=levels, row_weights=row_weights)
    error = np.abs(expected - observed) ** alpha
    if weights == "uniform":
        return float(np.mean(error))
    if weights != "frequency":
        raise InvalidInputError(f"weights: is {weights!r}, expected 'uniform' or 'frequency'")
    # No PIT value at or below any level: every observation lies above the predictions, and all levels weigh the same.
    return float(np.average(error, weights=observed)) if observed.sum() > 0 else float(np.mean(error))


def reliability_curve(
    values: Any, *, levels: int | np.integer[Any] | Sequence[float] | Array = LEVELS, row_weights: Any | None = None
) -> tuple[Array, Array]:
    """Levels p_j (m,) and the share of PIT values at or below each (m,): the diagonal if calibrated.

    ``row_weights`` (n,) are what each value counts in the shares.

    Raises:
        InvalidInputError: no values, values or levels outside [0, 1] or not finite, fewer than one level, or weights
            that are negative, missing or all 0.
    """
    pit = require_pit(values)
    if isinstance(levels, (int, np.integer)):
        expected = even_levels(max(int(levels), 0))
    else:
        expected = np.asarray(levels, dtype=np.float64)
    if (
        isinstance(levels, bool)
        or expected.ndim != 1
        or len(expected) == 0
        or not bool(np.all((expected >= 0) & (expected <= 1)))
    ):
        raise InvalidInputError(f"levels: {levels} must be a positive number of levels, or levels inside [0, 1]")
    if row_weights is None:
        return expected, np.searchsorted(np.sort(pit), expected, side="right") / len(pit)
    order, counted = np.argsort(pit, kind="stable"), require_weights(row_weights, len(pit))
    below = np.append(0.0, np.cumsum(counted[order]))[np.searchsorted(pit[order], expected, side="right")]
    return expected, np.minimum(below / np.sum(counted), 1.0)


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


_REACH = 1.959963984540054


@dataclass(frozen=True)
class ActualOverExpected:
    """Sums of targets and of predictive means over g groups of rows, and their ratio.

    Attributes:
        rows: in each group, (g,).
        actual: sums of the targets.
        expected: sums of the predictive means.
        ratio: actual / expected; 1 if right.
        low, high: its 95 % interval over other rows: standard error sqrt(sum (y - ratio m)^2) / sum m, or what the
            predicted spreads say where that is more (no claims in few rows do not say that a rate is wrong).
        null_low, null_high: where 95 of 100 versions that are right have it, by the predicted spreads.
    """

    rows: Array
    actual: Array = field(repr=False)
    expected: Array = field(repr=False)
    ratio: Array = field(repr=False)
    low: Array = field(repr=False)
    high: Array = field(repr=False)
    null_low: Array = field(repr=False)
    null_high: Array = field(repr=False)


def has_total(targets: Array, mean: Array) -> bool:
    """Whether totals are worth a ratio: no target is negative, every mean is positive."""
    return bool(targets.ndim == 1 and len(targets) and np.min(targets) >= 0.0 and np.min(mean) > 0.0 and targets.any())


def actual_over_expected(codes: Array, groups: int, targets: Array, mean: Array, std: Array) -> ActualOverExpected:
    """Of n rows in ``groups`` groups, each of which has a row; see ``has_total`` for what is asked of the numbers."""
    rows = np.bincount(codes, minlength=groups)
    actual, expected = np.bincount(codes, targets, groups), np.bincount(codes, mean, groups)
    ratio = actual / expected
    error = _REACH * np.sqrt(np.bincount(codes, (targets - ratio[codes] * mean) ** 2, groups)) / expected
    noise = _REACH * np.sqrt(np.bincount(codes, std**2, groups)) / expected
    error = np.maximum(error, noise)
    low, null_low = np.maximum(ratio - error, 0.0), np.maximum(1.0 - noise, 0.0)
    return ActualOverExpected(rows, actual, expected, ratio, low, ratio + error, null_low, 1.0 + noise)


def deciles(mean: Array) -> Array:
    """The tenth of the rows that each is in by its predicted mean, 0 the lowest, (n,); equal means share one."""
    edges = np.unique(np.quantile(mean, np.linspace(0.1, 0.9, 9)))
    _, codes = np.unique(np.searchsorted(edges, mean, side="right"), return_inverse=True)
    return codes


def poisson_deviance(targets: Array, mean: Array) -> float:
    """Mean of ``poisson_deviances``."""
    return float(np.mean(poisson_deviances(targets, mean)))


def poisson_deviances(targets: Array, mean: Array) -> Array:
    """2 (y log(y / m) - (y - m)) of each row, (n,): 0 where the prediction is the target."""
    return np.asarray(2.0 * (xlogy(targets, targets / mean) - (targets - mean)))
