"""Landmarks of a Nystrom approximation: which columns of K stand for all of them.

Uniform draws serve well-spread inputs; RPCholesky (Chen et al. 2024, "Randomly pivoted Cholesky") follows the residual
diagonal, so that clusters, outliers and duplicates are each covered once. It runs on a uniform subset of ten candidates
per landmark, at least 5,000: its cost does not grow with n.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.operators import Operator
from congruence.kernels.streams import stream

Choice = Literal["uniform", "rpcholesky"]
CANDIDATES_PER_LANDMARK = 10
MIN_CANDIDATES = 5000


def choose_landmarks(operator: Operator, count: int, choice: Choice = "rpcholesky", seed: int = 0) -> Array:
    """Sorted row numbers of at most ``count`` landmarks; fewer where the others would add nothing.

    Raises:
        InvalidInputError: ``count`` below 1 or an unknown choice.
    """
    if count < 1:
        raise InvalidInputError(f"landmarks: {count} were asked for; give at least 1")
    if choice not in ("uniform", "rpcholesky"):
        raise InvalidInputError(f"landmarks: unknown choice {choice!r}; use 'uniform' or 'rpcholesky'")
    rng = stream(seed, "landmarks")
    count = min(count, operator.n)
    if choice == "uniform" or count == operator.n:
        return np.sort(rng.choice(operator.n, count, replace=False))
    candidates = min(operator.n, max(MIN_CANDIDATES, CANDIDATES_PER_LANDMARK * count))
    subset = np.sort(rng.choice(operator.n, candidates, replace=False))
    return np.sort(subset[_rpcholesky(operator, subset, count, rng)])


def _rpcholesky(operator: Operator, rows: Array, count: int, rng: np.random.Generator) -> Array:
    """Positions in ``rows`` of the pivots: drawn in blocks, each thinned by a pivoted Cholesky of its corner."""
    diagonal = operator.gram_diagonal()
    residual = np.asarray(diagonal, dtype=np.float64)[rows]
    floor = residual.max() * (1e-10 if diagonal.dtype.itemsize > 4 else 1e-6)  # above the rounding of the entries
    factor = np.zeros((len(rows), 0))
    pivots = np.zeros(0, dtype=np.int64)
    block = max(1, count // 10)
    while len(pivots) < count:
        live = np.flatnonzero(residual > floor)
        size = min(block, count - len(pivots), len(live))
        if size == 0:
            break
        weights = residual[live] / residual[live].sum()
        drawn = rng.choice(live, size, replace=False, p=weights)
        columns = np.asarray(operator.gram_columns(rows[drawn], rows), dtype=np.float64)
        columns -= factor @ factor[drawn].T
        kept = _independent(columns[drawn], floor)
        drawn, columns = drawn[kept], columns[:, kept]
        corner = scipy.linalg.cholesky(columns[drawn], lower=True)
        columns = scipy.linalg.solve_triangular(corner, columns.T, lower=True, overwrite_b=True).T
        factor = np.hstack([factor, columns])
        pivots = np.concatenate([pivots, drawn])
        residual = np.maximum(residual - np.einsum("ij,ij->i", columns, columns), 0.0)
        residual[drawn] = 0.0
        residual[residual < 100 * floor] = 0.0  # duplicates of a pivot, up to rounding
    return pivots


def _independent(corner: Array, floor: float) -> Array:
    """Rows of a residual corner that are not spanned by the others of the same block."""
    _, pivots, rank, _ = scipy.linalg.lapack.dpstrf(corner, tol=10 * floor)
    return np.asarray(pivots[: max(rank, 1)] - 1)
