"""Target products in closed form for vector-valued normal predictions and RBF kernels.

On vectors no short list of features is exact; the Gaussian integrals are (Widmann et al. 2021, appendix D.1, diagonal
covariances).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congruence.kernels.arrays import Array


@dataclass(frozen=True)
class NormalProduct:
    """<Delta_i, Delta_j> for k_Y = sum over gammas of exp(-gamma |y - y'|^2): rows are (y, loc, scale), (n, 3q)."""

    gammas: tuple[float, ...]

    def __call__(self, a: Array, b: Array) -> Array:
        """k(y, y') - E k(Z, y') - E k(y, Z') + E k(Z, Z') for two row blocks, shape (n, m)."""
        y, loc, variance = (part[:, None, :] for part in _parts(a))
        other_y, other_loc, other_variance = (part[None, :, :] for part in _parts(b))
        return self._combine(y, loc, variance, other_y, other_loc, other_variance)

    def diagonal(self, a: Array) -> Array:
        """<Delta_i, Delta_i>, shape (n,)."""
        return self._combine(*_parts(a), *_parts(a))

    def _combine(self, y: Array, loc: Array, variance: Array, y_: Array, loc_: Array, variance_: Array) -> Array:
        zero = np.zeros_like(variance[..., :1])
        block: Array = self._expectation(y, y_, zero)
        block -= self._expectation(loc, y_, variance)
        block -= self._expectation(y, loc_, variance_)
        block += self._expectation(loc, loc_, variance + variance_)
        return block

    def _expectation(self, center: Array, other: Array, variance: Array) -> Array:
        """E k at the difference of two independent normals with these centers and summed variances."""
        total: Array = np.zeros(np.broadcast_shapes(center.shape, other.shape)[:-1])
        for gamma in self.gammas:
            exponent = np.zeros_like(total)
            for column in range(center.shape[-1]):  # one target at a time: (n, m, q) would not stay in cache
                spread = 1.0 + 2.0 * gamma * variance[..., min(column, variance.shape[-1] - 1)]
                exponent -= gamma * (center[..., column] - other[..., column]) ** 2 / spread + 0.5 * np.log(spread)
            total += np.exp(exponent)
        return total


def _parts(rows: Array) -> tuple[Array, Array, Array]:
    y, loc, scale = np.split(rows, 3, axis=1)
    return y, loc, scale**2
