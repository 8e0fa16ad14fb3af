"""A kept iterate belongs to one system: to its inputs, kernel and lambda, not to right-hand sides that others share."""

from pathlib import Path

import numpy as np
import pytest

from congruence.kernels import RBF, ConjugateGradient
from congruence.kernels.errors import BudgetError
from congruence.kernels.gram.operator import RegularizedGram
from congruence.tasks.dask.clusters import dask_client
from congruence.tasks.runtime.memory import available_memory
from congruence.tasks.settings.cluster import ClusterSettings
from congruence.tasks.settings.solver import SolverSettings
from congruence.tasks.solving import plan as solver_plan
from congruence.tasks.solving.capacity import Capacity, cluster_capacity
from congruence.tasks.solving.plan import plan_solver

SMALL = Capacity(threads=2, memory_bytes=2**30, kept_bytes=2**28)


def test_a_plan_is_made_for_the_cluster_and_not_for_this_machine(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(6000, 3)).astype(np.float32)
    with pytest.raises(BudgetError, match=r"do not fit 0\.00 GiB"):
        plan_solver(SolverSettings(), x, 2, RBF(0.5), 0.1, tmp_path, Capacity(2, 2**20, 2**18))
    plan = plan_solver(SolverSettings(), x, 2, RBF(0.5), 0.1, tmp_path, SMALL)
    assert "the Gram matrix kept" in plan.announcement
    assert plan.held_bytes == SMALL.kept_bytes
    with dask_client(ClusterSettings(kind="threads", workers=3)) as client:
        capacity = cluster_capacity(client)
    assert capacity.threads == 3
    assert 0 < capacity.kept_bytes < capacity.memory_bytes <= available_memory() * 1.5


def test_the_iterate_of_one_encoder_never_serves_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver_plan, "CHECKPOINT_ROWS", 10)
    settings = SolverSettings(kind="conjugate_gradient")
    x = np.random.default_rng(0).normal(size=(40, 3))
    rhs = np.ones((40, 2))

    def solver(inputs: np.ndarray, gamma: float = 0.5) -> ConjugateGradient:
        planned = plan_solver(settings, inputs, 2, RBF(gamma), 0.1, tmp_path, SMALL).solver
        assert isinstance(planned, ConjugateGradient)
        return planned

    first = solver(x)
    state = first.prepare(RegularizedGram(x, RBF(0.5), 0.1))
    first.solve(state, rhs)
    assert first.checkpoint is not None
    for other in (solver(x + 1.0), solver(x, gamma=0.7)):
        assert other.checkpoint is not None
        assert other.checkpoint.load(rhs) is None
