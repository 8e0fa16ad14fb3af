"""Every family of distributions with some rows: a family that is entered here is held to the whole suite.

``ORDINARY`` has rows whose every property is checked to eight digits or as stated, ``HARD`` rows whose
expectations are, ``EXTREME`` rows that must stay
finite and agree with themselves. ``Gumbel`` and ``Geometric`` are what a user would write: the least that is asked for.
"""

from dataclasses import dataclass

import numpy as np

from congruence.kernels import distributions as families
from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.base import Parametric
from congruence.kernels.distributions.counts import Count
from congruence.kernels.distributions.recalibrated import recalibrated
from congruence.kernels.distributions.score_map import NormalScoreMap


@dataclass(frozen=True)
class Gumbel(Parametric):
    """P(Y <= y) = exp(-exp(-(y - loc) / scale)): a continuous family in two methods."""

    loc: Array
    scale: Array

    def _log_prob(self, y: Array) -> Array:
        loc, scale = self._columns
        z = (y - loc) / scale
        return -z - np.exp(-np.maximum(z, -700.0)) - np.log(scale)

    def _cdf(self, y: Array) -> Array:
        loc, scale = self._columns
        return np.exp(-np.exp(-np.clip((y - loc) / scale, -700.0, 700.0)))


@dataclass(frozen=True)
class Geometric(Count):
    """P(Y = k) = p (1 - p)^k: a family of counts in five methods."""

    p: Array

    def _log_mass(self, k: Array) -> Array:
        (p,) = self._columns
        return np.log(p) + k * np.log1p(-p)

    def _at_most(self, k: Array) -> Array:
        return -np.expm1((k + 1.0) * np.log1p(-self.p[:, None]))

    def _beyond(self, k: Array) -> Array:
        return np.exp((k + 1.0) * np.log1p(-self.p[:, None]))

    def mean(self) -> Array:
        return (1.0 - self.p) / self.p

    def std(self) -> Array:
        return np.sqrt(1.0 - self.p) / self.p


N = 4
RNG = np.random.default_rng(20)
LOC, SCALE = RNG.normal(0, 2, N), RNG.uniform(0.3, 2, N)
MEAN, SHARE = RNG.uniform(0.2, 30, N), RNG.uniform(0.05, 0.6, N)
TRIALS, DISPERSION, PHI = RNG.integers(1, 40, N), RNG.uniform(0.05, 1.5, N), RNG.uniform(0.3, 4, N)
LEVELS = np.array([0.05, 0.2, 0.5, 0.7, 0.95])
VALUES = np.sort(RNG.normal(size=(N, 5)), axis=1)
BORDERS, MASSES = np.array([-3.0, -1.0, -0.2, 0.5, 1.0, 4.0]), np.random.default_rng(21).dirichlet(np.ones(5), N)
OWN_BORDERS = LOC[:, None] + SCALE[:, None] * BORDERS
MAP = NormalScoreMap(RNG.normal(0, 0.3, N), RNG.uniform(0.7, 1.6, N), np.array([0.0, 0.5, 1.0]), [[0.0, 0.55, 1.0]] * N)

CONTINUOUS: dict[str, Distribution] = {
    "Normal": families.Normal(LOC, SCALE),
    "Laplace": families.Laplace(LOC, SCALE),
    "StudentT": families.StudentT(np.array([16.0, 20.0, 52.0, 90.0]), LOC, SCALE),
    "Logistic": families.Logistic(LOC, SCALE),
    "LogNormal": families.LogNormal(RNG.uniform(0.1, 0.5, N), SCALE),
    "Gamma": families.Gamma(RNG.uniform(0.6, 9, N), SCALE),
    "Beta": families.Beta(RNG.uniform(0.6, 9, N), RNG.uniform(0.6, 9, N)),
    "Uniform": families.Uniform(LOC, SCALE),
    "TruncatedNormal": families.TruncatedNormal(LOC, SCALE, LOC - RNG.uniform(-0.3, 2, N), LOC + 2.5),
    "half-open TruncatedNormal": families.TruncatedNormal(LOC, SCALE, 0.0, np.inf),
    "Quantiles": families.Quantiles(LEVELS, VALUES),
    "Quantiles with exponential tails": families.Quantiles(LEVELS, VALUES, "exponential"),
    "Quantiles without tails": families.Quantiles(LEVELS, VALUES, "none"),
    "Histogram": families.Histogram(BORDERS, MASSES),
    "Histogram with borders by row": families.Histogram(OWN_BORDERS, MASSES),
    "Histogram with tails": families.Histogram(OWN_BORDERS, MASSES, tail_share=0.2),
    "Mixture of normals": families.Mixture(
        RNG.dirichlet(np.ones(3), N), [families.Normal(LOC + 2.0 * k, SCALE / (k + 1)) for k in range(3)]
    ),
    "Mixture of families": families.Mixture([0.4, 0.6], [families.Laplace(LOC, SCALE), families.Logistic(-LOC, SCALE)]),
    "Recalibrated": recalibrated(families.Gamma(np.full(N, 3.0), SCALE), MAP),
    "Gumbel": Gumbel(LOC, SCALE),
}
BASES: dict[str, Count] = {
    "Poisson": families.Poisson(MEAN),
    "NegativeBinomial": families.NegativeBinomial(MEAN, DISPERSION),
    "DoublePoisson": families.DoublePoisson(MEAN, PHI),
    "Binomial": families.Binomial(TRIALS, SHARE),
    "Geometric": Geometric(SHARE),
}
COUNTS: dict[str, Distribution] = {
    **BASES,
    **{f"ZeroInflated {name}": families.ZeroInflated(base, SHARE) for name, base in BASES.items()},
    **{f"Hurdle {name}": families.Hurdle(base, SHARE) for name, base in BASES.items()},
    "Mixture of counts": families.Mixture([0.3, 0.7], [families.Poisson(MEAN), families.Binomial(TRIALS, SHARE)]),
    "Recalibrated counts": recalibrated(families.NegativeBinomial(MEAN, DISPERSION), MAP),
}
ATOMS: dict[str, Distribution] = {
    "CensoredNormal": families.CensoredNormal(LOC, SCALE, LOC - 1.0, LOC + 0.5),
    "half-open CensoredNormal": families.CensoredNormal(LOC, SCALE, LOC - 0.5 * SCALE, np.inf),
    "Samples": families.Samples(RNG.normal(size=(N, 7))),
    "WeightedSamples": families.WeightedSamples(BORDERS[[3, 0, 1, 2, 3]], MASSES),
    "WeightedSamples with points by row": families.WeightedSamples(OWN_BORDERS[:, 1:], MASSES),
    "Deterministic": families.Deterministic(LOC),
    "Quantiles with an atom": families.Quantiles(LEVELS, np.maximum(VALUES, VALUES[:, 1:2])),
    "recalibrated CensoredNormal": recalibrated(families.CensoredNormal(LOC, SCALE, LOC - 1.0, LOC + 0.5), MAP),
    "Mixture with an atom": families.Mixture([0.2, 0.8], [families.Deterministic(LOC), families.Normal(LOC, SCALE)]),
}
ORDINARY = {**CONTINUOUS, **COUNTS, **ATOMS}
HARD: dict[str, Distribution] = {
    "StudentT of few degrees": families.StudentT([8.5, 9.0], LOC[:2], SCALE[:2]),
    "Beta with a pole": families.Beta([0.5, 3.0], [2.0, 1.2]),
    "DoublePoisson of few": families.DoublePoisson([0.3, 4.0], [0.5, 2.0]),
    "NegativeBinomial of few": families.NegativeBinomial([0.3, 4.0], [2.0, 0.3]),
    "Binomial of few": families.Binomial([3.0, 12.0], [0.2, 0.6]),
    "ZeroInflated Poisson of few": families.ZeroInflated(families.Poisson([0.3, 4.0]), [0.4, 0.2]),
    "Hurdle NegativeBinomial of few": families.Hurdle(families.NegativeBinomial([0.3, 4.0], [2.0, 0.3]), [0.4, 0.2]),
    "CensoredNormal with a far bound": families.CensoredNormal([0.3, -1.0], [0.7, 1.5], [0.0, -1.2], [1.0, np.inf]),
    "TruncatedNormal with a far bound": families.TruncatedNormal([0.3, -1.0], [0.7, 1.5], [0.0, -1.2], [1.0, np.inf]),
}
"""Rows whose expectations are exact, too, and for which few rules of quadrature serve."""

_SHAPES = np.array([1e-3, 0.3, 30.0, 1e5])
SPREAD_OUT = families.DoublePoisson([1e-250, 1e-3, 1e3, 50.0], [1.0, 1e-2, 1e6, 0.1])
EXTREME: dict[str, Distribution] = {
    "Normal": families.Normal([0.0, 1e6, -1e6, 3.0], [1e-12, 1e-6, 1e12, 1.0]),
    "Laplace": families.Laplace([0.0, 1e6, -1e6, 3.0], [1e-12, 1e-6, 1e12, 1.0]),
    "Logistic": families.Logistic([0.0, 1e6, -1e6, 3.0], [1e-12, 1e-6, 1e12, 1.0]),
    "StudentT": families.StudentT([1.01, 1.5, 1e9, 1e16], [0.0, 1e5, 0.0, 0.0], [1.0, 1e-3, 1e9, 1.0]),
    "LogNormal": families.LogNormal([1e-8, 0.01, 2.0, 5.0], [1.0, 1e-9, 1e9, 1.0]),
    "Gamma": families.Gamma(_SHAPES, [1e9, 1.0, 1e-9, 1e-4]),
    "Beta": families.Beta(_SHAPES, [2.0, 1e-3, 1e4, 1e5]),
    "Uniform": families.Uniform([0.0, 1e6, -1e6, 3.0], [1e-12, 1e-6, 1e12, 1.0]),
    "TruncatedNormal": families.TruncatedNormal(
        [0.0, -1e6, 1e6, 0.3, 3.0], [1.0, 1.0, 1.0, 1e9, 1.0], [30.0, 0.0, -np.inf, 0.0, -np.inf],
        [np.inf, np.inf, 0.0, 1.0, -40.0],
    ),
    "CensoredNormal": families.CensoredNormal(
        [-9.0, -1e6, 1e6, 0.5, 30.0], [1.0, 1.0, 1.0, 1e5, 2.0], [0.0, 0.0, -np.inf, 0.0, 0.0],
        [np.inf, 5.0, 0.0, 1.0, 10.0],
    ),
    "Poisson": families.Poisson([0.0, 1e-300, 1e-9, 3e4, 1e6]),
    "NegativeBinomial": families.NegativeBinomial(
        [0.0, 1e-300, 1e-9, 6.0, 1e4, 30.0], [1.0, 1e2, 1.0, 1e-16, 0.5, 0.0]
    ),
    "Binomial": families.Binomial([0, 4, 4, 2000, 10**12, 10**6], [0.3, 0.0, 1.0, 1e-12, 1e-12, 0.5]),
    "DoublePoisson": SPREAD_OUT,
    "ZeroInflated": families.ZeroInflated(families.Poisson([3.0, 1e-9, 1e3, 3.0]), [1.0, 0.5, 1e-300, 0.0]),
    "Hurdle": families.Hurdle(families.NegativeBinomial([0.0, 1e-250, 1e-9, 1e3], [1.0, 1.0, 1e-9, 1.0]), SHARE),
    "Hurdle DoublePoisson": families.Hurdle(SPREAD_OUT, 0.2),
    "Mixture": families.Mixture([1e-12, 1.0 - 1e-12], [families.Normal(1e6, 1e-9), families.Laplace(0.0, 1e9)]),
}  # fmt: skip
