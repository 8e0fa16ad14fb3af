"""What every solver of A Z = B offers: prepare once, solve many; the state holds all that depends on the inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.operators import Operator


@dataclass(frozen=True)
class Solution:
    """Z with A Z = B up to a residual whose norm is known.

    Attributes:
        value: Z, (n, r).
        residual: the part of B - A Z that was computed, (n, r): all of it, or zeros where only its norm is known.
        iterations: passes over the Gram matrix that this solve made.
        seconds: wall time of this solve.
        projected_bytes: peak memory that the solver announced for its state and this solve.
        unread_norms: norms of the columns of the part of B - A Z that was not computed, (r,); None if there is none.
        norm_kind: how ||B - A Z|| is known: computed, sampled (random rows, plus three standard errors) or a bound.
    """

    value: Array = field(repr=False)
    residual: Array = field(repr=False)
    iterations: int
    seconds: float
    projected_bytes: int
    unread_norms: Array | None = field(default=None, repr=False)
    norm_kind: str = "computed"

    def residual_norm(self, columns: slice = slice(None)) -> float:
        """||B - A Z||_F over some columns (those of one model version)."""
        read = float(np.linalg.norm(self.residual[:, columns]))
        return read if self.unread_norms is None else read + float(np.linalg.norm(self.unread_norms[columns]))


def sampled_residual(operator: Operator, rows: Array, value: Array, rhs: Array) -> Array:
    """Column norms of B - A Z from a uniform draw of its rows, (r,): the estimate plus three standard errors."""
    squares = (rhs[rows] - operator.matmul_rows(rows, value)) ** 2
    error = 3.0 * np.std(squares, axis=0) / np.sqrt(len(rows))
    return np.asarray(np.sqrt(operator.n * (np.mean(squares, axis=0) + error)))


def certificate(operator: Operator, residual_norm: float, kernel_maximum: float) -> float:
    """Bound on |computed CCE(x) - CCE(x)|: sqrt(k(x, x) / (n lambda)) ||R||_F, for k(x, x) <= ``kernel_maximum``.

    The error of k(x)'Z is k(x)' A^-1 R, and |A^-1 k(x)|^2 <= k(x, x) / (n lambda) since K >= k(x) k(x)' / k(x, x).
    """
    return float(np.sqrt(kernel_maximum / operator.shift) * residual_norm)


class Solver(Protocol):
    """``state = solver.prepare(operator)``, then ``solver.solve(state, rhs)`` for many right-hand sides."""

    def prepare(self, operator: Operator) -> Any:
        """The state for ``operator``: a factor, a preconditioner, landmarks."""

    def solve(self, state: Any, rhs: Array, *, tolerances: Array | None = None) -> Solution:
        """Z for A Z = rhs (n, r). ``tolerances`` (r,) are residual norms per column at which a column may stop."""
