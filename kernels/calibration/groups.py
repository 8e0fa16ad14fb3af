"""Calibration over random groups of rows: an average can hide groups that are off (Zhao et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit import require_pit
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.streams import stream

ProportionKind = Literal["interval", "quantile"]
CalibrationKind = Literal["mean_abs", "root_mean_sq"]


def proportions(pit: Array, *, bins: int = 100, kind: ProportionKind = "interval") -> tuple[Array, Array]:
    """Expected and observed proportions at ``bins`` levels over [0, 1], each (bins,), from PIT values (n,).

    "interval": the share of observations inside the central interval of each level; "quantile": the share at or below
    the quantile of each level.

    Raises:
        InvalidInputError: fewer than 2 levels, another kind, or a value outside [0, 1].
    """
    if bins < 2:
        raise InvalidInputError(f"bins: is {bins}, expected at least 2 levels")
    if kind not in ("interval", "quantile"):
        raise InvalidInputError(f"kind: is {kind!r}, expected 'interval' or 'quantile'")
    values = require_pit(pit)
    expected = np.linspace(0.0, 1.0, bins)
    position = np.abs(2.0 * values - 1.0) if kind == "interval" else values
    return expected, np.searchsorted(np.sort(position), expected, side="right") / len(values)


def calibration_error(expected: Array, observed: Array, kind: CalibrationKind = "mean_abs") -> float:
    """Mean absolute or root mean squared difference of the proportions."""
    difference = expected - observed
    return float(np.mean(np.abs(difference)) if kind == "mean_abs" else np.sqrt(np.mean(difference**2)))


def miscalibration_area(expected: Array, observed: Array) -> float:
    """Area between the piecewise-linear reliability curve and the diagonal."""
    gap = observed - expected
    left, right, width = gap[:-1], gap[1:], np.diff(expected)
    total = np.abs(left) + np.abs(right)
    # Two triangles where the curve crosses the diagonal, else a trapezoid.
    crossed = np.divide(left**2 + right**2, total, out=np.zeros_like(total), where=total > 0.0)
    return float(np.sum(width * np.where(left * right < 0.0, crossed, total) / 2.0))


@dataclass(frozen=True)
class GroupCalibration:
    """Worst calibration error of random groups, by the share of rows in a group; each (k,)."""

    group_size: Array
    score_mean: Array
    score_stderr: Array


def adversarial_group_calibration(
    pit: Any,
    *,
    calibration: CalibrationKind = "mean_abs",
    kind: ProportionKind = "interval",
    bins: int = 100,
    sizes: int = 10,
    groups: int = 10,
    trials: int = 10,
    seed: int = 0,
) -> GroupCalibration:
    """The largest calibration error of ``groups`` random groups, averaged over ``trials``, for ``sizes`` group sizes.

    Sizes run from two rows to all of them; groups are drawn without replacement, from PIT values (n,).

    Raises:
        InvalidInputError: fewer than two rows, or a value outside [0, 1].
    """
    values = require_pit(pit, at_least=2)
    rng = stream(seed, "adversarial groups")
    shares = np.linspace(0.0, 1.0, sizes)
    worst = np.empty((sizes, trials))
    for i, share in enumerate(shares):
        size = max(round(len(values) * share), 2)
        for trial in range(trials):
            drawn = (rng.choice(values, size, replace=False) for _ in range(groups))
            worst[i, trial] = max(calibration_error(*proportions(g, bins=bins, kind=kind), calibration) for g in drawn)
    return GroupCalibration(shares, worst.mean(axis=1), worst.std(axis=1, ddof=1))
