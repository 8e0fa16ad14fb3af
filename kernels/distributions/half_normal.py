"""The half-normal tails of a histogram: a half-normal law H of scale s that begins at the inner border of a bin.

S(x) = P(H > x) = erfc(x / (s 2^(1/2))).
"""

from __future__ import annotations

import numpy as np
from scipy.special import erfc, erfinv, wofz

from congruence.kernels.arrays import Array

ROOT_2, ROOT_PI = np.sqrt(2.0), np.sqrt(np.pi)
FAR = 8.0
"""Scales beyond which no more than 1.3e-15 of the mass lies."""
_PANELS = np.array([0.0, 1.0, 2.0, 3.5, 5.5, 9.0])


def scale_of(width: Array, share_beyond: float) -> Array:
    """The scale whose tail has ``share_beyond`` of its mass beyond ``width``."""
    return np.asarray(width / (ROOT_2 * erfinv(1.0 - share_beyond)))


def mean_of(scale: Array) -> Array:
    """E H."""
    return np.asarray(scale * np.sqrt(2.0 / np.pi))


def log_density(x: Array, scale: Array) -> Array:
    """The logarithm of the density at distances x >= 0."""
    return np.asarray(0.5 * np.log(2.0 / np.pi) - np.log(scale) - 0.5 * (x / scale) ** 2)


def crps_inside(x: Array, mass: Array, scale: Array) -> Array:
    """The part of the CRPS beyond the inner border, for a target at distance x >= 0 from it within the tail.

    The integral of (1 - p S)^2 from 0 to x and of p^2 S^2 from there on, p the mass of the tail.
    """
    a = scale * ROOT_2
    u = x / a
    first = mass * a * (1.0 / ROOT_PI - _erfc_beyond(u))
    squared = mass**2 * a
    return np.asarray(x - 2.0 * first + squared * _SQUARED_WHOLE)


def crps_outside(mass: Array, scale: Array) -> Array:
    """The same for a target on the other side of the inner border: the integral of p^2 S^2."""
    return np.asarray(mass**2 * scale * ROOT_2 * _SQUARED_WHOLE)


def wave(t: Array, scale: Array) -> Array:
    """E exp(i t H) for scales (n,) and frequencies (m,), (n, m): w(s t / 2^(1/2)) of Faddeeva."""
    return np.asarray(wofz(np.multiply.outer(scale / ROOT_2, t)))


def rule() -> tuple[Array, Array]:
    """Nodes, in scales, and weights (k,) of E g(H)."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    half = np.diff(_PANELS)[:, None] / 2.0
    x = (_PANELS[:-1, None] + half * (1.0 + nodes)).ravel()
    w = (half * weights).ravel() * np.exp(log_density(x, np.ones(1)))
    return x, w / w.sum()


def _erfc_beyond(u: Array) -> Array:
    """The integral of erfc from u on."""
    return np.asarray(np.exp(-u * u) / ROOT_PI - u * erfc(u))


_SQUARED_WHOLE = (2.0 - ROOT_2) / ROOT_PI  # the integral of erfc^2 from 0 on
