"""Kernel numerics of predictive-distribution evaluation: arrays in, arrays out."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.kernels.bandwidths import dimension_gamma, median_gamma, multiscale_rbf, variance_gamma
    from congruence.kernels.calibration import (
        CountFrequencies,
        chi_square,
        count_frequencies,
        cramer_von_mises,
        expected_calibration_error,
        kolmogorov_smirnov,
        pit_values,
        regression_metrics,
        reliability_curve,
    )
    from congruence.kernels.conditional_calibration import (
        ConditionalCalibrationTest,
        conditional_calibration_test,
    )
    from congruence.kernels.conditional_calibration.local_distribution import LocalDistribution, local_distribution
    from congruence.kernels.conditional_calibration.local_reading import LocalReading, local_reading
    from congruence.kernels.congruence.diagnostics import KernelDiagnostics, kernel_diagnostics
    from congruence.kernels.congruence.difference import CongruenceDifference
    from congruence.kernels.congruence.discrepancy import DiscrepancyResult, maximum_conditional_mean_discrepancy
    from congruence.kernels.congruence.expected import ExpectedCongruence
    from congruence.kernels.congruence.outcome import CongruenceTest, benjamini_hochberg
    from congruence.kernels.congruence.preparation import conditional_congruence_error
    from congruence.kernels.congruence.result import CongruenceResult
    from congruence.kernels.congruence.test import congruence_test
    from congruence.kernels.distributions import (
        Beta,
        Binomial,
        CensoredNormal,
        Deterministic,
        Distribution,
        DoublePoisson,
        Gamma,
        Histogram,
        HurdleBinomial,
        HurdleDoublePoisson,
        HurdleNegativeBinomial,
        HurdlePoisson,
        Laplace,
        Logistic,
        LogNormal,
        Mixture,
        MultivariateNormal,
        NegativeBinomial,
        Normal,
        Poisson,
        Quantiles,
        Samples,
        StudentT,
        TruncatedNormal,
        Uniform,
        WeightedSamples,
        ZeroInflatedBinomial,
        ZeroInflatedDoublePoisson,
        ZeroInflatedNegativeBinomial,
        ZeroInflatedPoisson,
    )
    from congruence.kernels.errors import (
        BudgetError,
        CongruenceError,
        ConvergenceError,
        InvalidInputError,
        ProtocolError,
    )
    from congruence.kernels.gram.variation import NearlyConstantKernelWarning
    from congruence.kernels.kernel_calibration import (
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
    from congruence.kernels.kernel_functions import (
        RBF,
        Kernel,
        Laplacian,
        Linear,
        Matern,
        Polynomial,
    )
    from congruence.kernels.pit_interpreter import Interpretation, interpret_pit
    from congruence.kernels.protocol.downsampling import downsampled_congruence
    from congruence.kernels.protocol.evaluation import evaluate_protocol
    from congruence.kernels.protocol.output_scales import output_kernel, scale_sensitivity
    from congruence.kernels.protocol.protocol import ECAI, EXACT, PREPRINT, Downsampling, EvaluationProtocol
    from congruence.kernels.protocol.repeats import RepeatedResult
    from congruence.kernels.rejection import RejectionCurve, rejection_curve
    from congruence.kernels.resampling.aggregation import Estimate, ScoreStatistics
    from congruence.kernels.scores import (
        absolute_error,
        crps,
        interval_score,
        negative_log_likelihood,
        pinball_score,
        sharpness,
        squared_error,
    )
    from congruence.kernels.solvers import Cholesky, ConjugateGradient, Nystrom, Solution, choose_solver
    from congruence.kernels.split import Split, VersionResult, prepare
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "ECAI",
    "EXACT",
    "PREPRINT",
    "RBF",
    "Beta",
    "Binomial",
    "BudgetError",
    "CalibrationTest",
    "CensoredNormal",
    "Cholesky",
    "ConditionalCalibrationTest",
    "CongruenceDifference",
    "CongruenceError",
    "CongruenceResult",
    "CongruenceTest",
    "ConjugateGradient",
    "ConvergenceError",
    "CountFrequencies",
    "Deterministic",
    "DiscrepancyResult",
    "Distribution",
    "DoublePoisson",
    "Downsampling",
    "Estimate",
    "EvaluationProtocol",
    "ExpectedCongruence",
    "Gamma",
    "HilbertianEmbedding",
    "Histogram",
    "HurdleBinomial",
    "HurdleDoublePoisson",
    "HurdleNegativeBinomial",
    "HurdlePoisson",
    "Interpretation",
    "InvalidInputError",
    "Kernel",
    "KernelDiagnostics",
    "Laplace",
    "Laplacian",
    "Linear",
    "LocalDistribution",
    "LocalReading",
    "LogNormal",
    "Logistic",
    "Matern",
    "MaximumMeanDiscrepancy",
    "Mixture",
    "MixtureWasserstein",
    "MultivariateNormal",
    "NearlyConstantKernelWarning",
    "NegativeBinomial",
    "Normal",
    "Nystrom",
    "Poisson",
    "Polynomial",
    "PredictionKernel",
    "ProtocolError",
    "Quantiles",
    "RejectionCurve",
    "RepeatedResult",
    "Samples",
    "ScoreStatistics",
    "Solution",
    "Split",
    "StudentT",
    "TruncatedNormal",
    "Uniform",
    "VersionResult",
    "Wasserstein",
    "WeightedSamples",
    "ZeroInflatedBinomial",
    "ZeroInflatedDoublePoisson",
    "ZeroInflatedNegativeBinomial",
    "ZeroInflatedPoisson",
    "absolute_error",
    "benjamini_hochberg",
    "calibration_test",
    "chi_square",
    "choose_solver",
    "conditional_calibration_test",
    "conditional_congruence_error",
    "congruence_test",
    "count_frequencies",
    "cramer_von_mises",
    "crps",
    "dimension_gamma",
    "downsampled_congruence",
    "evaluate_protocol",
    "expected_calibration_error",
    "interpret_pit",
    "interval_score",
    "kernel_diagnostics",
    "kolmogorov_smirnov",
    "local_distribution",
    "local_reading",
    "maximum_conditional_mean_discrepancy",
    "median_gamma",
    "multiscale_rbf",
    "negative_log_likelihood",
    "output_kernel",
    "pinball_score",
    "pit_values",
    "prepare",
    "regression_metrics",
    "rejection_curve",
    "reliability_curve",
    "scale_sensitivity",
    "sharpness",
    "squared_error",
    "squared_kernel_calibration_error",
    "unnormalized_calibration_mean_embedding",
    "variance_gamma",
]
