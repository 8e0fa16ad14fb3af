"""Kernel numerics of predictive-distribution evaluation: arrays in, arrays out."""

from congruence.kernels.aggregation import Estimate, ScoreStatistics
from congruence.kernels.bandwidths import dimension_gamma, median_gamma, multiscale_rbf, variance_gamma
from congruence.kernels.calibration import (
    chi_square,
    cramer_von_mises,
    expected_calibration_error,
    kolmogorov_smirnov,
    pit_values,
    regression_metrics,
    reliability_curve,
)
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
from congruence.kernels.conditional_calibration import (
    CalibrationSettings,
    ConditionalCalibrationTest,
    conditional_calibration_test,
    prepare_calibration,
)
from congruence.kernels.congruence import (
    PreparedCongruence,
    conditional_congruence_error,
    prepare,
)
from congruence.kernels.congruence_difference import (
    CongruenceDifference,
    congruence_differences,
    paired_congruence_difference,
)
from congruence.kernels.congruence_result import CongruenceResult
from congruence.kernels.discrepancy import DiscrepancyResult, maximum_conditional_mean_discrepancy
from congruence.kernels.distributions import *  # noqa: F403
from congruence.kernels.distributions import __all__ as _families
from congruence.kernels.downsampling import downsampled_congruence
from congruence.kernels.functions import (
    RBF,
    Kernel,
    Laplacian,
    Linear,
    Matern,
    Polynomial,
)
from congruence.kernels.output_scales import output_kernel, scale_sensitivity
from congruence.kernels.pit_interpreter import Interpretation, interpret_pit
from congruence.kernels.protocol_evaluation import evaluate_protocol
from congruence.kernels.protocols import ECAI, EXACT, PREPRINT, Downsampling, Protocol
from congruence.kernels.repeats import RepeatedResult
from congruence.kernels.scores import (
    absolute_error,
    crps,
    interval_score,
    negative_log_likelihood,
    pinball_score,
    sharpness,
    squared_error,
)
from congruence.kernels.significance import CongruenceTest, benjamini_hochberg, congruence_test, congruence_tests
from congruence.kernels.solvers import Cholesky, ConjugateGradient, Nystrom, Solution, choose_solver

__all__ = [
    "ECAI",
    "EXACT",
    "PREPRINT",
    "RBF",
    "CalibrationSettings",
    "CalibrationTest",
    "Cholesky",
    "ConditionalCalibrationTest",
    "CongruenceDifference",
    "CongruenceResult",
    "DiscrepancyResult",
    "CongruenceTest",
    "ConjugateGradient",
    "Downsampling",
    "Estimate",
    "HilbertianEmbedding",
    "Interpretation",
    "Kernel",
    "Laplacian",
    "Linear",
    "Matern",
    "MaximumMeanDiscrepancy",
    "MixtureWasserstein",
    "Nystrom",
    "Polynomial",
    "PredictionKernel",
    "PreparedCongruence",
    "Protocol",
    "RepeatedResult",
    "ScoreStatistics",
    "Solution",
    "Wasserstein",
    "absolute_error",
    "benjamini_hochberg",
    "calibration_test",
    "chi_square",
    "choose_solver",
    "conditional_calibration_test",
    "conditional_congruence_error",
    "congruence_differences",
    "congruence_test",
    "congruence_tests",
    "cramer_von_mises",
    "crps",
    "dimension_gamma",
    "downsampled_congruence",
    "evaluate_protocol",
    "expected_calibration_error",
    "interpret_pit",
    "interval_score",
    "kolmogorov_smirnov",
    "maximum_conditional_mean_discrepancy",
    "median_gamma",
    "multiscale_rbf",
    "negative_log_likelihood",
    "output_kernel",
    "paired_congruence_difference",
    "pinball_score",
    "pit_values",
    "prepare",
    "prepare_calibration",
    "regression_metrics",
    "reliability_curve",
    "scale_sensitivity",
    "sharpness",
    "squared_error",
    "squared_kernel_calibration_error",
    "unnormalized_calibration_mean_embedding",
    "variance_gamma",
    *_families,
]
