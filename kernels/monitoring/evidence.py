r"""Evidence that multiplies over looks: e-values from p-values, the test martingale and the e-detector.

An e-value is a nonnegative statistic of mean at most 1 under the hypothesis. Of looks at fresh rows the e-values
multiply to a test martingale, which exceeds :math:`1/\alpha` with probability at most :math:`\alpha`, whenever one
stops (Ville 1939); so a true version is *ever* called wrong with probability at most alpha, over any number of looks.
All functions work with logarithms: evidence of thousands of looks overflows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.errors import InvalidInputError


def e_values(p_values: Any) -> Array:
    r"""log e of each p-value, by the calibrator that mixes all powers.

    .. math::  e(p) = \int_0^1 \kappa p^{\kappa - 1} d\kappa = \frac{1 - p + p \ln p}{p (\ln p)^2}

    decreasing in p with mean 1 under a uniform p, so at most 1 for discrete p-values (Vovk and Wang 2021).

    Args:
        p_values: any shape, in (0, 1].

    Returns:
        Natural logarithms, same shape.

    Raises:
        InvalidInputError: a p-value outside (0, 1].
    """
    p = np.asarray(p_values, dtype=np.float64)
    wrong = ~((p > 0.0) & (p <= 1.0))
    if wrong.any():
        raise InvalidInputError(f"p_values: {p[wrong].flat[0]} is not in (0, 1]")
    x = -np.log(p)
    small = x < 1e-3
    safe = np.where(small, 1.0, x)
    # e = (exp(x) - 1 - x) / x^2, whose logarithm does not overflow once exp(x) is factored out.
    large = safe + np.log1p(-(1.0 + safe) * np.exp(-safe)) - 2.0 * np.log(safe)
    return np.where(small, np.log(0.5 + x / 6.0 + x**2 / 24.0), large)


def martingale(log_e: Array) -> Array:
    """Log of the product of all e-values up to each look: shapes (..., looks) both."""
    return np.cumsum(np.asarray(log_e, dtype=np.float64), axis=-1)


def spending(p_values: Array, level: float) -> Array:
    r"""Log of the e-process of alpha spending: :math:`1/\alpha` from the first look with p <= 6 alpha / (pi^2 k^2) on.

    A share 6 / (pi^2 k^2) of the stake is bet at look k on its p-value alone: it finds at once what one look shows
    clearly, and gathers nothing. Shapes (..., looks) both; -inf before the first.
    """
    p = np.asarray(p_values, dtype=np.float64)
    levels = 6.0 * level / (np.pi * np.arange(1, p.shape[-1] + 1)) ** 2
    with np.errstate(divide="ignore"):
        return np.log(np.cumsum(p <= levels, axis=-1) / level)


def detector(log_e: Array) -> tuple[Array, Array]:
    r"""The e-detector: log S of each look, and the start that carries most of it.

    .. math::  S_k = (S_{k-1} + 1) e_k = \sum_{j \le k} \prod_{i=j}^{k} e_i

    An alarm at S >= A comes no more often than every A looks on average while the version is right (Shin, Ramdas and
    Rinaldo 2023). The summand that is largest names the look at which the change began.

    Args:
        log_e: (..., looks).

    Returns:
        log S (..., looks) and the index of the likeliest start at each look (..., looks).
    """
    log_e = np.asarray(log_e, dtype=np.float64)
    total, best = np.full(log_e.shape[:-1], -np.inf), np.full(log_e.shape[:-1], -np.inf)
    start = np.zeros(log_e.shape[:-1], dtype=np.int64)
    sums, starts = np.empty(log_e.shape), np.empty(log_e.shape, dtype=np.int64)
    for look in range(log_e.shape[-1]):
        here = log_e[..., look]
        total = np.logaddexp(total, 0.0) + here
        start = np.where(best > 0.0, start, look)  # a start of today stakes 1; an older one what it has won
        best = np.maximum(best, 0.0) + here
        sums[..., look], starts[..., look] = total, start
    return sums, starts
