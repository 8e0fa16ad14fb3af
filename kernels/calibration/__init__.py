"""Marginal calibration: PIT values, regression ECE, and tests of uniformity."""

from congruence.kernels.calibration.pit import PitKind, keyed_uniforms, pit_values
from congruence.kernels.calibration.regression import (
    calibration_error_of_pit,
    expected_calibration_error,
    reliability_curve,
)

__all__ = [
    "PitKind",
    "calibration_error_of_pit",
    "expected_calibration_error",
    "keyed_uniforms",
    "pit_values",
    "reliability_curve",
]
