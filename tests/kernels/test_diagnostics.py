"""Kernel diagnostics against their definitions, and the warning on a kernel that ignores its inputs."""

import warnings

import numpy as np
import pytest

from congruence.kernels import RBF, Cholesky, Polynomial
from congruence.kernels.congruence.diagnostics import kernel_diagnostics
from congruence.kernels.congruence.preparation import prepare
from congruence.kernels.gram.points import PointsHere
from congruence.kernels.gram.variation import NearlyConstantKernelWarning, kernel_variation
from congruence.kernels.protocol.weighting import weighted_reference
from congruence.kernels.solvers import ConjugateGradient

UNIT = Polynomial(degree=3, gamma=1.0, coef0=1.0)


def unit_norm(n=400, d=16, seed=0):
    x = np.random.default_rng(seed).standard_normal((n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("solver", [Cholesky(), ConjugateGradient()], ids=["cholesky", "conjugate gradient"])
@pytest.mark.parametrize("at", ["reference", "query"])
def test_diagnostics_are_their_definitions(solver, at):
    x = unit_norm()
    query = x if at == "reference" else unit_norm(50, seed=1)
    gram = UNIT(x)
    weights = np.linalg.solve(gram + 0.1 * len(x) * np.eye(len(x)), UNIT(x, query))
    prepared = prepare(x, query=None if at == "reference" else query, input_kernel=UNIT, solver=solver)
    found = kernel_diagnostics(prepared)
    dimension = np.trace(np.linalg.solve(gram + 0.1 * len(x) * np.eye(len(x)), gram))
    assert found.effective_dimension == pytest.approx(dimension, rel=0.1)
    size = weights.sum(axis=0) ** 2 / (weights**2).sum(axis=0)
    assert np.median(found.effective_sample_size / size) == pytest.approx(1.0, rel=0.1)
    eigenvalues = np.linalg.eigvalsh(gram) + 0.1 * len(x)
    assert eigenvalues[-1] / eigenvalues[0] <= found.condition_bound
    assert found.variation == pytest.approx(gram[~np.eye(len(x), dtype=bool)].std() / gram.mean(), rel=0.2)
    assert found.findings() == []


def test_unit_norm_with_the_bandwidth_of_raw_embeddings_is_warned_of():
    with pytest.warns(NearlyConstantKernelWarning, match="CCE hardly depends on x"):
        prepared = prepare(unit_norm(d=512), input_kernel=Polynomial(degree=3, gamma=None, coef0=1.0))
    found = kernel_diagnostics(prepared)
    assert found.nearly_constant
    assert "gamma = 1" in found.findings()[0]


def test_a_kernel_that_sees_its_inputs_is_not():
    assert kernel_variation(unit_norm(d=512), UNIT) > 0.05


def test_identical_inputs_are_warned_of_as_well():
    with pytest.warns(NearlyConstantKernelWarning):
        prepare(np.ones((20, 3)), input_kernel=RBF(1.0))


def test_two_points_cannot_show_that_a_kernel_is_constant():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared = prepare(np.array([[0.0], [1.0]]), input_kernel=RBF(1.0))
    assert np.isnan(kernel_diagnostics(prepared).variation)


def test_a_constant_kernel_is_warned_of_under_weights_however_these_vary():
    x, rows = np.ones((50, 3)), np.arange(40)
    with pytest.warns(NearlyConstantKernelWarning):
        weighted_reference(
            x, rows, query=x, input_kernel=RBF(1.0), regularization=0.1, weights=np.linspace(1.0, 9.0, 40)
        )


def test_a_constant_kernel_is_warned_of_wherever_the_system_lives():
    points = PointsHere(np.ones((20, 3)), RBF(1.0))
    with pytest.warns(NearlyConstantKernelWarning):
        prepare(points, input_kernel=RBF(1.0))


def test_the_effective_dimension_of_a_constant_kernel():
    with pytest.warns(NearlyConstantKernelWarning):
        prepared = prepare(np.ones((300, 2)), input_kernel=RBF(1.0), regularization=0.1)
    assert kernel_diagnostics(prepared).effective_dimension == pytest.approx(1.0 / 1.1, rel=0.3)


def test_a_kernel_too_narrow_for_the_sample_is_a_finding():
    prepared = prepare(unit_norm(100), input_kernel=RBF(500.0))
    finding = kernel_diagnostics(prepared).findings()[0]
    assert "rests on" in finding
    assert "scale the features" in finding
