"""The evaluation file's `solver:` turned into a solver for a Dask cluster, with what it will take, beforehand."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from dask.utils import parse_bytes

from congruence.kernels.arrays import Array
from congruence.kernels.errors import BudgetError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.solvers import Cholesky, ConjugateGradient, Nystrom, Solver, choose_solver
from congruence.kernels.solvers.planning import DENSE_LIMIT, NYSTROM_LANDMARKS
from congruence.tasks.settings.solver import SolverSettings
from congruence.tasks.solving.capacity import KEPT_SHARE, Capacity
from congruence.tasks.solving.checkpoint import CheckpointFile
from congruence.tasks.solving.tiled_cholesky import TiledCholesky

CHECKPOINT_ROWS = 50_000
EXACT_ROWS = 100_000  # a version's 60 right-hand sides cost more than features do: some minutes a version on two cores
EXACT_WORK = 1.4e13  # operations of a pass over K: 100,000 rows of 512 features
OTHER_WORK = 300  # of an entry of K, beside the product of its features: the kernel itself, right-hand sides
EXACT_PASSES = 3  # over K by conjugate gradients
_KINDS = {Cholesky: "cholesky", Nystrom: "nystrom", ConjugateGradient: "conjugate_gradient"}
HELD_BYTES_PER_ROW = 4096  # right-hand sides, solutions, residuals and predictions of a version or two


@dataclass(frozen=True)
class BlockAccuracy:
    """How many landmarks the answer by row blocks stands on.

    The cheapest answer whose certificate is met: landmarks are doubled from ``first`` on, until the bound on the error
    of every version's mean CCE is at most ``share`` of it (of its noise floor, where that is larger), or it shows that
    ``largest`` would not bring it there, or that an exact answer would be cheaper.

    Args:
        share: of the mean CCE or its noise floor that its certificate may reach.
        first: landmarks to begin with.
        largest: landmarks to end with; their work grows with the square.
        exact_work: operations of an exact answer, where one may be given; None where Nystrom's is taken as it is.
    """

    share: float = 1e-3
    first: int = 512
    largest: int = 4096
    exact_work: float | None = None

    def counts(self, n: int) -> list[int]:
        """The landmark counts to try on n rows, in turn."""
        counts, count = [], min(self.first, n)
        while count < min(self.largest, n):
            counts.append(count)
            count *= 2
        return [*counts, min(self.largest, n)]

    def is_in_reach(self, landmarks: int, worst: float, before: float | None, *, n: int = 0) -> bool:
        """Whether doubling ``landmarks`` promises to bring the certificate, ``worst`` of the mean CCE, to ``share``.

        It is expected to go on falling at the rate of the last doubling, from ``before``; the first is always tried.
        What doubles the work on n rows beyond that of an exact answer is not.
        """
        if self.exact_work is not None and nystrom_work(n, 2 * landmarks) > self.exact_work:
            return False
        if before is None:
            return True
        doublings = np.log2(max(self.largest / landmarks, 1.0))
        rate = worst / before
        return bool(rate < 1.0 and worst * rate**doublings <= self.share)

    @classmethod
    def of(cls, settings: SolverSettings, n: int = 0, d: int = 0, columns: int = 0) -> BlockAccuracy:
        """What an evaluation's settings ask for on n rows of d features; named landmarks are taken as they are.

        ``columns``: right-hand sides of all versions, 0 where an exact answer is out of the question.
        """
        if settings.landmarks is not None:
            return cls(first=settings.landmarks, largest=settings.landmarks)
        if settings.kind != "auto" or columns == 0 or _is_long(n, d):
            return cls()
        return cls(exact_work=exact_work(n, d, columns))


class OutOfReachError(Exception):
    """Landmarks would not bring the certificate to its aim, or cost more than an exact answer."""


def exact_work(n: int, d: int, columns: int) -> float:
    """Operations of conjugate gradients: each pass makes and uses one triangle of K."""
    return EXACT_PASSES * float(n) ** 2 * (d + OTHER_WORK / 2 + 2.0 * columns)


def nystrom_work(n: int, landmarks: int) -> float:
    """Operations of C'C, in double precision and so at half the speed."""
    return 4.0 * n * float(landmarks) ** 2


def is_by_row_blocks(
    settings: SolverSettings,
    protocol: EvaluationProtocol,
    n: int,
    d: int,
    *,
    has_query: bool,
    memory_bytes: int,
    on_cards: bool = False,
) -> bool:
    """Whether a split of n rows is measured by row blocks, which no memory limits, or held in memory.

    Up to 5,000 rows it is factored in memory, and beyond where the settings name an exact solver. The rest by row
    blocks: the Nystrom answer, on as many landmarks as its certificate needs (``BlockAccuracy``), the cheapest one that
    meets the aim. A protocol with a reference split, samples, bootstraps or downsampling is measured in memory at any
    size that fits. Of the cluster only cards have a say: exact answers are the cheapest ones there up to 100,000 rows.

    Raises:
        BudgetError: in memory, and it does not fit.
    """
    held = has_query or protocol.is_repeated or protocol.reference != "test"
    exact = settings.kind in ("cholesky", "conjugate_gradient")
    if not held and not exact:
        return _is_long(n, d) if on_cards else n > DENSE_LIMIT
    needed = n * (8 * d + HELD_BYTES_PER_ROW)
    if _is_long(n, d) and needed > memory_bytes:
        reason = f"solver.kind {settings.kind}" if exact else f"protocol '{protocol.name}'"
        raise BudgetError(
            f"{reason} holds all {n:,} rows of {d} features in memory, about {needed / 2**30:.1f} GiB, and there are "
            f"{memory_bytes / 2**30:.1f} GiB; use protocol 'exact' with solver.kind auto, which reads rows by blocks, "
            "or a smaller split"
        )
    return False


def _is_long(n: int, d: int) -> bool:
    return n > EXACT_ROWS or float(n) ** 2 * (2 * d + OTHER_WORK) > EXACT_WORK


@dataclass(frozen=True)
class SolverPlan:
    """A solver for the workers, the dtype of its tiles, and one line on what it is expected to take.

    ``reason``: why this solver. ``held_bytes``: what the workers may take to keep the Gram matrix between passes.
    """

    solver: Solver
    dtype: Any
    announcement: str
    reason: str
    held_bytes: int


def system_digest(x: Array, kernel: Kernel, regularization: float, scale: Array | None = None) -> str:
    """Names the system S K S + n lambda I: an iterate must never serve other inputs with the same right-hand sides."""
    digest = hashlib.sha256(repr((x.shape, str(x.dtype), kernel.describe(), regularization)).encode())
    digest.update(np.ascontiguousarray(x).data)
    if scale is not None:
        digest.update(np.ascontiguousarray(scale).data)
    return digest.hexdigest()[:32]


def plan_solver(
    settings: SolverSettings,
    x: Array,
    columns: int,
    kernel: Kernel,
    regularization: float,
    folder: Path,
    capacity: Capacity,
    *,
    scale: Array | None = None,
) -> SolverPlan:
    """The solver for inputs x (n, d) and ``columns`` right-hand sides.

    Args:
        settings: the evaluation file's.
        x: reference inputs (n, d).
        columns: right-hand sides of all versions together.
        kernel: the input kernel, whose speed is measured on a few tiles.
        regularization: lambda.
        folder: where the iterate of a long solve is kept.
        capacity: of the cluster.
        scale: of the reference points, where they count with weights.

    Raises:
        BudgetError: nothing fits; says what each solver would take, and what to change.
    """
    n, d = x.shape
    memory = capacity.memory_bytes if settings.memory is None else int(parse_bytes(settings.memory))
    held = min(capacity.kept_bytes, memory // KEPT_SHARE)
    plan = choose_solver(
        n,
        d,
        columns,
        memory_bytes=memory,
        kernel=kernel,
        cores=capacity.threads,
        kept_bytes=held,
        exact=not settings.approximate,
    )
    chosen = _KINDS.get(type(plan.solver)) if settings.kind == "auto" else settings.kind
    if chosen == "cholesky":
        # Small systems in double precision: the factor is the oracle of the others, and costs seconds.
        solver: Any = TiledCholesky(tolerance=settings.tolerance, memory_bytes=memory)
        dtype = np.float64 if n <= DENSE_LIMIT else np.float32
    elif chosen == "nystrom":
        solver = Nystrom(settings.landmarks or min(n, NYSTROM_LANDMARKS))
        dtype = np.float32
    else:
        checkpoint = None
        if n > CHECKPOINT_ROWS:
            system = system_digest(x, kernel, regularization, scale)
            checkpoint = CheckpointFile(folder / f"iterate-{system}.npz", system)
        solver = ConjugateGradient(settings.tolerance, settings.landmarks, checkpoint=checkpoint)
        dtype = np.float32
    name = type(solver).__name__
    reason = plan.reason if settings.kind == "auto" else "as the settings say"
    line = plan.describe() if settings.kind == "auto" else f"{name}, {reason}"
    return SolverPlan(solver, dtype, f"n = {n:,}, d = {d}, {columns} right-hand sides; {line}", reason, held)
