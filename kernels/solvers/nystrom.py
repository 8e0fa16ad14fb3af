"""The Nystrom approximation as an answer: n m^2 operations whatever the accuracy, so it always states its error.

Z = A^^-1 B with A^ = K^ + mu I on m landmarks (subset of regressors, with the noise shift). Its residual
R = B - A Z = -(K - K^) Z is not zero, and every way to know its norm is offered: computed by one pass over K where n is
small, estimated from random rows of it, or bounded by the trace of K - K^.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array
from congruence.kernels.gram.columns import positive_diagonal
from congruence.kernels.gram.landmarks import Choice, choose_landmarks
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.solvers.base import NormKind, ResidualSample, Solution
from congruence.kernels.solvers.low_rank import LowRankInverse

ROUNDING = {8: 1e-12, 4: 1e-6}  # by the bytes of a number: eigenvalues of a scaled corner below this are rounding


@dataclass(frozen=True)
class NystromState:
    """A^^-1, the operator it stands for, and the rows on which its residual will be read."""

    operator: RegularizedGram
    inverse: LowRankInverse = field(repr=False)
    sample: ResidualSample | None = field(repr=False)

    def trace_residual(self) -> float:
        """tr(K - K^), exact up to rounding: a bound on ||K - K^||_2, since K - K^ is positive semi-definite."""
        roots = np.sqrt(positive_diagonal(self.inverse.corner))
        scale, axes = scipy.linalg.eigh(self.inverse.corner / np.outer(roots, roots))
        usable = scale > ROUNDING[np.dtype(self.operator.dtype).itemsize] * scale[-1]
        whitening = axes[:, usable] / roots[:, None] / np.sqrt(scale[usable])
        captured = float(np.sum(self.inverse.columns.row_norms(whitening)))
        return max(0.0, float(np.sum(self.operator.gram_diagonal(), dtype=np.float64)) - captured)

    def residual_bounds(self, value: Array, rhs: Array) -> Array:
        """Bounds on the column norms of B - A Z = (B - A^ Z) - (K - K^) Z, (r,): the first part is rounding."""
        columns = self.inverse.columns
        weights = scipy.linalg.solve(self.inverse.corner, columns.transposed_matmul(value), assume_a="sym")
        rounding = rhs - columns.matmul(weights) - self.operator.shift * value
        return np.asarray(np.linalg.norm(rounding, axis=0) + self.trace_residual() * np.linalg.norm(value, axis=0))


@dataclass(frozen=True)
class Nystrom:
    """The declared approximation on m landmarks, always with its certificate.

    Args:
        landmarks: m.
        choice: how landmarks are chosen, "rpcholesky" or "uniform".
        certificate: "rows" reads the residual on ``rows`` random rows (on all where n is at most four times as many)
            and adds three standard errors; "trace" is a bound without sampling, tr(K - K^) ||Z||, and far looser.
        rows: that "rows" reads, at n d operations each.
        seed: of landmarks and rows.
    """

    factorizes: ClassVar[bool] = False

    landmarks: int = 1000
    choice: Choice = "rpcholesky"
    certificate: Literal["rows", "trace"] = "rows"
    rows: int = 1024
    seed: int = 0

    def prepare(self, operator: RegularizedGram) -> NystromState:
        """Choose landmarks and build A^^-1."""
        indices = choose_landmarks(operator, self.landmarks, self.choice, self.seed)
        inverse = LowRankInverse.build(operator, indices)
        sampled = self.certificate == "rows" and operator.n > 4 * self.rows
        return NystromState(operator, inverse, ResidualSample.draw(operator, self.rows, self.seed) if sampled else None)

    def low_rank(self, state: NystromState) -> LowRankInverse:
        """The answer's own approximation."""
        return state.inverse

    def solve(
        self,
        state: NystromState,
        rhs: Array,
        *,
        tolerances: Array | None = None,  # noqa: ARG002
        groups: Sequence[slice] | None = None,  # noqa: ARG002
    ) -> Solution:
        """Z = A^^-1 rhs and the norm of its residual; m fixes the error, so tolerances do not apply."""
        started = time.perf_counter()
        rhs = np.asarray(rhs, dtype=np.float64)
        value = state.inverse.apply(rhs)
        n, r = rhs.shape
        kind: NormKind
        passes = 0
        if self.certificate == "rows" and state.sample is None:
            norms, kind = np.linalg.norm(rhs - state.operator.matmul(value), axis=0), "computed"
            passes = 1
        elif state.sample is not None:
            read = state.sample.residual(value, rhs[state.sample.rows])
            norms, kind = state.sample.column_norms(read), "sampled"
        else:
            norms, kind = state.residual_bounds(value, rhs), "bound"
        # Known by its norm alone at every size: what is smoothed is then C w, whether all of it was read or a sample.
        unread = np.broadcast_to(np.zeros(1), rhs.shape)
        held = 8 * 3 * n * r + 4 * n * len(state.inverse.indices)
        return Solution(value, unread, passes, time.perf_counter() - started, held, norms, kind, state.operator.dtype)
