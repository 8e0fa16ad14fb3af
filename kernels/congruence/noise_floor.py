"""The noise floor: E[CCE(x)^2] = sum_i a_i(x)^2 v_i if the model is the truth, by a few random probes.

With z_i = +-sqrt(v_i) at random, (k(x)' A^-1 z)^2 has that expectation (Hutchinson 1990), and a standard deviation of
sqrt(2) times it. The leading spectrum L of the smoother W knows most of both sums, so only the rest is left to chance:

    E[CCE(x_j)^2] = sum_i L_ji^2 v_i + E[(W z)_j^2 - (L z)_j^2].

The estimate is unbiased whatever L is, and its spread falls with |W_j - L_j| / |W_j|: 16 probes leave 1 to 4 % of the
root at a point that L sees, and up to the plain estimate's 18 % at one that it does not.
"""

from __future__ import annotations

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.gram.spectrum import SpectralSmoother
from congruence.kernels.resampling.keyed import row_signs

PROBES = 16
TOLERANCE = 0.02  # of the norm of a smoothed probe


def probes_of(variance: Array, positions: Array, seed: int, *, count: int = PROBES, use: str = "") -> Array:
    """Probes z (n, count) of variances v (n,) at the rows ``positions`` of a split; ``use`` tells repeats apart."""
    signs = row_signs(positions, count, seed, f"noise floor probes{use}").astype(np.float64)
    signs *= np.sqrt(variance)[:, None]
    return signs


def probe_tolerances(probes: Array, smoother: SpectralSmoother) -> Array:
    """The residual norms that end a solve on probes (n, p), (p,)."""
    # The leading directions are orthonormal, so these are the norms of L z over the reference points.
    return np.asarray(TOLERANCE * np.linalg.norm(smoother.coefficients(_single(probes)), axis=0))


def squared_floor(variance: Array, smoother: SpectralSmoother, probes: Array, smoothed: Array) -> Array:
    """E[CCE(x_j)^2], (m,), from probes z (n, p) and W z (m, p)."""
    known = smoother(_single(probes)).astype(np.float64)
    chance = np.mean((smoothed - known) * (smoothed + known), axis=1)
    return np.asarray(np.maximum(smoother.squared_weights(variance) + chance, 0.0))


def _single(probes: Array) -> Array:
    return probes.astype(np.float32)
