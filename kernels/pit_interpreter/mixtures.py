"""Rows of normal mixtures, the decomposition's form of a data-generating distribution."""

import numpy as np
from scipy.special import ndtr

from congruence.kernels.arrays import Array

SUPPORT: Array = np.linspace(-6.0, 6.0, 241)
"""Where distribution functions are compared, in predictive standard deviations: PIT values say nothing further out."""

SPACING = float(SUPPORT[1] - SUPPORT[0])


def mixture_cdf(weights: Array, means: Array, scales: Array, at: Array) -> Array:
    """Distribution functions of m mixtures with parameters (m, K) at the points ``at`` (p,), shape (m, p)."""
    total = np.zeros((len(weights), len(at)))
    for weight, mean, scale in zip(weights.T, means.T, scales.T, strict=True):
        total += weight[:, None] * ndtr((at - mean[:, None]) / scale[:, None])
    return total


def mixture_density(weights: Array, means: Array, scales: Array, at: Array) -> Array:
    """Densities of m mixtures with parameters (m, K) at the points ``at`` (p,), shape (m, p)."""
    total = np.zeros((len(weights), len(at)))
    for weight, mean, scale in zip(weights.T, means.T, scales.T, strict=True):
        z = (at - mean[:, None]) / scale[:, None]
        total += (weight / scale)[:, None] * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    return total


def wasserstein(cdf: Array, other: Array) -> Array:
    """The 1-Wasserstein distance of distribution functions (..., 241) on SUPPORT, in predictive standard deviations."""
    return np.asarray(np.abs(cdf - other).sum(axis=-1) * SPACING)
