"""The histogram's bins, and normal mixtures as the data-generating distributions behind it.

PIT values are counted in the twenty bins that people look at, with the two outer ones split for the tails. Mixtures are
refined by expectation-maximisation towards the counts themselves.
"""

import numpy as np
from scipy.special import ndtr, ndtri

from congruence.kernels.arrays import Array

HISTOGRAM_BINS = 20

# The outer bins hold everything beyond 1.64 predictive standard deviations. Split at these levels they tell a heavy
# tail from a wide distribution; beyond 1e-4 even a million values leave too few counts to read.
TAIL_LEVELS = (1e-4, 1e-3, 1e-2, 2.5e-2)

_tails = np.asarray(TAIL_LEVELS)
_inner = np.linspace(0.0, 1.0, HISTOGRAM_BINS + 1)[1:-1]

EDGES: Array = np.concatenate([[0.0], _tails, _inner, 1.0 - _tails[::-1], [1.0]])
"""Edges of the counted bins, from 0 to 1, shape (29,)."""

NORMAL_EDGES: Array = ndtri(EDGES[1:-1])
"""The inner edges on the scale of the standard normal predictive distribution, shape (27,)."""

_STARTS = np.concatenate([[0], np.arange(len(_tails) + 1, len(_tails) + HISTOGRAM_BINS)])

SUPPORT: Array = np.linspace(-6.0, 6.0, 241)
"""Where distribution functions are compared, in predictive standard deviations: PIT values say nothing further out."""

SPACING = float(SUPPORT[1] - SUPPORT[0])

STEPS = 20
PRIOR_ROWS = 1000.0
"""How many outcomes the network's estimate is worth: chosen on held-out histograms of all sample sizes. With 100
outcomes the estimate stays what it was; with 10^6 the amortised network alone has four times the error.
"""

_FAR = 40.0
_SMALLEST_MASS = 1e-12
_SMALLEST_SCALE = 0.02


def count(values: Array) -> Array:
    """Return the counts of PIT ``values`` between EDGES, shape (28,)."""
    return np.histogram(values, bins=EDGES)[0]


def merge(counts: Array) -> Array:
    """Return counts or probabilities (..., 28) between EDGES, summed into the twenty equal bins (..., 20)."""
    return np.asarray(np.add.reduceat(counts, _STARTS, axis=-1))


def histogram(counts: Array) -> Array:
    """Return the histogram (..., 20) of ``counts`` (..., 28), scaled so that the area under it is one."""
    merged = merge(counts)
    return np.asarray(merged * (HISTOGRAM_BINS / merged.sum(axis=-1, keepdims=True)))


def mixture_cdf(weights: Array, means: Array, scales: Array, at: Array) -> Array:
    """Return the distribution functions of mixtures with parameters (m, K) at the points ``at`` (p,), (m, p)."""
    total = np.zeros((len(weights), len(at)))
    for weight, mean, scale in zip(weights.T, means.T, scales.T, strict=True):
        total += weight[:, None] * ndtr((at - mean[:, None]) / scale[:, None])
    return total


def mixture_density(weights: Array, means: Array, scales: Array, at: Array) -> Array:
    """Return the densities of mixtures with parameters (m, K) at the points ``at`` (p,), (m, p)."""
    total = np.zeros((len(weights), len(at)))
    for weight, mean, scale in zip(weights.T, means.T, scales.T, strict=True):
        z = (at - mean[:, None]) / scale[:, None]
        total += (weight / scale)[:, None] * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    return total


def wasserstein(cdf: Array, other: Array) -> Array:
    """Return the 1-Wasserstein distance of distribution functions (..., 241) on SUPPORT."""
    return np.asarray(np.abs(cdf - other).sum(axis=-1) * SPACING)


def refine(counts: Array, weights: Array, means: Array, scales: Array) -> tuple[Array, Array, Array]:
    """Return the weights, means and scales of mixtures (m, K) moved towards the likelihood of ``counts`` (m, 28).

    Maximises the grouped-data likelihood (McLachlan and Jones, 1988) of the counts together with PRIOR_ROWS
    pseudo-counts in the proportions of the mixture that was given.
    """
    edges = np.concatenate([[-np.inf], NORMAL_EDGES, [np.inf]])
    given = _moments(edges, means, scales)[0]
    prior = (weights[:, :, None] * given).sum(axis=1)
    shares = (counts + PRIOR_ROWS * prior) / (counts.sum(axis=1, keepdims=True) + PRIOR_ROWS)
    for _ in range(STEPS):
        mass, first, second = _moments(edges, means, scales)
        total = (weights[:, :, None] * mass).sum(axis=1)
        # Where no component reaches a bin its moments are rounding errors: its counts then pull at nothing.
        reached = np.where(total > _SMALLEST_MASS, shares / np.maximum(total, _SMALLEST_MASS), 0.0)
        responsibility = reached[:, None, :] * weights[:, :, None]
        size = (responsibility * mass).sum(axis=2) + _SMALLEST_MASS
        shift = (responsibility * first).sum(axis=2) / size
        variance = (responsibility * second).sum(axis=2) / size - shift**2
        weights = size / size.sum(axis=1, keepdims=True)
        means = means + scales * shift
        scales = np.maximum(scales * np.sqrt(np.maximum(variance, 0.0)), _SMALLEST_SCALE)
    return weights, means, scales


def _moments(edges: Array, means: Array, scales: Array) -> tuple[Array, Array, Array]:
    """Return integrals of 1, z and z^2 over each bin under each component, in its own units, each (m, K, bins)."""
    z = np.clip((edges - means[:, :, None]) / scales[:, :, None], -_FAR, _FAR)
    height = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    mass = np.diff(ndtr(z), axis=2)
    return mass, -np.diff(height, axis=2), mass - np.diff(z * height, axis=2)
