"""Triangular systems and factors where their matrix is: LAPACK's on the host, cuSOLVER's and cuBLAS's on a card."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array, array_namespace

LARGEST_FACTOR = 12_000
"""Rows that LAPACK factors in one call: OpenBLAS's threads end the process from 15,800 on."""

TILE_ROWS = 4096


def cholesky_factor(matrix: Any) -> Any:
    """The lower L with L L' = ``matrix``, which may be overwritten.

    Raises:
        LinAlgError: the matrix is not positive definite.
    """
    if array_namespace(matrix) is not np:
        return factor_on_card(matrix)
    if len(matrix) > LARGEST_FACTOR:
        return _factor_by_tiles(matrix, TILE_ROWS)
    return scipy.linalg.cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)


def _factor_by_tiles(matrix: Array, tile_rows: int) -> Array:
    """In place, right-looking: a tile on the diagonal, the panel below it, and what is left of the matrix."""
    n = len(matrix)
    for start in range(0, n, tile_rows):
        stop = min(start + tile_rows, n)
        diagonal = scipy.linalg.cholesky(matrix[start:stop, start:stop], lower=True, check_finite=False)
        panel = triangular_solve(diagonal, matrix[stop:, start:stop].T, transposed=False).T
        matrix[start:stop, start:stop], matrix[stop:, start:stop] = diagonal, panel
        matrix[start:stop, stop:] = 0.0
        for left in range(stop, n, tile_rows):
            columns = slice(left, min(left + tile_rows, n))
            matrix[left:, columns] -= panel[left - stop :] @ panel[left - stop : columns.stop - stop].T
    return matrix


def factor_on_card(matrix: Any) -> Any:
    """The lower L with L L' = ``matrix``, a CuPy array that is left as it is.

    Raises:
        LinAlgError: the matrix is not positive definite, or holds a value that is not finite.
    """
    import cupyx

    # By default CuPy does not look at what cuSOLVER says, and gives back the columns that there are, finite ones.
    with cupyx.errstate(linalg="raise"):
        factor = array_namespace(matrix).linalg.cholesky(matrix)
    # What is not finite anywhere in a row is so on the diagonal.
    if not bool(array_namespace(factor).isfinite(factor.diagonal()).all()):
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    return factor


def triangular_solve(factor: Any, rhs: Any, *, transposed: bool) -> Any:
    """L^-1 rhs or L'^-1 rhs for a lower triangular L, both on the same side."""
    side: Literal[0, 1] = 1 if transposed else 0
    if array_namespace(factor) is np:
        return scipy.linalg.solve_triangular(factor, rhs, lower=True, trans=side, check_finite=False)
    from cupyx.scipy.linalg import solve_triangular

    return solve_triangular(factor, rhs, lower=True, trans=side, check_finite=False)


def cholesky_solve(factor: Any, rhs: Any) -> Any:
    """(L L')^-1 rhs for a lower triangular L."""
    if array_namespace(factor) is np:
        return scipy.linalg.cho_solve((factor, True), rhs, check_finite=False)
    return triangular_solve(factor, triangular_solve(factor, rhs, transposed=False), transposed=True)
