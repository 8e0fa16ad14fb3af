"""Kernel numerics of predictive-distribution evaluation: arrays in, arrays out."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.kernels.conditional_calibration.effects import (
        ConditionalCalibrationTest as ConditionalCalibrationTest,
    )
    from congruence.kernels.conditional_calibration.local_reading import LocalDistribution as LocalDistribution
    from congruence.kernels.conditional_calibration.local_reading import LocalReading as LocalReading
    from congruence.kernels.conditional_calibration.local_reading import local_distribution as local_distribution
    from congruence.kernels.conditional_calibration.local_reading import local_reading as local_reading
    from congruence.kernels.conditional_calibration.prepared import (
        conditional_calibration_test as conditional_calibration_test,
    )
    from congruence.kernels.distributions import Beta as Beta
    from congruence.kernels.distributions import Binomial as Binomial
    from congruence.kernels.distributions import CensoredNormal as CensoredNormal
    from congruence.kernels.distributions import Deterministic as Deterministic
    from congruence.kernels.distributions import Distribution as Distribution
    from congruence.kernels.distributions import DoublePoisson as DoublePoisson
    from congruence.kernels.distributions import Gamma as Gamma
    from congruence.kernels.distributions import Histogram as Histogram
    from congruence.kernels.distributions import Hurdle as Hurdle
    from congruence.kernels.distributions import Laplace as Laplace
    from congruence.kernels.distributions import Logistic as Logistic
    from congruence.kernels.distributions import LogNormal as LogNormal
    from congruence.kernels.distributions import Mixture as Mixture
    from congruence.kernels.distributions import MultivariateNormal as MultivariateNormal
    from congruence.kernels.distributions import NegativeBinomial as NegativeBinomial
    from congruence.kernels.distributions import Normal as Normal
    from congruence.kernels.distributions import Poisson as Poisson
    from congruence.kernels.distributions import Quantiles as Quantiles
    from congruence.kernels.distributions import Samples as Samples
    from congruence.kernels.distributions import StudentT as StudentT
    from congruence.kernels.distributions import TruncatedNormal as TruncatedNormal
    from congruence.kernels.distributions import Uniform as Uniform
    from congruence.kernels.distributions import WeightedSamples as WeightedSamples
    from congruence.kernels.distributions import ZeroInflated as ZeroInflated
    from congruence.kernels.engine.congruence_test import CongruenceTest as CongruenceTest
    from congruence.kernels.engine.congruence_test import benjamini_hochberg as benjamini_hochberg
    from congruence.kernels.engine.landmarks import NearlyConstantKernelWarning as NearlyConstantKernelWarning
    from congruence.kernels.engine.measure import evaluate_protocol as evaluate_protocol
    from congruence.kernels.engine.plan import multiscale_rbf as multiscale_rbf
    from congruence.kernels.engine.plan import variance_gamma as variance_gamma
    from congruence.kernels.engine.results import CongruenceDifference as CongruenceDifference
    from congruence.kernels.engine.results import CongruenceResult as CongruenceResult
    from congruence.kernels.engine.results import ExpectedCongruence as ExpectedCongruence
    from congruence.kernels.errors import BudgetError as BudgetError
    from congruence.kernels.errors import CongruenceError as CongruenceError
    from congruence.kernels.errors import ConvergenceError as ConvergenceError
    from congruence.kernels.errors import InvalidInputError as InvalidInputError
    from congruence.kernels.errors import ProtocolError as ProtocolError
    from congruence.kernels.kernel_calibration.estimators import CalibrationTest as CalibrationTest
    from congruence.kernels.kernel_calibration.estimators import calibration_test as calibration_test
    from congruence.kernels.kernel_calibration.estimators import (
        squared_kernel_calibration_error as squared_kernel_calibration_error,
    )
    from congruence.kernels.kernel_calibration.estimators import (
        unnormalized_calibration_mean_embedding as unnormalized_calibration_mean_embedding,
    )
    from congruence.kernels.kernel_calibration.prediction_kernels import (
        MaximumMeanDiscrepancy as MaximumMeanDiscrepancy,
    )
    from congruence.kernels.kernel_calibration.prediction_kernels import PredictionKernel as PredictionKernel
    from congruence.kernels.kernel_calibration.prediction_kernels import Wasserstein as Wasserstein
    from congruence.kernels.kernel_functions import RBF as RBF
    from congruence.kernels.kernel_functions import Kernel as Kernel
    from congruence.kernels.kernel_functions import Laplacian as Laplacian
    from congruence.kernels.kernel_functions import Linear as Linear
    from congruence.kernels.kernel_functions import Matern as Matern
    from congruence.kernels.kernel_functions import Polynomial as Polynomial
    from congruence.kernels.kernel_functions import median_gamma as median_gamma
    from congruence.kernels.marginal_calibration import CountFrequencies as CountFrequencies
    from congruence.kernels.marginal_calibration import count_frequencies as count_frequencies
    from congruence.kernels.marginal_calibration import expected_calibration_error as expected_calibration_error
    from congruence.kernels.marginal_calibration import reliability_curve as reliability_curve
    from congruence.kernels.measures import DiscrepancyResult as DiscrepancyResult
    from congruence.kernels.measures import conditional_congruence_error as conditional_congruence_error
    from congruence.kernels.measures import congruence_test as congruence_test
    from congruence.kernels.measures import maximum_conditional_mean_discrepancy as maximum_conditional_mean_discrepancy
    from congruence.kernels.pit import chi_square as chi_square
    from congruence.kernels.pit import cramer_von_mises as cramer_von_mises
    from congruence.kernels.pit import kolmogorov_smirnov as kolmogorov_smirnov
    from congruence.kernels.pit import pit_values as pit_values
    from congruence.kernels.pit_interpreter.interpretation import Interpretation as Interpretation
    from congruence.kernels.pit_interpreter.interpretation import interpret_pit as interpret_pit
    from congruence.kernels.protocol import ECAI as ECAI
    from congruence.kernels.protocol import EXACT as EXACT
    from congruence.kernels.protocol import PREPRINT as PREPRINT
    from congruence.kernels.protocol import Downsampling as Downsampling
    from congruence.kernels.protocol import EvaluationProtocol as EvaluationProtocol
    from congruence.kernels.resampling import Estimate as Estimate
    from congruence.kernels.resampling import ScoreStatistics as ScoreStatistics
    from congruence.kernels.scores import absolute_error as absolute_error
    from congruence.kernels.scores import crps as crps
    from congruence.kernels.scores import interval_score as interval_score
    from congruence.kernels.scores import negative_log_likelihood as negative_log_likelihood
    from congruence.kernels.scores import pinball_score as pinball_score
    from congruence.kernels.scores import sharpness as sharpness
    from congruence.kernels.scores import squared_error as squared_error
    from congruence.kernels.split import Split as Split
    from congruence.kernels.split import prepare as prepare
    from congruence.kernels.trust.judgement import RejectionCurve as RejectionCurve
    from congruence.kernels.trust.judgement import rejection_curve as rejection_curve
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
