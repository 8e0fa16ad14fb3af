"""Predictive distributions: one frozen object holds the distributions of n rows."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.kernels.distributions.base import Distribution as Distribution
    from congruence.kernels.distributions.beta import Beta as Beta
    from congruence.kernels.distributions.binomial import Binomial as Binomial
    from congruence.kernels.distributions.censored_normal import CensoredNormal as CensoredNormal
    from congruence.kernels.distributions.deterministic import Deterministic as Deterministic
    from congruence.kernels.distributions.double_poisson import DoublePoisson as DoublePoisson
    from congruence.kernels.distributions.gamma import Gamma as Gamma
    from congruence.kernels.distributions.histogram import Histogram as Histogram
    from congruence.kernels.distributions.laplace import Laplace as Laplace
    from congruence.kernels.distributions.logistic import Logistic as Logistic
    from congruence.kernels.distributions.lognormal import LogNormal as LogNormal
    from congruence.kernels.distributions.mixture import Mixture as Mixture
    from congruence.kernels.distributions.multivariate_normal import MultivariateNormal as MultivariateNormal
    from congruence.kernels.distributions.negative_binomial import NegativeBinomial as NegativeBinomial
    from congruence.kernels.distributions.normal import Normal as Normal
    from congruence.kernels.distributions.poisson import Poisson as Poisson
    from congruence.kernels.distributions.quantiles import Quantiles as Quantiles
    from congruence.kernels.distributions.samples import Samples as Samples
    from congruence.kernels.distributions.student_t import StudentT as StudentT
    from congruence.kernels.distributions.truncated_normal import TruncatedNormal as TruncatedNormal
    from congruence.kernels.distributions.uniform import Uniform as Uniform
    from congruence.kernels.distributions.weighted_samples import WeightedSamples as WeightedSamples
    from congruence.kernels.distributions.zero_modified import HurdleBinomial as HurdleBinomial
    from congruence.kernels.distributions.zero_modified import HurdleDoublePoisson as HurdleDoublePoisson
    from congruence.kernels.distributions.zero_modified import HurdleNegativeBinomial as HurdleNegativeBinomial
    from congruence.kernels.distributions.zero_modified import HurdlePoisson as HurdlePoisson
    from congruence.kernels.distributions.zero_modified import ZeroInflatedBinomial as ZeroInflatedBinomial
    from congruence.kernels.distributions.zero_modified import ZeroInflatedDoublePoisson as ZeroInflatedDoublePoisson
    from congruence.kernels.distributions.zero_modified import (
        ZeroInflatedNegativeBinomial as ZeroInflatedNegativeBinomial,
    )
    from congruence.kernels.distributions.zero_modified import ZeroInflatedPoisson as ZeroInflatedPoisson
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
