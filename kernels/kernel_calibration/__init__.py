"""The kernel calibration error of Widmann et al. (2021): estimators, kernels on predictions, and tests."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.kernels.kernel_calibration.estimators import (
        block_estimates,
        squared_kernel_calibration_error,
        unbiased_estimate,
        unnormalized_calibration_mean_embedding,
        weighted_estimate,
    )
    from congruence.kernels.kernel_calibration.hypothesis_tests import (
        CalibrationTest,
        asymptotic_test,
        block_test,
        calibration_test,
    )
    from congruence.kernels.kernel_calibration.mixture_kernel import MixtureWasserstein
    from congruence.kernels.kernel_calibration.pairs import PairTerms, pair_terms
    from congruence.kernels.kernel_calibration.prediction_kernels import (
        HilbertianEmbedding,
        MaximumMeanDiscrepancy,
        PredictionKernel,
        Wasserstein,
        moment_embedding,
        parameter_embedding,
    )
    from congruence.kernels.kernel_calibration.trust import Trust
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "CalibrationTest",
    "HilbertianEmbedding",
    "MaximumMeanDiscrepancy",
    "MixtureWasserstein",
    "PairTerms",
    "PredictionKernel",
    "Trust",
    "Wasserstein",
    "asymptotic_test",
    "block_estimates",
    "block_test",
    "calibration_test",
    "moment_embedding",
    "pair_terms",
    "parameter_embedding",
    "squared_kernel_calibration_error",
    "unbiased_estimate",
    "unnormalized_calibration_mean_embedding",
    "weighted_estimate",
]
