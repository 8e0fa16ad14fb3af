"""Preconditioned conjugate gradients: exact at any n, in O(n d) memory, one pass over K an iteration.

A is never formed and the preconditioner is a Nystrom approximation, so a column converges in 2-4 passes. Columns share
every pass and stop one by one: the features of an output kernel fall off fast, and most columns need fewer passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, to_numpy
from congruence.kernels.errors import ConvergenceError, InvalidInputError
from congruence.kernels.gram.landmarks import Choice, choose_landmarks
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.solvers.base import NormKind, ResidualSample, Solution, column_tolerances, own_columns
from congruence.kernels.solvers.low_rank import SCALE_FEATURES, LowRankInverse, diagonal_in_words
from congruence.kernels.threads import single_threaded_blas


@dataclass
class Iterate:
    """All that conjugate gradients need to go on after a pass: (n, r) arrays and one number per column.

    The arrays are updated in place: a checkpoint writes or copies them before it returns. Where a solve keeps its
    vectors on a card (``RegularizedGram.vectors``), so are they there; a checkpoint is given host arrays.
    """

    passes: int
    value: Any = field(repr=False)
    residual: Any = field(repr=False)
    direction: Any = field(repr=False)
    energy: Array = field(repr=False)

    def moved(self, move: Callable[[Any], Any]) -> Iterate:
        """The same iterate with its (n, r) arrays moved."""
        return replace(self, value=move(self.value), residual=move(self.residual), direction=move(self.direction))


class Checkpoint(Protocol):
    """Where an iterate outlives its process; called after every pass."""

    def load(self, rhs: Array) -> Iterate | None:
        """The last iterate of this system and these right-hand sides, or None."""

    def save(self, iterate: Iterate) -> None:
        """Keep ``iterate``."""

    def clear(self) -> None:
        """Forget the iterate, once its answer has been used."""


@dataclass(frozen=True)
class PreconditionedSystem:
    """A, its preconditioner, and the rows on which a solution is checked where its residual is only sampled."""

    operator: RegularizedGram
    preconditioner: LowRankInverse = field(repr=False)
    sample: ResidualSample | None = field(repr=False)


@dataclass(frozen=True)
class ConjugateGradient:
    """Matrix-free conjugate gradients on all columns at once, preconditioned by Nystrom landmarks.

    Args:
        tolerance: stop when ||R||_F <= tolerance ||B||_F, shared evenly by the columns. The certificate of a CCE is
            then sqrt(k(x, x) / (4 lambda)) tolerance times the root mean square row of B.
        landmarks: m; by default 8 sqrt(n), from 500 to 4,000: building the preconditioner costs a fraction of a pass.
        choice: how landmarks are chosen, "rpcholesky" or "uniform".
        seed: of the landmarks.
        certificate: "computed" stops on a residual that a pass has computed. "sampled" takes the preconditioner's step
            after each pass too and reads the new residual on ``rows`` random rows (see ResidualSample): one pass less
            for every column, none for those of loose tolerance.
        rows: that "sampled" reads.
        max_passes: over K, before giving up.
        checkpoint: where iterates are kept, so that a broken run goes on from its last pass. Columns are then solved as
            they are, not along their principal axes, which a resumed run might turn otherwise.
    """

    factorizes: ClassVar[bool] = False

    tolerance: float = 3e-7
    landmarks: int | None = None
    choice: Choice = "uniform"
    seed: int = 0
    certificate: Literal["computed", "sampled"] = "computed"
    rows: int = 512
    max_passes: int = 200
    checkpoint: Checkpoint | None = None

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise InvalidInputError(f"ConjugateGradient: tolerance is {self.tolerance}, expected a number in (0, 1)")

    def prepare(self, operator: RegularizedGram) -> PreconditionedSystem:
        """Choose landmarks and build the preconditioner: n m (d + m) operations."""
        count = landmark_count(operator.n) if self.landmarks is None else self.landmarks
        indices = choose_landmarks(operator, count, self.choice, self.seed)
        preconditioner = LowRankInverse.build(operator, indices)
        sampled = self.certificate == "sampled" and operator.n > 4 * self.rows
        sample = ResidualSample.draw(operator, self.rows, self.seed) if sampled else None
        return PreconditionedSystem(operator, preconditioner, sample)

    def low_rank(self, state: PreconditionedSystem) -> LowRankInverse:
        """The preconditioner."""
        return state.preconditioner

    def solve(
        self,
        state: PreconditionedSystem,
        rhs: Array,
        *,
        tolerances: Array | None = None,
        groups: Sequence[slice] | None = None,
    ) -> Solution:
        """Z with column norms of B - A Z within ``tolerances`` (r,), by default those of ``tolerance`` in each group.

        Raises:
            ConvergenceError: ``max_passes`` were not enough.
        """
        started = time.perf_counter()
        rhs = np.asarray(rhs, dtype=np.float64)
        with single_threaded_blas():
            limits = column_tolerances(rhs, self.tolerance, tolerances, groups)
            placed = state.operator.vectors(rhs)
            xp = array_namespace(placed)
            if self.checkpoint is not None:
                rotation = xp.eye(rhs.shape[1])
                loaded = self.checkpoint.load(rhs)
                iterate = _start(placed.copy()) if loaded is None else loaded.moved(xp.asarray)
            else:
                rotation = xp.asarray(_principal_rotation(placed, tolerances, groups))
                iterate = _start(placed @ rotation)
            read = None if state.sample is None else placed[state.sample.rows] @ rotation
            del placed
            value, residual, unread = self._iterate(state, read, iterate, limits)
            passes = iterate.passes
            del iterate
            if self.checkpoint is None:
                value = value @ rotation.T  # one after the other: n x r arrays are what a solve holds
                if bool(residual.any()):
                    residual = residual @ rotation.T
            norms = None if state.sample is None else state.sample.column_norms(unread @ rotation.T)
            value, residual = to_numpy(value), to_numpy(residual)
        n, r = rhs.shape
        held = 8 * 8 * n * r + 4 * n * len(state.preconditioner.indices)
        kind: NormKind = "computed" if norms is None else "sampled"
        seconds = time.perf_counter() - started
        return Solution(value, residual, passes, seconds, held, norms, kind, state.operator.dtype)

    def _iterate(
        self, state: PreconditionedSystem, read: Any | None, iterate: Iterate, tolerances: Array
    ) -> tuple[Any, Any, Any]:
        """Iterate in place; returns the solution, its residual and what is known of the rest of it.

        A column that ends on sampled rows has 0 as its residual and its sampled residual in the rest, (rows, r).
        ``read``: the right-hand sides at the rows of the sample, if there is one.
        """
        # Each column is its own conjugate gradient; the active ones share the pass.
        # One number per column stays on the host: that is all a card is waited for, a few times a pass.
        value, residual, direction, energy = iterate.value, iterate.residual, iterate.direction, iterate.energy
        xp = array_namespace(value)
        unread = xp.zeros((0 if read is None else len(read), value.shape[1]))
        if state.sample is not None and read is not None and iterate.passes > 0:
            settled = np.flatnonzero(~to_numpy(residual.any(axis=0)))  # by a sample of the run that this one goes on
            unread[:, settled] = state.sample.residual(value[:, settled], read[:, settled])
        while True:
            norms = to_numpy(xp.linalg.norm(residual, axis=0))
            active = np.flatnonzero(norms > tolerances)
            step = state.preconditioner.apply(residual[:, active])
            if state.sample is not None and read is not None and len(active):
                rows = state.sample.residual(value[:, active] + step, read[:, active])
                enough = state.sample.column_norms(rows) <= tolerances[active]
                within, without = np.flatnonzero(enough), np.flatnonzero(~enough)
                done = active[within]
                value[:, done] += step[:, within]
                residual[:, done] = 0.0
                unread[:, done] = rows[:, within]
                active, step = active[without], step[:, without]
            if len(active) == 0:
                return value, residual, unread
            if iterate.passes >= self.max_passes:
                raise _not_converged(norms, tolerances, iterate.passes, state.operator)
            new_energy = to_numpy(xp.einsum("ij,ij->j", residual[:, active], step))
            first = energy[active] == 0
            turn = np.where(first, 0.0, new_energy / np.where(first, 1.0, energy[active]))
            step += direction[:, active] * xp.asarray(turn)
            product = state.operator.matmul(step)
            length = xp.asarray(new_energy) / xp.einsum("ij,ij->j", step, product)
            direction[:, active] = step
            energy[active] = new_energy
            value[:, active] += length * step
            residual[:, active] -= length * product
            iterate.passes += 1
            if self.checkpoint is not None:
                self.checkpoint.save(iterate if xp is np else iterate.moved(to_numpy))


def _start(residual: Any) -> Iterate:
    """From zero; ``residual`` becomes the iterate's own."""
    (n, r), xp = residual.shape, array_namespace(residual)
    # Columns that need no pass never have a direction: column by column, memory that is not written is not taken.
    return Iterate(0, xp.zeros((n, r)), residual, xp.zeros((n, r), order="F"), np.zeros(r))


def _principal_rotation(rhs: Any, tolerances: Array | None, groups: Sequence[slice] | None) -> Array:
    """Orthogonal (r, r) that turns the columns of the solver's own tolerance in each group to their principal axes.

    The features of an output kernel are far from orthogonal on the errors of a model: turned, half of the columns are
    below their tolerance from the start.
    """
    rotation = np.eye(rhs.shape[1])
    moment = to_numpy(rhs.T @ rhs)
    for members in own_columns(rhs.shape[1], tolerances, groups):
        block = np.ix_(members, members)
        _, rotation[block] = np.linalg.eigh(moment[block])
    return rotation


def landmark_count(n: int) -> int:
    """8 sqrt(n), from 500 to 4,000: the preconditioner then costs a fraction of a pass, and saves more than one."""
    return min(n, max(500, min(4000, int(8 * np.sqrt(n)))))


def _not_converged(norms: Array, tolerances: Array, passes: int, operator: RegularizedGram) -> ConvergenceError:
    worst = int(np.argmax(norms / np.maximum(tolerances, np.finfo(float).tiny)))
    return ConvergenceError(
        f"conjugate gradients: after {passes} passes column {worst} has residual {norms[worst]:.3g}, and "
        f"{tolerances[worst]:.3g} was asked for (n lambda = {operator.shift:.3g}, {diagonal_in_words(operator)}); use "
        f"more landmarks, a larger regularization or tolerance, {SCALE_FEATURES}, or float64 inputs where the "
        "tolerance is near float32 rounding"
    )
