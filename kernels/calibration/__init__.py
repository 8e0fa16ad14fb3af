"""Marginal calibration: PIT values, regression ECE, tests of uniformity, and uncertainty-toolbox's metrics."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.kernels.calibration.decomposition import ScoreDecomposition as ScoreDecomposition
    from congruence.kernels.calibration.decomposition import crps_decomposition as crps_decomposition
    from congruence.kernels.calibration.decomposition import marginal_crps as marginal_crps
    from congruence.kernels.calibration.decomposition import quantile_decomposition as quantile_decomposition
    from congruence.kernels.calibration.frequencies import CountFrequencies as CountFrequencies
    from congruence.kernels.calibration.frequencies import count_frequencies as count_frequencies
    from congruence.kernels.calibration.pit import PitKind as PitKind
    from congruence.kernels.calibration.pit import pit_values as pit_values
    from congruence.kernels.calibration.regression import calibration_error_of_pit as calibration_error_of_pit
    from congruence.kernels.calibration.regression import expected_calibration_error as expected_calibration_error
    from congruence.kernels.calibration.regression import reliability_curve as reliability_curve
    from congruence.kernels.calibration.uniformity import UniformityTest as UniformityTest
    from congruence.kernels.calibration.uniformity import chi_square as chi_square
    from congruence.kernels.calibration.uniformity import cramer_von_mises as cramer_von_mises
    from congruence.kernels.calibration.uniformity import kolmogorov_smirnov as kolmogorov_smirnov
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
