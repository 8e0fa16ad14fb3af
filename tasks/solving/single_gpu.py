"""Conjugate gradients beside the inputs on the one card of a cluster: vectors go there once and come back once.

Over a cluster every pass sends the n x r vectors from the client to the workers and back; with a single card all that
a pass needs is on it already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.gram.points import Item
from congruence.kernels.gram.tiles import TilePoints
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.solvers import ConjugateGradient
from congruence.kernels.solvers.base import Solution
from congruence.kernels.solvers.conjugate_gradient import PreconditionedSystem
from congruence.tasks.solving.points_on_cluster import LastingOnCluster, PointsOnCluster


@dataclass
class SystemOnCard:
    """The prepared system as a result on the worker; made again where that was lost."""

    points: PointsOnCluster
    made: LastingOnCluster = field(repr=False)

    @property
    def future(self) -> Any:
        """The prepared system, which stays where it is."""
        return self.made.of([Item((0,))])[0]


@dataclass(frozen=True)
class ConjugateGradientOnCard(ConjugateGradient):
    """``ConjugateGradient`` that runs where the only copy of x is; the same arguments, the same answer."""

    @classmethod
    def of(cls, solver: ConjugateGradient) -> ConjugateGradientOnCard:
        """``solver`` beside the copy of x."""
        return cls(**{each.name: getattr(solver, each.name) for each in fields(solver)})

    def prepare(self, operator: Any) -> Any:
        """See ConjugateGradient; what is prepared stays on the worker."""
        points = operator.points
        given = (self._plain(), operator.kernel, operator.regularization, points.keepable_bytes, operator.scale)
        state = SystemOnCard(points, points.lasting(_prepare, *given))
        points.run(lambda: points.client.submit(_is_there, state.future).result())
        return state

    def low_rank(self, state: Any) -> Any:  # noqa: ARG002
        """None: the preconditioner is not where the caller is."""
        return None

    def solve(
        self, state: Any, rhs: Array, *, tolerances: Array | None = None, groups: Sequence[slice] | None = None
    ) -> Solution:
        points = state.points
        rhs = np.asarray(rhs, dtype=np.float64)

        def solved() -> Any:
            sent = points.client.scatter([rhs], workers=points.workers, hash=False)[0]
            given = (self._plain(), state.future, sent, tolerances, groups)
            return points.submit(0, _solve, *given).result()

        solution: Solution = points.run(solved)
        return solution

    def _plain(self) -> ConjugateGradient:
        return ConjugateGradient(**{each.name: getattr(self, each.name) for each in fields(ConjugateGradient)})


def _prepare(
    points: TilePoints,
    solver: ConjugateGradient,
    kernel: Kernel,
    regularization: float,
    held_bytes: int,
    scale: Array | None,
) -> PreconditionedSystem:
    return solver.prepare(RegularizedGram(points.x, kernel, regularization, scale, held_bytes=held_bytes))


def _is_there(state: PreconditionedSystem) -> bool:
    return state is not None


def _solve(
    points: TilePoints,  # noqa: ARG001 - by which the work finds its worker
    solver: ConjugateGradient,
    state: PreconditionedSystem,
    rhs: Array,
    tolerances: Array | None,
    groups: Sequence[slice] | None,
) -> Solution:
    return solver.solve(state, rhs, tolerances=tolerances, groups=groups)
