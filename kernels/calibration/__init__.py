"""Marginal calibration: PIT values, regression ECE, tests of uniformity, and uncertainty-toolbox's metrics."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.kernels.calibration.decomposition import (
        ScoreDecomposition,
        crps_decomposition,
        marginal_crps,
        quantile_decomposition,
    )
    from congruence.kernels.calibration.frequencies import CountFrequencies, count_frequencies
    from congruence.kernels.calibration.groups import (
        GroupCalibration,
        adversarial_group_calibration,
        calibration_error,
        miscalibration_area,
        proportions,
    )
    from congruence.kernels.calibration.metrics import accuracy, check_score, mean_interval_score, regression_metrics
    from congruence.kernels.calibration.pit import PitKind, pit_values
    from congruence.kernels.calibration.regression import (
        calibration_error_of_pit,
        expected_calibration_error,
        reliability_curve,
    )
    from congruence.kernels.calibration.uniformity import (
        UniformityTest,
        chi_square,
        cramer_von_mises,
        kolmogorov_smirnov,
    )
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "CountFrequencies",
    "GroupCalibration",
    "PitKind",
    "ScoreDecomposition",
    "UniformityTest",
    "accuracy",
    "adversarial_group_calibration",
    "calibration_error",
    "calibration_error_of_pit",
    "check_score",
    "chi_square",
    "count_frequencies",
    "cramer_von_mises",
    "crps_decomposition",
    "expected_calibration_error",
    "kolmogorov_smirnov",
    "marginal_crps",
    "mean_interval_score",
    "miscalibration_area",
    "pit_values",
    "proportions",
    "quantile_decomposition",
    "regression_metrics",
    "reliability_curve",
]
