"""Inputs of unit norm as encoders give them, targets that follow them, and the kernel of the protocols for them."""

import numpy as np

from congruence.kernels import Polynomial
from congruence.kernels.arrays import Array

CUBIC = Polynomial(degree=3, gamma=1.0, coef0=1.0)


def unit_rows(n: int, d: int = 5, seed: int = 0) -> Array:
    """Directions (n, d) that are drawn evenly."""
    x = np.random.default_rng(seed).standard_normal((n, d))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def unit_split(n: int = 120, seed: int = 0) -> tuple[Array, Array, Array]:
    """Such inputs, targets of spread 1, and their means."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 5))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    mean = 10.0 + 4.0 * x[:, 0]
    return x, rng.normal(mean, 1.0), mean


def embedded(x: Array) -> Array:
    """Inputs as unit-norm features of a fixed random network, (n, 32)."""
    rng = np.random.default_rng(1)
    features = np.tanh(x @ rng.normal(size=(x.shape[1], 32)) * 0.6 + rng.normal(size=32))
    return np.asarray((features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32))
