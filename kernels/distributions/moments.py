"""Raw moments E Y^k, and what they make of a polynomial kernel: E k(t, Y) and E k(Y, Y) without quadrature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.special

from congruence.kernels.arrays import Array
from congruence.kernels.kernel_functions import Polynomial


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


def of_symmetric(absolute: Array) -> Array:
    """Moments of Z from those of |Z|, (order + 1,), where the distribution of Z is symmetric about 0."""
    return np.where(np.arange(len(absolute)) % 2 == 0, absolute, 0.0)


def from_factorial(factorial: Sequence[Any], rows: int) -> Array:
    """Moments (n, order + 1) from the factorial moments E Y (Y - 1) ... (Y - k + 1), k = 0, ..., order."""
    order = len(factorial) - 1
    second = np.zeros((order + 1, order + 1))  # Stirling numbers of the second kind
    second[0, 0] = 1.0
    for k in range(1, order + 1):
        second[k, 1:] = np.arange(1, order + 1) * second[k - 1, 1:] + second[k - 1, :-1]
    columns = np.stack([np.broadcast_to(values, (rows,)) for values in factorial], axis=1)
    return np.asarray(columns @ second.T)


def from_cumulants(cumulants: Sequence[Array]) -> list[Array]:
    """Moments 0, ..., order from cumulants 1, ..., order."""
    moments = [np.ones_like(cumulants[0])]
    for k in range(1, len(cumulants) + 1):
        moments.append(
            np.asarray(
                sum(scipy.special.binom(k - 1, i - 1) * cumulants[i - 1] * moments[k - i] for i in range(1, k + 1))
            )
        )
    return moments
