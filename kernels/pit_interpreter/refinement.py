"""Steps of expectation-maximisation from the network's estimate towards the counts themselves."""

import numpy as np
from scipy.special import ndtr

from congruence.kernels.arrays import Array
from congruence.kernels.pit_interpreter.bins import NORMAL_EDGES

STEPS = 20
PRIOR_ROWS = 1000.0
"""How many outcomes the network's estimate is worth: chosen on held-out histograms of all sample sizes. With 100
outcomes the estimate stays what it was; with 10^6 the amortised network alone has four times the error.
"""

_FAR = 40.0
_SMALLEST_MASS = 1e-12
_SMALLEST_SCALE = 0.02


def refine(counts: Array, weights: Array, means: Array, scales: Array) -> tuple[Array, Array, Array]:
    """Normal mixtures (m, K) moved towards the likelihood of bin ``counts`` (m, 28); weights, means, scales.

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
    """Integrals of 1, z and z^2 over each bin under each component, in its own standard units, each (m, K, bins)."""
    z = np.clip((edges - means[:, :, None]) / scales[:, :, None], -_FAR, _FAR)
    height = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    mass = np.diff(ndtr(z), axis=2)
    return mass, -np.diff(height, axis=2), mass - np.diff(z * height, axis=2)
