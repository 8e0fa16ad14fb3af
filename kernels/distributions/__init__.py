"""Predictive distributions: one frozen object holds the distributions of n rows."""

from congruence.kernels.distributions.base import Distribution
from congruence.kernels.distributions.deterministic import Deterministic
from congruence.kernels.distributions.laplace import Laplace
from congruence.kernels.distributions.mixture import Mixture
from congruence.kernels.distributions.normal import Normal
from congruence.kernels.distributions.poisson import Poisson
from congruence.kernels.distributions.samples import Samples

__all__ = [
    "Deterministic",
    "Distribution",
    "Laplace",
    "Mixture",
    "Normal",
    "Poisson",
    "Samples",
]
