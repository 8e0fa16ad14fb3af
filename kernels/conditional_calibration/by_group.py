"""Calibration in groups of rows (bins of a feature, slices): bias, spread, skew and tails with their intervals.

Groups that depend on the inputs alone are as exact as the whole split: in each, a version that is right has PIT scores
of mean 0 and variance 1, so that their mean has standard deviation 1 / sqrt(rows) whatever the version predicts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.faults import shift_and_factor

_REACH = 1.959963984540054


@dataclass(frozen=True)
class Band:
    """A number in each of g groups, its 95 % interval, and where 95 of 100 versions that are right have it."""

    value: Array = field(repr=False)
    low: Array = field(repr=False)
    high: Array = field(repr=False)
    right_low: Array = field(repr=False)
    right_high: Array = field(repr=False)


@dataclass(frozen=True)
class GroupCalibrations:
    """What is wrong in each of g groups of rows.

    Attributes:
        rows: in each, (g,).
        target: mean target, (g,).
        mean: mean of the predictive means, (g,).
        bias: target less mean, in the unit of the target.
        spread: the targets' spread over the predicted one; 1 if right.
        skew, tails: mean PIT scores of orders 3 and 4; 0 if right.
        explained: what the groups explain of the variance of the four PIT scores together: the variance of their means
            over the rows, less what chance gives. 0 if right, whatever the number of groups.
    """

    rows: Array
    target: Array = field(repr=False)
    mean: Array = field(repr=False)
    bias: Band = field(repr=False)
    spread: Band = field(repr=False)
    skew: Band = field(repr=False)
    tails: Band = field(repr=False)
    explained: float


def calibration_by_group(
    codes: Array, groups: int, targets: Array, mean: Array, std: Array, scores: Array
) -> GroupCalibrations:
    """``GroupCalibrations`` of n rows.

    Args:
        codes: the group of each row, 0 to groups - 1, each of which has a row, (n,).
        groups: how many there are.
        targets: (n,).
        mean, std: of the predictions, (n,).
        scores: PIT scores, (n, 4).
    """
    rows = np.bincount(codes, minlength=groups).astype(float)
    error = targets - mean
    bias, bias_error = _mean_and_error(codes, rows, error)
    noise = _REACH * np.sqrt(np.bincount(codes, std**2, groups)) / rows
    means = np.column_stack([np.bincount(codes, column, groups) / rows for column in scores.T])
    errors = np.column_stack([_mean_and_error(codes, rows, column)[1] for column in scores.T])
    chance = _REACH / np.sqrt(rows)
    overall = rows @ means / rows.sum()
    between = float(np.sum(rows[:, None] * (means - overall) ** 2)) - scores.shape[1] * (groups - 1)
    skew, tails = (
        Band(means[:, j], means[:, j] - errors[:, j], means[:, j] + errors[:, j], -chance, chance) for j in (2, 3)
    )
    return GroupCalibrations(
        rows,
        np.bincount(codes, targets, groups) / rows,
        np.bincount(codes, mean, groups) / rows,
        Band(bias, bias - bias_error, bias + bias_error, -noise, noise),
        _factors(means, errors[:, 1], chance),
        skew,
        tails,
        max(0.0, between / float(rows.sum())),
    )


def _mean_and_error(codes: Array, rows: Array, values: Array) -> tuple[Array, Array]:
    """Means by group, and 1.96 of their standard errors; a row alone has no error of its own and takes the whole's."""
    mean = np.bincount(codes, values, len(rows)) / rows
    squares = np.bincount(codes, (values - mean[codes]) ** 2, len(rows))
    variance = np.where(rows > 1, squares / np.maximum(rows - 1, 1), np.var(values))
    return mean, _REACH * np.sqrt(variance / rows)


def _factors(means: Array, error: Array, chance: Array) -> Band:
    """Spread factors by the bias and spread scores; the interval moves the spread score by its error."""
    bias, spread = means[:, 0], means[:, 1]
    value, low, high = (shift_and_factor(bias, spread + move)[1] for move in (0.0 * error, -error, error))
    right = [shift_and_factor(0.0, move)[1] for move in (-chance, chance)]
    return Band(value, low, high, *right)
