"""Triangular systems and factors where their matrix is: LAPACK's on the host, cuSOLVER's and cuBLAS's on a card."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import array_namespace


def cholesky_factor(matrix: Any) -> Any:
    """The lower L with L L' = ``matrix``, which may be overwritten.

    Raises:
        LinAlgError: the matrix is not positive definite.
    """
    if array_namespace(matrix) is np:
        return scipy.linalg.cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
    return factor_on_card(matrix)


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
