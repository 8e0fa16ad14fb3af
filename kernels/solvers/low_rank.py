"""The Nystrom approximation of A by landmarks, and its inverse.

A^ = C W^-1 C' + mu I with C = K[:, landmarks], W its corner and mu = n lambda; by Woodbury's identity

    A^-1 ~ A^^-1 = (I - C (mu W + C'C)^-1 C') / mu.

As an answer it errs by ||K - K^||_2 / mu; as a preconditioner it leaves a condition number of 1 + ||K - K^||_2 / mu
(Frangella, Tropp and Udell 2023), so that conjugate gradients need a handful of passes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array
from congruence.kernels.errors import ConvergenceError
from congruence.kernels.gram_columns import GramColumns, LandmarkColumns
from congruence.kernels.operators import Operator

JITTER = 1e-12
LEADING = 400  # landmarks that show the directions a smoother with a noise shift keeps


@dataclass(frozen=True)
class LowRankInverse:
    """A^^-1 on the landmarks ``indices``: ``apply`` costs 4 n m operations per column.

    ``leading`` are some of the landmarks, enough for the leading spectrum of K.
    """

    indices: Array = field(repr=False)
    columns: GramColumns = field(repr=False)
    factor: Array = field(repr=False)
    shift: float
    leading: LandmarkColumns = field(repr=False)

    @classmethod
    def build(cls, operator: Operator, indices: Array) -> LowRankInverse:
        """A^^-1 of ``operator`` on landmarks: n m (d + m) operations."""
        landmarks = LandmarkColumns.of(operator.columns(indices), indices)
        factor = inner_factor(landmarks.corner, landmarks.gram, operator.shift)
        return cls(indices, landmarks.columns, factor, operator.shift, landmarks.thinned(LEADING))

    def apply(self, v: Array) -> Array:
        """A^^-1 v, (n, r)."""
        inner = scipy.linalg.cho_solve((self.factor, True), self.columns.transposed_matmul(v), check_finite=False)
        result = self.columns.matmul(inner)
        np.subtract(v, result, out=result)
        result /= self.shift
        return result


def inner_factor(corner: Array, gram: Array, shift: float) -> Array:
    """Cholesky factor of mu W + C'C, with W lifted by 1e-12 of its trace, or as much more as single precision needs.

    Landmarks may repeat, and inputs of few features have Gram matrices of low rank: both leave eigenvalues at rounding.

    Raises:
        ConvergenceError: not positive definite, so the kernel is not either.
    """
    for jitter in (JITTER, 1e3 * JITTER, 1e6 * JITTER):
        inner = shift * corner
        inner += gram
        inner[np.diag_indices(len(inner))] += shift * jitter * np.trace(corner)
        try:
            # Symmetric, so that its transpose is itself in LAPACK's order and is factored in place.
            return np.asarray(scipy.linalg.cholesky(inner.T, lower=True, overwrite_a=True, check_finite=False))
        except np.linalg.LinAlgError:
            continue
    raise ConvergenceError(
        f"the Nystrom approximation on {len(corner)} landmarks is not positive definite (n lambda = {shift:.3g}): "
        "the input kernel is not positive definite, or lambda is below rounding; use a larger regularization, or "
        "float64 inputs"
    )
