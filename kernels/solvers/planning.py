"""Which solver fits a reference split and the memory there is: projected before it starts, refused with numbers."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from congruence.kernels.errors import BudgetError
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.gram.points import BLOCK_ROWS
from congruence.kernels.kernel_functions import Kernel, Polynomial
from congruence.kernels.memory import KEPT_LIMIT, KEPT_SHARE, available_memory
from congruence.kernels.solvers.base import Solver
from congruence.kernels.solvers.cholesky import Cholesky
from congruence.kernels.solvers.conjugate_gradient import ConjugateGradient, landmark_count
from congruence.kernels.solvers.nystrom import Nystrom
from congruence.kernels.streams import stream
from congruence.kernels.threads import available_threads, map_on_threads

DENSE_LIMIT = 5000
EXPECTED_PASSES = 3
NYSTROM_LANDMARKS = 2000


@dataclass(frozen=True)
class Plan:
    """A solver with what it is expected to take, before anything has started.

    Attributes:
        solver: the choice.
        projected_bytes: peak memory beside the inputs.
        projected_seconds: of preparing and one solve, at the rate measured on this machine.
        reason: one line for a person.
    """

    solver: Solver
    projected_bytes: int
    projected_seconds: float
    reason: str

    def describe(self) -> str:
        """The plan in one line: solver, memory, time, reason."""
        return (
            f"{type(self.solver).__name__}: about {self.projected_bytes / 2**30:.2f} GiB beside the inputs and "
            f"{self.projected_seconds:.3g} s ({self.reason})"
        )


def default_solver(operator: RegularizedGram) -> Solver:
    """Cholesky up to n = 5,000, preconditioned conjugate gradients above."""
    return Cholesky() if operator.n <= DENSE_LIMIT else ConjugateGradient()


def choose_solver(
    n: int,
    d: int,
    rank: int,
    *,
    memory_bytes: int | None = None,
    seconds: float | None = None,
    kernel: Kernel | None = None,
    cores: int | None = None,
    kept_bytes: int | None = None,
    exact: bool = True,
) -> Plan:
    """The solver for n points with d features and ``rank`` right-hand sides, within a budget.

    Exact solvers come first: Cholesky for small n, conjugate gradients above; Nystrom only if ``exact`` is False and
    the others do not fit.

    Args:
        n: points.
        d: features.
        rank: right-hand sides (features of the output kernel, probes, versions).
        memory_bytes: what may be used beside the inputs; by default what the machine has available.
        seconds: what it may take; no limit by default.
        kernel: the input kernel whose speed is measured; a cubic polynomial by default.
        cores: cores of the whole cluster; by default those of this process.
        kept_bytes: of the memory, what may keep the Gram matrix between passes; by default as in this process.
        exact: False allows an approximation with a stated error.

    Raises:
        BudgetError: nothing fits; says what each solver would take, and what to change.
    """
    memory = available_memory() if memory_bytes is None else memory_bytes
    limit = np.inf if seconds is None else seconds
    cores = available_threads() if cores is None else cores
    keep = min(KEPT_LIMIT, memory // KEPT_SHARE) if kept_bytes is None else kept_bytes
    plans = _plans(n, d, rank, kernel or Polynomial(), cores, keep)
    for plan in plans:
        approximate = isinstance(plan.solver, Nystrom)
        if plan.projected_bytes <= memory and plan.projected_seconds <= limit and not (approximate and exact):
            return plan
    offers = "; ".join(plan.describe() for plan in plans)
    raise BudgetError(
        f"n = {n:,}, d = {d}, {rank} right-hand sides do not fit {memory / 2**30:.2f} GiB"
        + (f" and {limit:.3g} s" if seconds is not None else "")
        + f". Projected: {offers}. Use more workers, a larger budget, fewer reference points (downsampling keeps all "
        "points as queries), or allow an approximation with a stated error (Nystrom)"
    )


def _plans(n: int, d: int, rank: int, kernel: Kernel, cores: int, keep: int) -> list[Plan]:
    per_entry = seconds_per_entry(kernel, d) / cores  # of a Gram tile: d-term product and elementwise part
    per_flop = seconds_per_flop() / cores
    vectors = 8 * n * rank
    plans = []
    if n <= DENSE_LIMIT:
        work = (n**3 / 3 + 4.0 * n * n * rank) * 2 * per_flop + n * n * per_entry
        plans.append(Plan(Cholesky(), 16 * n * n + 3 * vectors, work, f"n is at most {DENSE_LIMIT:,}: factor once"))
    m = landmark_count(n)
    built = n * m * (per_entry + 2 * m * per_flop)
    one_pass = n * n * (per_entry / 2 + 2 * rank * per_flop)
    needed = 7 * vectors + min(4 * n * m, 2**31) + 32 * m * m
    kept = 2 * n * n if 2 * n * n <= keep else 0
    again = 2 * n * n * rank * per_flop if kept else one_pass
    plans.append(
        Plan(
            ConjugateGradient(),
            needed + kept,
            built + one_pass + (EXPECTED_PASSES - 1) * again + EXPECTED_PASSES * 4 * n * m * rank * per_flop,
            f"exact, {m:,} landmarks, about {EXPECTED_PASSES} passes of {one_pass:.3g} s"
            + (", the Gram matrix kept" if kept else ""),
        )
    )
    m = min(n, NYSTROM_LANDMARKS)
    rows = Nystrom(m).rows
    work = 3 * n * m * per_entry + 2 * n * m * (m + 2 * rank) * per_flop + n * rows * per_entry
    held = 3 * vectors + min(4 * n * m, 2**31) + 32 * m * m
    plans.append(Plan(Nystrom(m), held, work, f"approximate, {m:,} landmarks, error stated"))
    return plans


def seconds_per_entry(kernel: Kernel, d: int) -> float:
    """Measured time of one Gram entry on one core of this machine, from a few tiles."""
    rng = stream(0, "timed inputs")
    x = rng.standard_normal((2 * BLOCK_ROWS, d)).astype(np.float32) / np.float32(np.sqrt(d))
    operator = RegularizedGram(x, kernel, 0.1, threads=1)
    v = np.ones((len(x), 1))
    times = []
    for _ in range(3):
        started = time.perf_counter()
        operator.cross(x[:BLOCK_ROWS], v)
        times.append(time.perf_counter() - started)
    return min(times) / (len(x) * BLOCK_ROWS)


def seconds_per_flop() -> float:
    """Measured time of one operation of a float32 matrix product on one core of this machine."""
    a = np.ones((BLOCK_ROWS, BLOCK_ROWS), dtype=np.float32)

    def product(_: int) -> float:
        started = time.perf_counter()
        a @ a
        return time.perf_counter() - started

    threads = available_threads()  # all cores at once: alone, a core is faster than it will be
    return max(map_on_threads(product, range(threads), threads)) / (2 * BLOCK_ROWS**3)
