"""What every solver of A Z = B offers: prepare once, solve many; the state holds all that depends on the inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.operators import Operator


@dataclass(frozen=True)
class Solution:
    """Z with A Z = B up to a known residual.

    Attributes:
        value: Z, (n, r).
        residual: R = B - A Z as computed, (n, r).
        iterations: passes over the Gram matrix that this solve made.
        seconds: wall time of this solve.
        projected_bytes: peak memory that the solver announced for its state and this solve.
    """

    value: Array = field(repr=False)
    residual: Array = field(repr=False)
    iterations: int
    seconds: float
    projected_bytes: int

    def residual_norm(self, columns: slice = slice(None)) -> float:
        """||R||_F over some columns (those of one model version)."""
        return float(np.linalg.norm(self.residual[:, columns]))


def certificate(operator: Operator, residual_norm: float, kernel_maximum: float) -> float:
    """Bound on |computed CCE(x) - CCE(x)|: sqrt(k(x, x) / (n lambda)) ||R||_F, for k(x, x) <= ``kernel_maximum``.

    The error of k(x)'Z is k(x)' A^-1 R, and |A^-1 k(x)|^2 <= k(x, x) / (n lambda) since K >= k(x) k(x)' / k(x, x).
    """
    return float(np.sqrt(kernel_maximum / operator.shift) * residual_norm)


class Solver(Protocol):
    """``state = solver.prepare(operator)``, then ``solver.solve(state, rhs)`` for as many right-hand sides as wanted."""

    def prepare(self, operator: Operator) -> Any:
        """The state for ``operator``: a factor, a preconditioner, landmarks."""

    def solve(self, state: Any, rhs: Array, *, tolerances: Array | None = None) -> Solution:
        """Z for A Z = rhs (n, r). ``tolerances`` (r,) are residual norms per column at which a column may stop."""
