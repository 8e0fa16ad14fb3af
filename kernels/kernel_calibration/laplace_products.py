r"""Target products in closed form for Laplace predictions and the Laplacian kernel, stable where scales are equal.

With a = (scale gamma)^2, d = gamma |distance| and [..] divided differences,

.. math::  E k(Z, y) = \Phi[a, 1], \quad E k(Z, Z') = \Psi[a, a', 1], \qquad
           \Phi(a) = a^{1/2} e^{-d / \sqrt a}, \quad \Psi(a) = a^{3/2} e^{-d / \sqrt a},

the partial fractions of the characteristic functions (the cases of Widmann et al. 2021, appendix D.2, in one formula).
A quotient cancels near equal arguments; there the same divided difference is an integral of the derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from congruence.kernels.arrays import Array

_NEAR = 0.25  # relative gap below which the integral is used
_LEGENDRE = np.polynomial.legendre.leggauss(8)
_NODES, _WEIGHTS = 0.5 * (_LEGENDRE[0] + 1.0), 0.5 * _LEGENDRE[1]
_Smooth: TypeAlias = Callable[[Array, Array], Array]


@dataclass(frozen=True)
class LaplaceProduct:
    """<Delta_i, Delta_j> for k_Y(y, y') = exp(-gamma |y - y'|): rows are (y, loc, scale), shape (n, 3)."""

    gamma: float

    def __call__(self, a: Array, b: Array) -> Array:
        """k(y, y') - E k(Z, y') - E k(y, Z') + E k(Z, Z') for two row blocks, shape (n, m)."""
        y, loc, ratio = (self.gamma * a.T)[:, :, None]
        other_y, other_loc, other_ratio = (self.gamma * b.T)[:, None, :]
        block = np.exp(-np.abs(y - other_y))
        block -= _first(_phi, _phi_slope, ratio**2, 1.0, np.abs(loc - other_y))
        block -= _first(_phi, _phi_slope, other_ratio**2, 1.0, np.abs(other_loc - y))
        block += _second(ratio**2, other_ratio**2, np.abs(loc - other_loc))
        return np.asarray(block)

    def diagonal(self, a: Array) -> Array:
        """<Delta_i, Delta_i>, shape (n,)."""
        y, loc, ratio = self.gamma * a.T
        block = 1.0 - 2.0 * _first(_phi, _phi_slope, ratio**2, 1.0, np.abs(loc - y))
        return np.asarray(block + _second(ratio**2, ratio**2, np.zeros(len(a))))


def _phi(a: Array, d: Array) -> Array:
    return np.asarray(np.sqrt(a) * np.exp(-d / np.sqrt(a)))


def _phi_slope(a: Array, d: Array) -> Array:
    root = np.sqrt(a)
    return np.asarray(0.5 * np.exp(-d / root) * (1.0 / root + d / a))


def _psi(a: Array, d: Array) -> Array:
    return np.asarray(a * _phi(a, d))


def _psi_slope(a: Array, d: Array) -> Array:
    root = np.sqrt(a)
    return np.asarray(np.exp(-d / root) * (1.5 * root + 0.5 * d))


def _psi_curvature(a: Array, d: Array) -> Array:
    root = np.sqrt(a)
    return np.asarray(np.exp(-d / root) * (0.75 / root + 0.75 * d / a + 0.25 * d * d / (a * root)))


def _first(f: _Smooth, slope: _Smooth, a: Array, b: Array | float, d: Array) -> Array:
    """f[a, b] at d: the quotient, or the integral of the slope from a to b where they are close."""
    a, b, d = np.broadcast_arrays(a, b, d)
    near = np.abs(a - b) < _NEAR * np.maximum(a, b)
    gap = np.where(near, 1.0, a - b)
    value = (f(a, d) - f(b, d)) / gap
    if near.any():
        a, b, d = a[near], b[near], d[near]
        value[near] = sum(w * slope(a + t * (b - a), d) for t, w in zip(_NODES, _WEIGHTS, strict=True))
    return np.asarray(value)


def _second(a: Array, b: Array, d: Array) -> Array:
    """Psi[a, b, 1] at d: outermost arguments apart in a quotient, or, where all are close, an integral of Psi''."""
    a, b, d = np.broadcast_arrays(a, b, d)
    low, middle, high = np.sort(np.stack([a, b, np.ones_like(a)]), axis=0)
    near = high - low < _NEAR * high
    gap = np.where(near, 1.0, high - low)
    value = (_first(_psi, _psi_slope, middle, high, d) - _first(_psi, _psi_slope, low, middle, d)) / gap
    if near.any():
        low, middle, high, d = low[near], middle[near], high[near], d[near]
        # Over the simplex (Hermite and Genocchi): a = low + s (middle - low) + s t (high - middle), with density s.
        value[near] = sum(
            ws * wt * s * _psi_curvature(low + s * (middle - low) + s * t * (high - middle), d)
            for s, ws in zip(_NODES, _WEIGHTS, strict=True)
            for t, wt in zip(_NODES, _WEIGHTS, strict=True)
        )
    return np.asarray(value)
