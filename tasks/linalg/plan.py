"""The evaluation file's `solver:` turned into a solver for a Dask cluster, with what it will take said beforehand."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from dask.utils import parse_bytes

from congruence.kernels.arrays import Array
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.solvers import Cholesky, ConjugateGradient, Nystrom, Solver, choose_solver
from congruence.kernels.solvers.planning import DENSE_LIMIT, NYSTROM_LANDMARKS, Plan
from congruence.tasks.linalg import Capacity, CheckpointFile, TiledCholesky
from congruence.tasks.linalg.capacity import KEPT_SHARE
from congruence.tasks.settings.solver import SolverSettings

CHECKPOINT_ROWS = 50_000


@dataclass(frozen=True)
class SolverPlan:
    """A solver for the workers, the dtype of its tiles, and one line on what it is expected to take.

    ``held_bytes``: what the workers may take to keep the Gram matrix between passes.
    """

    solver: Solver
    dtype: Any
    announcement: str
    held_bytes: int


def system_digest(x: Array, kernel: Kernel, regularization: float) -> str:
    """Names the system K + n lambda I: a kept iterate must never serve other inputs with the same right-hand sides."""
    digest = hashlib.sha256(repr((x.shape, str(x.dtype), kernel.describe(), regularization)).encode())
    digest.update(np.ascontiguousarray(x).data)
    return digest.hexdigest()[:32]


def plan_solver(
    settings: SolverSettings,
    x: Array,
    columns: int,
    kernel: Kernel,
    regularization: float,
    folder: Path,
    capacity: Capacity,
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
    chosen = settings.kind
    if chosen == "auto":
        chosen = _kind_of(plan)
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
            system = system_digest(x, kernel, regularization)
            checkpoint = CheckpointFile(folder / f"iterate-{system}.npz", system)
        solver = ConjugateGradient(settings.tolerance, settings.landmarks, checkpoint=checkpoint)
        dtype = np.float32
    said = plan.describe() if settings.kind == "auto" else f"{type(solver).__name__}, as the settings say"
    return SolverPlan(solver, dtype, f"n = {n:,}, d = {d}, {columns} right-hand sides; {said}", held)


def _kind_of(plan: Plan) -> Literal["cholesky", "conjugate_gradient", "nystrom"]:
    if isinstance(plan.solver, Cholesky):
        return "cholesky"
    return "nystrom" if isinstance(plan.solver, Nystrom) else "conjugate_gradient"
