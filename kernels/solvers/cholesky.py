"""The exact factorisation, for n that fits in memory: A = L L' in float64, and the oracle of every other solver."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, to_numpy
from congruence.kernels.device_solves import cholesky_factor, cholesky_solve
from congruence.kernels.errors import ConvergenceError
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.solvers.base import Solution
from congruence.kernels.solvers.low_rank import SCALE_FEATURES, diagonal_in_words


@dataclass(frozen=True)
class CholeskyFactor:
    """L with A = L L', and A's operator; on the card that holds its inputs, where there is room."""

    operator: RegularizedGram
    factor: Any = field(repr=False)
    gram: Any = field(repr=False)


@dataclass(frozen=True)
class Cholesky:
    """Dense Cholesky factorisation of A in float64, made of the inputs in float64: n^3/3 operations, 16 n^2 bytes."""

    factorizes: ClassVar[bool] = True

    def prepare(self, operator: RegularizedGram) -> CholeskyFactor:
        """Factor A.

        Raises:
            ConvergenceError: A is not positive definite in float64 (the kernel is not one, or lambda is too small).
        """
        gram = operator.vectors(operator.exact_gram())
        regularized = gram.copy()
        regularized.reshape(-1)[:: operator.n + 1] += operator.shift
        try:
            factor = cholesky_factor(regularized)
        except np.linalg.LinAlgError as error:
            raise ConvergenceError(
                f"K + n lambda I is not positive definite (n lambda = {operator.shift:.3g}, "
                f"{diagonal_in_words(operator)}): the input kernel is not positive definite, or lambda is below "
                f"rounding; {SCALE_FEATURES} or use a larger regularization"
            ) from error
        return CholeskyFactor(operator, factor, gram)

    def low_rank(self, state: CholeskyFactor) -> None:
        """None: A is known exactly."""

    def solve(
        self,
        state: CholeskyFactor,
        rhs: Array,
        *,
        tolerances: Array | None = None,  # noqa: ARG002
        groups: Sequence[slice] | None = None,  # noqa: ARG002
    ) -> Solution:
        """Z by two triangular solves, to rounding: tolerances do not apply."""
        started = time.perf_counter()
        rhs = array_namespace(state.gram).asarray(rhs)
        value = cholesky_solve(state.factor, rhs)
        residual = rhs - state.gram @ value - state.operator.shift * value
        n, r = rhs.shape
        value, residual = to_numpy(value), to_numpy(residual)
        return Solution(value, residual, 1, time.perf_counter() - started, 8 * (2 * n * n + 3 * n * r))
