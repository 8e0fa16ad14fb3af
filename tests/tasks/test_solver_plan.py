"""A kept iterate belongs to one system: to its inputs, kernel and lambda, not to right-hand sides that others share."""

from pathlib import Path

import numpy as np
import pytest

from congruence.kernels import RBF, ConjugateGradient
from congruence.kernels.operators import RegularizedGram
from congruence.tasks import solver_plan
from congruence.tasks.solver_plan import SolverSettings, plan_solver


def test_the_iterate_of_one_encoder_never_serves_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver_plan, "CHECKPOINT_ROWS", 10)
    settings = SolverSettings(kind="conjugate_gradient")
    x = np.random.default_rng(0).normal(size=(40, 3))
    rhs = np.ones((40, 2))

    def solver(inputs: np.ndarray, gamma: float = 0.5) -> ConjugateGradient:
        planned = plan_solver(settings, inputs, 2, RBF(gamma), 0.1, tmp_path).solver
        assert isinstance(planned, ConjugateGradient)
        return planned

    first = solver(x)
    state = first.prepare(RegularizedGram(x, RBF(0.5), 0.1))
    first.solve(state, rhs)
    assert first.checkpoint is not None
    for other in (solver(x + 1.0), solver(x, gamma=0.7)):
        assert other.checkpoint is not None
        assert other.checkpoint.load(rhs) is None
