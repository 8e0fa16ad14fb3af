"""The exact factorisation, for n that fits in memory: A = L L' in float64, and the oracle of every other solver."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array
from congruence.kernels.errors import ConvergenceError
from congruence.kernels.gram.operator import Operator
from congruence.kernels.solvers.base import Solution
from congruence.kernels.solvers.low_rank import SCALE_FEATURES, diagonal_in_words


@dataclass(frozen=True)
class CholeskyFactor:
    """L with A = L L', and A's operator."""

    operator: Operator
    factor: Array = field(repr=False)
    gram: Array = field(repr=False)


@dataclass(frozen=True)
class Cholesky:
    """Dense Cholesky factorisation of A in float64, made of the inputs in float64: n^3/3 operations, 16 n^2 bytes."""

    factorizes: ClassVar[bool] = True

    def prepare(self, operator: Operator) -> CholeskyFactor:
        """Factor A.

        Raises:
            ConvergenceError: A is not positive definite in float64 (the kernel is not one, or lambda is too small).
        """
        gram = operator.exact_gram()
        regularized = gram.copy()
        regularized[np.diag_indices(operator.n)] += operator.shift
        try:
            factor = scipy.linalg.cholesky(regularized, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError as error:
            raise ConvergenceError(
                f"K + n lambda I is not positive definite (n lambda = {operator.shift:.3g}, "
                f"{diagonal_in_words(operator)}): the input kernel is not positive definite, or lambda is below "
                f"rounding; {SCALE_FEATURES} or use a larger regularization"
            ) from error
        return CholeskyFactor(operator, factor, gram)

    def low_rank(self, state: CholeskyFactor) -> None:
        """None: A is known exactly."""

    def solve(self, state: CholeskyFactor, rhs: Array, *, tolerances: Array | None = None) -> Solution:  # noqa: ARG002
        """Z by two triangular solves, to rounding: tolerances do not apply."""
        started = time.perf_counter()
        value = scipy.linalg.cho_solve((state.factor, True), rhs, check_finite=False)
        residual = rhs - state.gram @ value - state.operator.shift * value
        n, r = rhs.shape
        return Solution(value, residual, 1, time.perf_counter() - started, 8 * (2 * n * n + 3 * n * r))
