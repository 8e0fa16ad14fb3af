r"""What expectations under a kernel are made of: raw moments and Gaussian integrals.

Raw moments E Y^k make E k(t, Y) and E k(Y, Y) of a polynomial kernel without quadrature.

E k(Z, Z') for independent normal vectors, in closed form: RBF, Laplacian, Matern, polynomials and their sums.

With d the distance of the means and v the summed variance of each component:

* RBF: the Gaussian integral, a product over the components.
* Laplacian: a product over the components of E exp(-gamma |X|), X ~ N(d, v), by the scaled complementary error
  function.
* Matern of smoothness nu: a Gamma mixture of RBF kernels, k(r) = E exp(-nu r^2 / (2 l^2 T)) with T ~ Gamma(nu) (the
  integral representation of the Bessel function, DLMF 10.32.10), by the trapezoid rule in log T.
* Polynomial: the moments of Z.Z' from its cumulants.

Energy scores of vectors are mean distances of draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import scipy.special
from scipy.spatial.distance import cdist

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.kernel_functions import RBF, Kernel, Laplacian, Matern, Polynomial


class CountTables(Protocol):
    """What distributions on 0, 1, 2, ... answer beside the rest."""

    def survival(self, y: Any) -> Array:
        """P(Y > y) with the digits of small probabilities, which 1 - ``cdf`` has not; shapes as for ``cdf``."""

    def cumulative(self, support: Array) -> Array:
        """``cdf`` at successive counts, (s,) where all rows have the same or (n, s), shape (n, s)."""

    def sum_over(self, first: float, table: Array) -> Array:
        """sum_k P(Y = first + k) t_k for rows t_k of a table (s, r), shape (n, r)."""


def coefficients(kernel: Polynomial, dimension: int = 1) -> Array:
    """a_q with (gamma s + coef0)^degree = sum_q a_q s^q, (degree + 1,)."""
    power = np.arange(kernel.degree + 1)
    gamma = 1.0 / dimension if kernel.gamma is None else kernel.gamma
    return np.asarray(
        scipy.special.binom(kernel.degree, power) * gamma**power * kernel.coef0 ** (kernel.degree - power)
    )


def polynomial_expectation(kernel: Polynomial, moments: Array, nodes: Array) -> Array:
    """E k(t_j, Y_i) at nodes t (r,) from moments (n, degree + 1) of scalar distributions, (n, r)."""
    weights = coefficients(kernel)
    used = weights > 0.0  # a moment that is not used may be infinite
    powers = np.asarray(nodes, dtype=np.float64) ** np.flatnonzero(used)[:, None]
    return np.asarray(moments[:, used] @ (weights[used, None] * powers))


def polynomial_diagonal(kernel: Polynomial, moments: Array) -> Array:
    """E k(Y_i, Y_i) from moments (n, 2 degree + 1) of scalar distributions, (n,)."""
    weights = coefficients(kernel)
    used = np.flatnonzero(weights)
    return np.asarray(moments[:, 2 * used] @ weights[used])


def shifted(loc: Array, scale: Array, standard: Array) -> Array:
    """Moments of loc + scale Z, (n, order + 1), for those of Z, (order + 1,) or (n, order + 1)."""
    order = standard.shape[-1] - 1
    standard = np.broadcast_to(standard, (len(loc), order + 1))
    result = np.zeros(standard.shape)
    for k in range(order + 1):
        for j in range(k + 1):
            if np.any(standard[:, j]):  # no product of 0 and an infinite moment
                result[:, k] += scipy.special.binom(k, j) * loc ** (k - j) * scale**j * standard[:, j]
    return result


def from_factorial(factorial: Sequence[Any], rows: int) -> Array:
    """Moments (n, order + 1) from the factorial moments E Y (Y - 1) ... (Y - k + 1), k = 0, ..., order."""
    order = len(factorial) - 1
    second = np.zeros((order + 1, order + 1))  # Stirling numbers of the second kind
    second[0, 0] = 1.0
    for k in range(1, order + 1):
        second[k, 1:] = np.arange(1, order + 1) * second[k - 1, 1:] + second[k - 1, :-1]
    columns = np.stack([np.broadcast_to(values, (rows,)) for values in factorial], axis=1)
    return np.asarray(columns @ second.T)


BLOCK_ENTRIES = 2_000_000  # numbers per temporary array: 16 MB in float64
_STEP = 0.3  # of log T: the rule errs by about exp(-pi^2 / step)
_NEGLIGIBLE = 1e-13


def has_gaussian_expectation(kernel: Kernel) -> bool:
    """Whether ``gaussian_expectation`` knows the kernel."""
    return all(isinstance(term, (RBF, Laplacian, Matern, Polynomial)) for term in kernel.terms)


def gaussian_expectation(kernel: Kernel, loc: Array, variance: Array, others: Array, other_variance: Array) -> Array:
    """E k(Z_i, Z'_j) for Z_i ~ N(loc_i, diag(variance_i)), Z'_j ~ N(others_j, diag(other_variance_j)), shape (n, m).

    Args:
        kernel: RBF, Laplacian, Matern, Polynomial, or a sum of them.
        loc, variance: (n, q) each.
        others, other_variance: (m, q) each; variances of 0 are points.
    """
    parts = (_of_term(term, loc, variance, others, other_variance) for term in kernel.terms)
    return np.asarray(sum(parts))


def _of_term(kernel: Kernel, loc: Array, variance: Array, others: Array, other_variance: Array) -> Array:
    if isinstance(kernel, RBF):
        return _rbf(kernel.gamma, loc, variance, others, other_variance)
    if isinstance(kernel, Laplacian):
        return _laplacian(kernel.gamma, loc, variance, others, other_variance)
    if isinstance(kernel, Matern):
        if loc.shape[1] == 1 and kernel.nu == 0.5:
            return _laplacian(1.0 / kernel.length_scale, loc, variance, others, other_variance)
        gammas, weights = matern_mixture(kernel.nu, kernel.length_scale)
        least = np.min(variance, axis=0) + np.min(other_variance, axis=0)
        reached = weights * np.prod((1.0 + 2.0 * gammas[:, None] * least) ** -0.5, axis=1)
        total = np.zeros((len(loc), len(others)))
        for j in np.flatnonzero(reached > _NEGLIGIBLE):
            total += weights[j] * _rbf(float(gammas[j]), loc, variance, others, other_variance)
        return total
    if isinstance(kernel, Polynomial):
        cumulants = _product_cumulants(kernel.degree, loc, variance, others, other_variance)
        return _polynomial(kernel, cumulants, loc.shape[1])
    raise TypeError(f"{type(kernel).__name__} has no Gaussian expectation in closed form")


def point_values(kernel: Kernel, points: Array, others: Array) -> Array:
    """[k(x_i, z_j)] for points (n, q) and others (m, q), with distances that do not cancel."""
    total = np.zeros((len(points), len(others)))
    for term in kernel.terms:
        if isinstance(term, Matern):  # the root of a squared distance that rounds to 1e-16 is 1e-8
            distances = cdist(points, others)
            total += np.asarray(term(np.zeros((1, 1)), distances.reshape(-1, 1))).reshape(distances.shape)
        else:
            total += np.asarray(term(points, others))
    return total


def normal_polynomial_diagonal(kernel: Polynomial, loc: Array, variance: Array) -> Array:
    """E k(Z_i, Z_i) for Z_i ~ N(loc_i, diag(variance_i)), (n,): by the cumulants of |Z|^2."""
    cumulants = [
        2.0 ** (k - 1) * math.factorial(k - 1) * np.sum(variance**k + k * loc**2 * variance ** (k - 1), axis=1)
        for k in range(1, kernel.degree + 1)
    ]
    return _polynomial(kernel, cumulants, loc.shape[1])


def _polynomial(kernel: Polynomial, cumulants: list[Array], dimension: int) -> Array:
    """E (gamma S + coef0)^degree for S with these cumulants."""
    moments = [np.ones_like(cumulants[0])]
    for k in range(1, len(cumulants) + 1):
        terms = (scipy.special.binom(k - 1, i) * cumulants[i] * moments[k - 1 - i] for i in range(k))
        moments.append(np.asarray(sum(terms)))
    weights = coefficients(kernel, dimension)
    return np.asarray(sum(weight * moment for weight, moment in zip(weights, moments, strict=True)))


def _product_cumulants(order: int, a: Array, v: Array, b: Array, w: Array) -> list[Array]:
    """Cumulants 1, ..., order of Z.Z': of one component, by log E exp(s z z').

    That is (s a b + s^2 (a^2 w + b^2 v) / 2) / (1 - s^2 v w) - log(1 - s^2 v w) / 2.
    """
    cumulants = []
    for k in range(1, order + 1):
        m = k // 2
        if k % 2 == 1:
            series = (a * v**m) @ (b * w**m).T
        else:
            series = 0.5 * ((a**2 * v ** (m - 1)) @ (w**m).T + v**m @ (b**2 * w ** (m - 1)).T) + v**m @ (w**m).T / k
        cumulants.append(math.factorial(k) * series)
    return cumulants


@lru_cache(maxsize=8)
def matern_mixture(nu: float, length_scale: float) -> tuple[Array, Array]:
    """RBF gammas and weights whose weighted sum is the Matern kernel, except nearer than 1e-13 / nu to 0 (relative)."""
    lowest = (np.log(_NEGLIGIBLE) + scipy.special.gammaln(nu + 1.0)) / nu
    log_t = np.arange(lowest, 4.0, _STEP)
    weights = _STEP * np.exp(nu * log_t - np.exp(log_t) - scipy.special.gammaln(nu))
    return nu / (2.0 * length_scale**2) * np.exp(-log_t), weights


def _rbf(gamma: float, loc: Array, variance: Array, others: Array, other_variance: Array) -> Array:
    exponent = np.zeros((len(loc), len(others)))
    volume = np.ones((len(loc), len(others)))
    for a, v, b, w in zip(loc.T, variance.T, others.T, other_variance.T, strict=True):
        spread = np.add.outer((1.0 / gamma + 2.0 * v), 2.0 * w)
        distance = np.subtract.outer(a, b)
        distance *= distance
        distance /= spread
        exponent -= distance
        spread *= gamma
        volume *= spread
    np.exp(exponent, out=exponent)
    exponent /= np.sqrt(volume, out=volume)
    return exponent


def _laplacian(gamma: float, loc: Array, variance: Array, others: Array, other_variance: Array) -> Array:
    result = np.ones((len(loc), len(others)))
    for a, v, b, w in zip(loc.T, variance.T, others.T, other_variance.T, strict=True):
        distance = gamma * np.abs(np.subtract.outer(a, b))
        spread = gamma * np.sqrt(np.add.outer(v, w))
        result *= _folded(distance, spread)
    return result


def _folded(d: Array, s: Array) -> Array:
    """E exp(-|X|) for X ~ N(d, s^2), d >= 0, s >= 0."""
    point = s == 0.0
    s = np.where(point, 1.0, s)
    scaled = np.exp(-0.5 * (d / s) ** 2)
    far = d > s * s  # erfcx of a large negative number overflows
    near = np.where(far, 0.0, s * s - d) / (np.sqrt(2.0) * s)
    left = 0.5 * scaled * scipy.special.erfcx(near)
    if np.any(far):
        left[far] = np.exp(0.5 * s[far] ** 2 - d[far]) * scipy.special.ndtr(d[far] / s[far] - s[far])
    right = 0.5 * scaled * scipy.special.erfcx((s * s + d) / (np.sqrt(2.0) * s))
    return np.where(point, np.exp(-d), left + right)


def energy_score(draws: Array, y: Array, apart: Array) -> Array:
    """E |Y - y| - E |Y - Y'| / 2 with Euclidean norms, from draws (n, l, q), y (n, q) and ``mean_distance``: (n,).

    The CRPS of vectors (Gneiting and Raftery 2007, equation 22).
    """
    n, size, dimension = draws.shape
    to_target = np.empty(n)
    for rows in row_slices(n, BLOCK_ENTRIES // (size * dimension)):
        to_target[rows] = np.linalg.norm(draws[rows] - y[rows, None, :], axis=2).mean(axis=1)
    return np.asarray(to_target - 0.5 * apart)


def mean_distance(draws: Array, *, fair: bool) -> Array:
    """E |Y - Y'| of draws (n, l, q), shape (n,).

    Exact for the empirical distribution of the draws, or, if ``fair``, unbiased for the distribution behind them: pairs
    of two different draws alone count. One draw has no pairs.
    """
    n, size, dimension = draws.shape
    result = np.empty(n)
    correction = size / max(size - 1, 1) if fair else 1.0
    for rows in row_slices(n, BLOCK_ENTRIES // (size * size * dimension)):
        values = draws[rows]
        apart = np.linalg.norm(values[:, :, None, :] - values[:, None, :, :], axis=3).mean(axis=(1, 2))
        result[rows] = correction * apart
    return result
