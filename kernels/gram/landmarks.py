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
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.streams import stream

Choice = Literal["uniform", "rpcholesky"]
CANDIDATES_PER_LANDMARK = 10
MIN_CANDIDATES = 5000
LEADING = 400  # landmarks that show the directions a smoother with a noise shift keeps


def choose_landmarks(operator: RegularizedGram, count: int, choice: Choice = "rpcholesky", seed: int = 0) -> Array:
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
    subset = candidate_rows(operator.n, count, rng)
    return np.sort(subset[rpcholesky(operator, subset, count, rng)])


def candidate_rows(n: int, count: int, rng: np.random.Generator) -> Array:
    """Sorted numbers of the rows among which ``count`` landmarks are chosen, uniform over n."""
    return np.sort(rng.choice(n, min(n, max(MIN_CANDIDATES, CANDIDATES_PER_LANDMARK * count)), replace=False))


def rpcholesky(operator: RegularizedGram, rows: Array, count: int, rng: np.random.Generator) -> Array:
    """Positions in ``rows`` of the pivots: drawn in blocks, each thinned by a pivoted Cholesky of its corner.

    What is left of a point is judged by its own k(x, x): beside one long input all others would look like rounding.
    """
    diagonal = operator.gram_diagonal()
    residual = np.asarray(diagonal, dtype=np.float64)[rows]
    rounding = 1e-10 if np.dtype(operator.dtype).itemsize > 4 else 1e-6  # above that of the entries
    own = residual.copy()
    factor = np.zeros((len(rows), 0))
    pivots = np.zeros(0, dtype=np.int64)
    block = max(1, count // 10)
    while len(pivots) < count:
        live = np.flatnonzero(residual > rounding * own)
        size = min(block, count - len(pivots), len(live))
        if size == 0:
            break
        weights = residual[live] / residual[live].sum()
        drawn = rng.choice(live, size, replace=False, p=weights)
        columns = np.asarray(operator.gram_columns(rows[drawn], rows), dtype=np.float64)
        columns -= factor @ factor[drawn].T
        kept, corner = _independent(columns[drawn], own[drawn], 10 * rounding)
        if len(kept) == 0:
            residual[drawn] = 0.0
            continue
        drawn, columns = drawn[kept], columns[:, kept]
        columns = scipy.linalg.solve_triangular(corner, columns.T, lower=True, overwrite_b=True).T
        factor = np.hstack([factor, columns])
        pivots = np.concatenate([pivots, drawn])
        residual = np.maximum(residual - np.einsum("ij,ij->i", columns, columns), 0.0)
        residual[drawn] = 0.0
        residual[residual < 100 * rounding * own] = 0.0  # duplicates of a pivot, up to rounding
    return pivots


def _independent(corner: Array, own: Array, tolerance: float) -> tuple[Array, Array]:
    """Rows of a residual corner that are not spanned by the others of the same block, and its Cholesky factor there.

    ``own``: k(x, x) of the rows, to which ``tolerance`` is relative.
    """
    roots = np.sqrt(own)
    scaled = corner / np.outer(roots, roots)
    factor, pivots, rank, _ = scipy.linalg.lapack.dpstrf(scaled, tol=tolerance, lower=1)
    kept = np.asarray(pivots[:rank] - 1)
    return kept, np.tril(factor[:rank, :rank]) * roots[kept][:, None]
