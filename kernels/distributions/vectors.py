"""Vector-valued targets (n, q): their form, and the energy score."""

from __future__ import annotations

from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, row_slices, to_numpy
from congruence.kernels.distributions.quadrature import BLOCK_ENTRIES
from congruence.kernels.errors import InvalidInputError


def as_vectors(y: Any, n: int, dimension: int) -> Array:
    """Targets as (n, q) float64.

    Raises:
        InvalidInputError: another shape.
    """
    array = np.asarray(to_numpy(y, "y"), dtype=np.float64)
    if array.shape != (n, dimension):
        raise InvalidInputError(f"y: shape {array.shape} does not fit {n} rows of {dimension} targets")
    return array


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
