"""Predictive distributions: one frozen object holds the distributions of n rows."""

from typing import TYPE_CHECKING
from typing import ClassVar as ClassVar  # looked up here by dataclasses, since families name this as their module

if TYPE_CHECKING:
    from congruence.kernels.distributions.base import Distribution as Distribution
    from congruence.kernels.distributions.bounded_normal import CensoredNormal as CensoredNormal
    from congruence.kernels.distributions.bounded_normal import TruncatedNormal as TruncatedNormal
    from congruence.kernels.distributions.continuous import Beta as Beta
    from congruence.kernels.distributions.continuous import Gamma as Gamma
    from congruence.kernels.distributions.continuous import Laplace as Laplace
    from congruence.kernels.distributions.continuous import Logistic as Logistic
    from congruence.kernels.distributions.continuous import LogNormal as LogNormal
    from congruence.kernels.distributions.continuous import Normal as Normal
    from congruence.kernels.distributions.continuous import StudentT as StudentT
    from congruence.kernels.distributions.continuous import Uniform as Uniform
    from congruence.kernels.distributions.count_families import Binomial as Binomial
    from congruence.kernels.distributions.count_families import DoublePoisson as DoublePoisson
    from congruence.kernels.distributions.count_families import NegativeBinomial as NegativeBinomial
    from congruence.kernels.distributions.count_families import Poisson as Poisson
    from congruence.kernels.distributions.counts import Hurdle as Hurdle
    from congruence.kernels.distributions.counts import ZeroInflated as ZeroInflated
    from congruence.kernels.distributions.mixture import Mixture as Mixture
    from congruence.kernels.distributions.mixture import MultivariateNormal as MultivariateNormal
    from congruence.kernels.distributions.quantiles import Histogram as Histogram
    from congruence.kernels.distributions.quantiles import Quantiles as Quantiles
    from congruence.kernels.distributions.samples import Deterministic as Deterministic
    from congruence.kernels.distributions.samples import Samples as Samples
    from congruence.kernels.distributions.samples import WeightedSamples as WeightedSamples
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
