"""Predictive distributions: one frozen object holds the distributions of n rows."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.kernels.distributions.base import Distribution
    from congruence.kernels.distributions.beta import Beta
    from congruence.kernels.distributions.binomial import Binomial
    from congruence.kernels.distributions.censored_normal import CensoredNormal
    from congruence.kernels.distributions.deterministic import Deterministic
    from congruence.kernels.distributions.double_poisson import DoublePoisson
    from congruence.kernels.distributions.gamma import Gamma
    from congruence.kernels.distributions.histogram import Histogram
    from congruence.kernels.distributions.laplace import Laplace
    from congruence.kernels.distributions.logistic import Logistic
    from congruence.kernels.distributions.lognormal import LogNormal
    from congruence.kernels.distributions.mixture import Mixture
    from congruence.kernels.distributions.multivariate_normal import MultivariateNormal
    from congruence.kernels.distributions.negative_binomial import NegativeBinomial
    from congruence.kernels.distributions.normal import Normal
    from congruence.kernels.distributions.poisson import Poisson
    from congruence.kernels.distributions.quantiles import Quantiles
    from congruence.kernels.distributions.samples import Samples
    from congruence.kernels.distributions.student_t import StudentT
    from congruence.kernels.distributions.truncated_normal import TruncatedNormal
    from congruence.kernels.distributions.uniform import Uniform
    from congruence.kernels.distributions.weighted_samples import WeightedSamples
    from congruence.kernels.distributions.zero_modified import (
        HurdleBinomial,
        HurdleDoublePoisson,
        HurdleNegativeBinomial,
        HurdlePoisson,
        ZeroInflatedBinomial,
        ZeroInflatedDoublePoisson,
        ZeroInflatedNegativeBinomial,
        ZeroInflatedPoisson,
    )
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "Beta",
    "Binomial",
    "CensoredNormal",
    "Deterministic",
    "Distribution",
    "DoublePoisson",
    "Gamma",
    "Histogram",
    "HurdleBinomial",
    "HurdleDoublePoisson",
    "HurdleNegativeBinomial",
    "HurdlePoisson",
    "Laplace",
    "LogNormal",
    "Logistic",
    "Mixture",
    "MultivariateNormal",
    "NegativeBinomial",
    "Normal",
    "Poisson",
    "Quantiles",
    "Samples",
    "StudentT",
    "TruncatedNormal",
    "Uniform",
    "WeightedSamples",
    "ZeroInflatedBinomial",
    "ZeroInflatedDoublePoisson",
    "ZeroInflatedNegativeBinomial",
    "ZeroInflatedPoisson",
]
