"""The Nystrom approximation of A by landmarks, and its inverse.

A^ = C W^-1 C' + mu I with C = K[:, landmarks], W its corner and mu = n lambda; by Woodbury's identity

    A^-1 ~ A^^-1 = (I - C (mu W + C'C)^-1 C') / mu.

As an answer it errs by ||K - K^||_2 / mu; as a preconditioner it leaves a condition number of 1 + ||K - K^||_2 / mu
(Frangella, Tropp and Udell 2023), so that conjugate gradients need a handful of passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array, array_namespace
from congruence.kernels.device_solves import cholesky_solve
from congruence.kernels.errors import ConvergenceError
from congruence.kernels.gram.columns import GramColumns, LandmarkColumns, positive_diagonal
from congruence.kernels.gram.landmarks import LEADING
from congruence.kernels.gram.operator import RegularizedGram

JITTER = 1e-12
SCALE_FEATURES = "scale the features (each to a standard deviation of 1, or every row to norm 1)"


def diagonal_in_words(operator: RegularizedGram) -> str:
    """Between which values k(x, x) lies: what tells inputs that were not scaled."""
    diagonal = operator.gram_diagonal()
    return f"k(x, x) from {float(np.min(diagonal)):.3g} to {float(np.max(diagonal)):.3g}"


@dataclass(frozen=True)
class LowRankInverse:
    """A^^-1 on the landmarks ``indices``: ``apply`` costs 4 n m operations per column.

    ``leading`` are some of the landmarks, enough for the leading spectrum of K. W is ``corner``, lifted until its
    factor exists: with it, A^ is exactly C W^-1 C' + mu I.
    """

    indices: Array = field(repr=False)
    columns: GramColumns = field(repr=False)
    factor: Array = field(repr=False)
    shift: float
    leading: LandmarkColumns = field(repr=False)
    corner: Array = field(repr=False)

    @classmethod
    def build(cls, operator: RegularizedGram, indices: Array) -> LowRankInverse:
        """A^^-1 of ``operator`` on landmarks: n m (d + m) operations."""
        landmarks = LandmarkColumns.of(operator.columns(indices), indices)
        inner = landmarks.corner, landmarks.gram, operator.shift
        factor, jitter = inner_factor(*inner, lambda: diagonal_in_words(operator))
        corner = landmarks.corner.copy()
        corner[np.diag_indices(len(corner))] += jitter
        return cls(indices, landmarks.columns, factor, operator.shift, landmarks.thinned(LEADING), corner)

    def apply(self, v: Any) -> Any:
        """A^^-1 v, (n, r), where v is."""
        xp = array_namespace(v)
        factor = self.factor if xp is np else self._factor_on_card
        result = self.columns.matmul(cholesky_solve(factor, self.columns.transposed_matmul(v)))
        xp.subtract(v, result, out=result)
        result /= self.shift
        return result

    @cached_property
    def _factor_on_card(self) -> Any:
        import cupy

        return cupy.asarray(self.factor)


def inner_factor(corner: Array, gram: Array, shift: float, diagonal: Callable[[], str]) -> tuple[Array, Array]:
    """Cholesky factor of mu W + C'C, and what its W was lifted by on the diagonal, (m,).

    Landmarks may repeat, and inputs of few features have Gram matrices of low rank: both leave eigenvalues at rounding.
    So W is lifted by 1e-12 of m times its own diagonal, or as much more as single precision needs: of the diagonal and
    not of the trace, so that a few long inputs do not drown all others.

    Args:
        corner: W, (m, m).
        gram: C'C, (m, m).
        shift: mu.
        diagonal: k(x, x) in words, for the error.

    Raises:
        ConvergenceError: the kernel is not positive definite, or lambda is below rounding.
    """
    own = len(corner) * positive_diagonal(corner)
    for jitter in (JITTER, 1e3 * JITTER, 1e6 * JITTER):
        inner = shift * corner
        inner += gram
        inner[np.diag_indices(len(inner))] += shift * jitter * own
        try:
            # Symmetric, so that its transpose is itself in LAPACK's order and is factored in place.
            factor = scipy.linalg.cholesky(inner.T, lower=True, overwrite_a=True, check_finite=False)
            return np.asarray(factor), jitter * own
        except np.linalg.LinAlgError:
            continue
    raise ConvergenceError(
        f"the Nystrom approximation on {len(corner)} landmarks is not positive definite (n lambda = {shift:.3g}, "
        f"{diagonal()}): the input kernel is not positive definite, or lambda is below rounding; {SCALE_FEATURES}, use "
        "a larger regularization, or float64 inputs"
    )
