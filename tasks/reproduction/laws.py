"""The papers' data-generating laws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration import calibration_error_of_pit
from congruence.kernels.distributions import (
    Distribution,
    DoublePoisson,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
)

_MOST = 30
_LEAST_VARIANCE = 0.05  # of the families' best members, where the wave's own variance falls to nothing


@dataclass(frozen=True)
class Comparison:
    """A law and the six that Young et al. (2024, section 4.1) compare with it: each a Normal at given inputs."""

    truth: Normal
    inputs: Array
    shift: float
    narrow: Array
    wide: Array

    def compared(self) -> dict[str, Normal]:
        """The laws of the comparison samples, at ``inputs``."""
        mean, scale = self.truth.loc, self.truth.scale
        return {
            "same law": self.truth,
            "smaller spread": Normal(mean, self.narrow),
            "larger spread": Normal(mean, self.wide),
            "other mean, smaller spread": Normal(mean - self.shift, self.narrow),
            "other mean, larger spread": Normal(mean - self.shift, self.wide),
            "other shape": Normal(self.inputs - 5.0, np.full(len(scale), 0.5)),
        }


def homoscedastic(x: Array) -> Comparison:
    """N(cos x, 1/2) on [0, 2 pi] (appendix A.1); spreads are standard deviations."""
    ones = np.ones(len(x))
    return Comparison(Normal(np.cos(x), 0.5 * ones), x, 2.0, 0.1 * ones, 1.5 * ones)


def heteroscedastic(x: Array) -> Comparison:
    """N(sin x, sqrt(max(x, 1/5))) on [-pi, pi] (appendix A.2)."""
    scale = np.sqrt(np.maximum(x, 0.2))
    return Comparison(Normal(np.sin(x), scale), x, 3.0, scale / 4.0, 2.0 * scale)


@dataclass(frozen=True)
class Wave:
    """The discrete wave: y = 30 - c, c from the conflation of five Poisson(10 sin x + 10) laws."""

    x: Array
    y: Array
    mean: Array
    variance: Array

    def best_members(self) -> dict[str, Distribution]:
        """The members of four families with the mean and variance of the truth, as far as the family allows."""
        variance = np.maximum(self.variance, _LEAST_VARIANCE)
        return {
            "Gaussian": Normal(self.mean, np.sqrt(variance)),
            "Double Poisson": DoublePoisson(self.mean, self.mean / variance),
            "Poisson": Poisson(self.mean),
            "Negative binomial": NegativeBinomial(self.mean, np.full(len(self.mean), 0.01)),
        }


def discrete_wave(rows: int, seed: int) -> Wave:
    """``rows`` pairs of the wave (Young et al. 2024, appendix B)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.0, 2.0 * np.pi, rows)
    counts = np.arange(_MOST + 1.0)
    log_mass = 5.0 * np.stack([Poisson(10.0 * np.sin(x) + 10.0).log_prob(np.full(rows, c)) for c in counts], axis=1)
    mass = np.exp(log_mass - log_mass.max(axis=1, keepdims=True))
    mass /= mass.sum(axis=1, keepdims=True)
    drawn = (rng.uniform(size=(rows, 1)) > np.cumsum(mass, axis=1)).sum(axis=1)
    mean = mass @ counts
    return Wave(x, _MOST - drawn.astype(np.float64), _MOST - mean, mass @ counts**2 - mean**2)


def four_count_laws(rows: int, seed: int) -> dict[str, Distribution]:
    """The laws of Young et al. (2025, figure 13) at x ~ U(1, 10): mean x and variance x each, epsilon = 0.1.

    The negative binomial has x^2 / epsilon successes, and here mean x and variance x + epsilon; with the probability
    1 - epsilon that is printed its mean would be x^2 / (1 - epsilon), and not "identical".
    """
    x = np.random.default_rng(seed).uniform(1.0, 10.0, rows)
    return {
        "Gaussian": Normal(x, np.sqrt(x)),
        "Poisson": Poisson(x),
        "Negative binomial": NegativeBinomial(x, 0.1 / x**2),
        "Double Poisson": DoublePoisson(x, np.ones(rows)),
    }


def calibrated_predictions(rows: int, dimension: int, seed: int) -> tuple[Distribution, Array]:
    """N(c 1, 0.1^2 I) with c ~ U(0, 1), and targets drawn from them (Widmann et al. 2021, section 4.2)."""
    rng = np.random.default_rng(seed)
    center = np.broadcast_to(rng.uniform(size=(rows, 1)), (rows, dimension)).copy()
    y = center + 0.1 * rng.standard_normal((rows, dimension))
    if dimension == 1:
        return Normal(center[:, 0], np.full(rows, 0.1)), y[:, 0]
    return MultivariateNormal(center, np.full((rows, dimension), 0.1)), y


def uncalibrated_predictions(rows: int, dimension: int, seed: int) -> tuple[Distribution, Array]:
    """The same with the first target from N(0.1, 0.1^2), whatever is predicted."""
    predicted, y = calibrated_predictions(rows, dimension, seed)
    other = 0.1 + 0.1 * np.random.default_rng([seed, 1]).standard_normal(rows)
    if y.ndim == 1:
        return predicted, other
    y[:, 0] = other
    return predicted, y


def uncalibrated_skce(dimension: int, gamma: float) -> float:
    """SKCE of ``uncalibrated_predictions`` by quadrature over the two predictions, k_P = exp(-W_2), k_Y = RBF(gamma).

    The kernel mean of a normal law in that of another with the same variance s^2 in each of d coordinates is
    (1 + 4 gamma s^2)^(-d/2) exp(-gamma |m - m'|^2 / (1 + 4 gamma s^2)); laws here differ in their means alone.
    """
    nodes, weights = np.polynomial.legendre.leggauss(400)
    center, weight = (nodes + 1.0) / 2.0, weights / 2.0
    stated = np.repeat(center[:, None], dimension, axis=1)
    true = stated.copy()
    true[:, 0] = 0.1
    widened = 1.0 + 4.0 * gamma * 0.1**2

    def means(first: Array, second: Array) -> Array:
        squared = ((first[:, None] - second[None]) ** 2).sum(axis=2)
        return np.asarray(widened ** (-dimension / 2.0) * np.exp(-gamma * squared / widened))

    products = means(true, true) - means(stated, true) - means(true, stated) + means(stated, stated)
    similar = np.exp(-np.sqrt(dimension) * np.abs(center[:, None] - center[None]))
    return float(weight @ (similar * products) @ weight)


def ols_rows(rows: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """y = sin(pi x) + |1 + x| eps, x ~ U(-1, 1), eps ~ N(0, 0.15^2) (Widmann et al. 2021, section 1)."""
    x = rng.uniform(-1.0, 1.0, rows)
    return x, np.sin(np.pi * x) + np.abs(1.0 + x) * 0.15 * rng.standard_normal(rows)


def friedman(rows: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Friedman 1 (1991): ten inputs of which five matter, noise N(0, 1)."""
    x = rng.uniform(size=(rows, 10))
    mean = 10.0 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20.0 * (x[:, 2] - 0.5) ** 2 + 10.0 * x[:, 3] + 5.0 * x[:, 4]
    return x, mean + rng.standard_normal(rows)


def rejected_rows(rows: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """N(x cos^2 x - sqrt(|x| + 3), (2 |2 - x| + 1) / 8), x ~ U(0, 2 pi) (Young et al. 2025, appendix C.1)."""
    x = rng.uniform(0.0, 2.0 * np.pi, rows)
    return x[:, None], rng.normal(x * np.cos(x) ** 2 - np.sqrt(np.abs(x) + 3.0), (2.0 * np.abs(2.0 - x) + 1.0) / 8.0)


def inverse_problem(rows: int, seed: int = 0) -> tuple[Array, Array]:
    """x = u^2, y = u + 0.25 eps, u ~ U(-1, 1): two branches, a normal has one mode (Podsztavek et al. 2024, 4.1)."""
    rng = np.random.default_rng(seed)
    u = rng.uniform(-1.0, 1.0, rows)
    return (u**2)[:, None], u + 0.25 * rng.standard_normal(rows)


def largest_chance_ece(rows: int, seed: int, *, draws: int = 200, share: float = 0.99) -> float:
    """The ECE (50 levels, uniform weights) that ``share`` of calibrated models on ``rows`` rows stay below."""
    rng = np.random.default_rng([seed, rows])
    return float(np.quantile([calibration_error_of_pit(rng.uniform(size=rows)) for _ in range(draws)], share))
