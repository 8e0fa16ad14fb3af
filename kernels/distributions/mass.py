"""Log masses of counts by Loader's saddle-point form: accurate to rounding at rates where log-gamma functions cancel.

C. Loader, Fast and accurate computation of binomial probabilities (2000). log Gamma(50,000) is half a million, so
differences of such terms lose ten digits; here only small deviances and Stirling's error terms remain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from congruence.kernels.arrays import Array, row_slices

_FAR, _NEAR_ZERO = 1e100, -1.0 + 1e-6  # of x / mean - 1


def stirling_error(x: Any) -> Array:
    """log Gamma(x + 1) - (x + 1/2) log x + x - log(2 pi) / 2 for x > 0."""
    x = np.asarray(x, dtype=np.float64)
    small = np.clip(x, np.finfo(np.float64).tiny, 16.0)
    exact = scipy.special.gammaln(small + 1.0) - (small + 0.5) * np.log(small) + small - 0.5 * np.log(2.0 * np.pi)
    inverse = 1.0 / np.maximum(x, 16.0)
    square = inverse * inverse
    terms = 1 / 1260 - square * (1 / 1680 - square * (1 / 1188 - square * 691 / 360360))
    series = inverse * (1 / 12 - square * (1 / 360 - square * terms))
    return np.asarray(np.where(x < 16.0, exact, series))


def log_gamma_step(x: Any) -> Array:
    """log Gamma(x + 1/2) - log Gamma(x) for x > 0; the difference of log-gamma functions loses x log x / 10^16."""
    x = np.asarray(x, dtype=np.float64)
    small, large = np.minimum(x, 32.0), np.maximum(x, 32.0)
    exact = scipy.special.gammaln(small + 0.5) - scipy.special.gammaln(small)
    correction = stirling_error(large - 0.5) - stirling_error(large)
    series = 0.5 * np.log(large) + large * np.log1p(-0.5 / large) + 0.5 + correction
    return np.asarray(np.where(x < 32.0, exact, series))


def log_beta_kernel(x: Array, a: Array, b: Array) -> Array:
    """log of x^a (1 - x)^b / B(a, b) for x in (0, 1) and a, b > 0."""
    total = a + b
    difference = a - total * x
    error = stirling_error(total) - stirling_error(a) - stirling_error(b)
    missed = deviance(a, total * x, difference) + deviance(b, total * (1.0 - x), -difference)
    return np.asarray(error - missed + 0.5 * (np.log(a) + np.log(b / total) - np.log(2.0 * np.pi)))


def deviance(x: Any, mean: Any, difference: Any = None) -> Array:
    """x log(x / mean) + mean - x for x >= 0, mean > 0; ``difference`` is x - mean where it is known more exactly."""
    difference = x - mean if difference is None else difference
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        u = np.maximum(difference / mean, -1.0)
        near = mean * ((1.0 + u) * np.log1p(u) - u)
        apart = (u > _FAR) | (u < _NEAR_ZERO)
        if np.any(apart):  # x / mean overflows, or x is lost beside the mean
            near = np.where(apart, x * (np.log(x) - np.log(mean)) - x + mean, near)
    return np.asarray(np.where(np.asarray(x) == 0.0, mean, near))


def log_poisson_mass(x: Array, mean: Array) -> Array:
    """log of exp(-mean) mean^x / x! for counts x and mean >= 0."""
    positive = np.maximum(x, 1.0)
    safe = np.maximum(mean, np.finfo(np.float64).tiny)
    mass = -0.5 * np.log(2.0 * np.pi * positive) - stirling_error(positive) - deviance(positive, safe)
    return np.where(x == 0.0, -mean, np.where(mean > 0.0, mass, -np.inf))


def log_binomial_mass(x: Array, n: Array, p: Array) -> Array:
    """log of C(n, x) p^x (1 - p)^(n - x) for counts x <= n and p in [0, 1]."""
    inside = np.clip(x, 1.0, np.maximum(n - 1.0, 1.0))
    certain = (p == 0.0) | (p == 1.0)
    p_inside = np.where(certain, 0.5, p)
    tiny = np.finfo(np.float64).tiny
    rest = np.maximum(n - inside, tiny)
    expected = np.maximum(n * p_inside, tiny)
    difference = inside - expected
    mass = (
        stirling_error(np.maximum(n, tiny))
        - stirling_error(inside)
        - stirling_error(rest)
        - deviance(inside, expected, difference)
        - deviance(rest, np.maximum(n * (1.0 - p_inside), tiny), -difference)
        + 0.5 * np.log(np.maximum(n, 1.0) / (2.0 * np.pi * inside * rest))
    )
    none, every = scipy.special.xlog1py(n, -p), scipy.special.xlogy(n, p)
    return np.where(x == 0.0, none, np.where(x == n, every, np.where(certain, -np.inf, mass)))


def log_negative_binomial_mass(x: Array, mean: Array, dispersion: Array) -> Array:
    """log mass of the negative binomial law of variance mean + dispersion mean^2 for counts x, dispersion > 0."""
    r, stated = 1.0 / dispersion, mean
    mean = np.maximum(mean, np.finfo(np.float64).tiny)
    positive = np.maximum(x, 1.0)
    total = r + positive
    difference = r * (mean - positive) / (r + mean)  # r minus its expectation among r + x trials
    mass = (
        -np.log1p(positive * dispersion)
        + stirling_error(total)
        - stirling_error(r)
        - stirling_error(positive)
        - deviance(r, total * r / (r + mean), difference)
        - deviance(positive, total * mean / (r + mean), -difference)
        + 0.5 * np.log((1.0 + positive * dispersion) / (2.0 * np.pi * positive))
    )
    none = -r * np.log1p(dispersion * stated)
    return np.asarray(np.where(x == 0.0, none, np.where(stated > 0.0, mass, -np.inf)))


def mean_absolute_difference(lost_modulus: Callable[[Array, Array, slice], Array], bend: Array) -> Array:
    """E |Y - Y'| of two independent counts, (n,), from 1 - |phi(t)|^2 as a function of (t, 1 - cos t, rows).

    |d| is the mean over t in (0, pi) of (1 - cos dt) / (1 - cos t), so E |Y - Y'| is that of (1 - |phi(t)|^2) /
    (1 - cos t): by Gauss-Legendre rules on (0, 1 / bend) and on panels that at most double from there. ``bend`` (n,) is
    the inverse of the frequency at which |phi| leaves 1.
    """
    nodes, weights = np.polynomial.legendre.leggauss(14)
    first = 1.0 / np.maximum(bend, 1.0)
    panels = int(np.ceil(np.log2(np.pi / first.min())))
    growth = (np.pi / first) ** (1.0 / panels)
    result = np.empty(len(bend))
    for rows in row_slices(len(bend), 200_000 // (14 * (panels + 1))):
        edges = first[rows, None] * growth[rows, None] ** np.arange(-1, panels + 1)
        edges[:, 0] = 0.0
        half = np.diff(edges, axis=1)[:, :, None] / 2.0
        t = (edges[:, :-1, None] + half + half * nodes).reshape(len(edges), -1)
        versine = 2.0 * np.sin(t / 2.0) ** 2
        lost = lost_modulus(t, versine, rows) / versine
        result[rows] = (lost * (half * weights).reshape(len(t), -1)).sum(axis=1) / np.pi
    return result
