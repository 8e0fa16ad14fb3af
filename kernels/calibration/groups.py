"""Calibration over random groups of rows: an average can hide groups that are off (Zhao et al. 2020)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit import require_pit
from congruence.kernels.errors import InvalidInputError

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
