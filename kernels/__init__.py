"""Kernel numerics of predictive-distribution evaluation: arrays in, arrays out."""

from congruence.kernels.calibration_error import (
    CalibrationTest,
    HilbertianEmbedding,
    MaximumMeanDiscrepancy,
    MixtureWasserstein,
    PredictionKernel,
    Wasserstein,
    calibration_test,
    squared_kernel_calibration_error,
    unnormalized_calibration_mean_embedding,
)
from congruence.kernels.congruence import (
    CongruenceResult,
    PreparedCongruence,
    conditional_congruence_error,
    maximum_conditional_mean_discrepancy,
    prepare,
)
from congruence.kernels.distributions import *  # noqa: F403
from congruence.kernels.distributions import __all__ as _families
from congruence.kernels.functions import (
    RBF,
    Kernel,
    Laplacian,
    Linear,
    Matern,
    Polynomial,
    dimension_gamma,
    median_gamma,
    multiscale_rbf,
    variance_gamma,
)
from congruence.kernels.pit_interpreter import Interpretation, interpret_pit
from congruence.kernels.protocols import ECAI, EXACT, PREPRINT, Protocol
from congruence.kernels.solvers import Cholesky

__all__ = [
    "CalibrationTest",
    "HilbertianEmbedding",
    "Interpretation",
    "MaximumMeanDiscrepancy",
    "MixtureWasserstein",
    "PredictionKernel",
    "Wasserstein",
    "calibration_test",
    "squared_kernel_calibration_error",
    "unnormalized_calibration_mean_embedding",
    "ECAI",
    "EXACT",
    "PREPRINT",
    "RBF",
    "Cholesky",
    "CongruenceResult",
    "Kernel",
    "Laplacian",
    "Linear",
    "Matern",
    "Polynomial",
    "PreparedCongruence",
    "Protocol",
    "conditional_congruence_error",
    "dimension_gamma",
    "interpret_pit",
    "maximum_conditional_mean_discrepancy",
    "median_gamma",
    "multiscale_rbf",
    "prepare",
    "variance_gamma",
    *_families,
]
