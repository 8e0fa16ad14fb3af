"""Totals of targets that add up (counts, amounts): actual over expected, lift and deviance."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.special import xlogy

from congruence.kernels.arrays import Array

_REACH = 1.959963984540054


@dataclass(frozen=True)
class ActualOverExpected:
    """Sums of targets and of predictive means over g groups of rows, and their ratio.

    Attributes:
        rows: in each group, (g,).
        actual: sums of the targets.
        expected: sums of the predictive means.
        ratio: actual / expected; 1 if right.
        low, high: its 95 % interval over other rows: standard error sqrt(sum (y - ratio m)^2) / sum m.
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
