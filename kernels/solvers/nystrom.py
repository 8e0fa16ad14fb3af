"""The Nystrom approximation as an answer: n m^2 operations whatever the accuracy, so it always states its error.

Z = A^^-1 B with A^ = K^ + mu I on m landmarks (subset of regressors, with the noise shift). Its residual
R = B - A Z = -(K - K^) Z is not zero: its norm is computed by one pass over K where n is small, and estimated from
random rows of it beyond.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.gram.landmarks import Choice, choose_landmarks
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.solvers.base import NormKind, ResidualSample, Solution
from congruence.kernels.solvers.low_rank import LowRankInverse


@dataclass(frozen=True)
class NystromState:
    """A^^-1, the operator it stands for, and the rows on which its residual will be read."""

    operator: RegularizedGram
    inverse: LowRankInverse = field(repr=False)
    sample: ResidualSample | None = field(repr=False)


@dataclass(frozen=True)
class Nystrom:
    """The declared approximation on m landmarks, always with its certificate.

    Args:
        landmarks: m.
        choice: how landmarks are chosen, "rpcholesky" or "uniform".
        rows: on which the residual is read, at n d operations each, with three standard errors on top; on all where n
            is at most four times as many.
        seed: of landmarks and rows.
    """

    factorizes: ClassVar[bool] = False

    landmarks: int = 1000
    choice: Choice = "rpcholesky"
    rows: int = 1024
    seed: int = 0

    def prepare(self, operator: RegularizedGram) -> NystromState:
        """Choose landmarks and build A^^-1."""
        indices = choose_landmarks(operator, self.landmarks, self.choice, self.seed)
        inverse = LowRankInverse.build(operator, indices)
        sampled = operator.n > 4 * self.rows
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
        if state.sample is None:
            norms, kind, passes = np.linalg.norm(rhs - state.operator.matmul(value), axis=0), "computed", 1
        else:
            read = state.sample.residual(value, rhs[state.sample.rows])
            norms, kind, passes = state.sample.column_norms(read), "sampled", 0
        # Known by its norm alone at every size: what is smoothed is then C w, whether all of it was read or a sample.
        unread = np.broadcast_to(np.zeros(1), rhs.shape)
        held = 8 * 3 * n * r + 4 * n * len(state.inverse.indices)
        return Solution(value, unread, passes, time.perf_counter() - started, held, norms, kind, state.operator.dtype)
