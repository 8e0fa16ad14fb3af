"""The kernel calibration error of Widmann et al. (2021): estimators, kernels on predictions, and tests."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.kernels.kernel_calibration.estimators import CalibrationTest as CalibrationTest
    from congruence.kernels.kernel_calibration.estimators import asymptotic_test as asymptotic_test
    from congruence.kernels.kernel_calibration.estimators import block_estimates as block_estimates
    from congruence.kernels.kernel_calibration.estimators import block_test as block_test
    from congruence.kernels.kernel_calibration.estimators import calibration_test as calibration_test
    from congruence.kernels.kernel_calibration.estimators import pair_estimate as pair_estimate
    from congruence.kernels.kernel_calibration.estimators import (
        squared_kernel_calibration_error as squared_kernel_calibration_error,
    )
    from congruence.kernels.kernel_calibration.estimators import (
        unnormalized_calibration_mean_embedding as unnormalized_calibration_mean_embedding,
    )
    from congruence.kernels.kernel_calibration.pairs import PairTerms as PairTerms
    from congruence.kernels.kernel_calibration.pairs import pair_terms as pair_terms
    from congruence.kernels.kernel_calibration.prediction_kernels import (
        MaximumMeanDiscrepancy as MaximumMeanDiscrepancy,
    )
    from congruence.kernels.kernel_calibration.prediction_kernels import PredictionKernel as PredictionKernel
    from congruence.kernels.kernel_calibration.prediction_kernels import Wasserstein as Wasserstein
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
