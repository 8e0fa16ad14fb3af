"""The noise floor by probes and the leading spectrum, against the definition sum_i W_ji^2 v_i."""

import numpy as np
import pytest

from congruence.kernels.congruence.noise_floor import PROBES, probes_of, squared_floor
from congruence.kernels.congruence.preparation import prepare
from congruence.kernels.distributions import Normal
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.gram.spectrum import gram_spectrum, spectral_smoother
from congruence.kernels.kernel_functions import RBF, Polynomial
from congruence.kernels.solvers import Cholesky, ConjugateGradient, Nystrom

N = 1500


def inputs(n=N, d=6, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)) * np.linspace(1.0, 0.2, d)


def smoothing(x, kernel, regularization, query=None):
    """W = k(query)' A^-1, (m, n)."""
    gram = kernel(x) + len(x) * regularization * np.eye(len(x))
    return np.linalg.solve(gram, kernel(x, x if query is None else query)).T


@pytest.mark.parametrize("at_query", [False, True])
def test_the_squared_weights_of_a_smoother_are_those_of_its_matrix(at_query):
    x, query = inputs(200), inputs(30, seed=1) if at_query else None
    smoother = spectral_smoother(gram_spectrum(RegularizedGram(x, RBF(0.3), 0.01)), query)
    variance = np.random.default_rng(0).uniform(0.0, 2.0, 200)
    L = smoother(np.eye(200, dtype=np.float32)).astype(float)
    np.testing.assert_allclose(smoother.squared_weights(variance), L**2 @ variance, rtol=1e-4)


@pytest.mark.parametrize("kernel", [Polynomial(), RBF(0.3)], ids=str)
def test_the_estimate_is_unbiased_even_with_a_spectrum_of_four_landmarks(kernel):
    x = inputs(120)
    W = smoothing(x, kernel, 0.02)
    smoother = spectral_smoother(gram_spectrum(RegularizedGram(x, kernel, 0.02), 4))
    variance = np.random.default_rng(1).uniform(0.2, 1.0, 120)
    L = smoother.synthesis.astype(float) * smoother.filters @ smoother.analysis.astype(float).T
    estimates = []
    for seed in range(600):
        z = probes_of(variance, np.arange(120), seed, count=4)
        estimates.append(L**2 @ variance + np.mean((W @ z) ** 2 - (L @ z) ** 2, axis=1))
        np.testing.assert_allclose(
            squared_floor(variance, smoother, z, W @ z), np.maximum(estimates[-1], 0.0), rtol=1e-9, atol=1e-12
        )
    error = np.std(estimates, axis=0) / np.sqrt(len(estimates))
    assert np.all(np.abs(np.mean(estimates, axis=0) - W**2 @ variance) < 5.0 * error + 1e-6)


@pytest.mark.parametrize(
    ("kernel", "regularization", "typical"), [(Polynomial(), 0.1, 0.02), (RBF(0.3), 0.1, 0.04), (RBF(0.3), 0.003, 0.08)]
)
@pytest.mark.parametrize("at_query", [False, True])
def test_sixteen_probes_leave_a_few_percent_at_a_point(kernel, regularization, typical, at_query):
    x, query = inputs(), inputs(300, seed=3) if at_query else None
    y = x[:, 0] + np.random.default_rng(4).standard_normal(N)
    model = Normal(x[:, 0], np.random.default_rng(5).uniform(0.5, 1.5, N))
    settings = {"query": query, "input_kernel": kernel, "regularization": regularization}
    exact = prepare(x, solver=Cholesky(), **settings).conditional_congruence_error(y, model).noise_floor_values
    prepared = prepare(x, solver=ConjugateGradient(landmarks=500), **settings)
    probed = prepared.conditional_congruence_error(y, model).noise_floor_values
    error = probed / exact - 1.0
    plain = 0.5 * np.sqrt(2.0 / PROBES)
    assert np.sqrt(np.mean(error**2)) < typical < 0.5 * plain
    assert abs(np.mean(error)) < 0.01
    assert np.max(np.abs(error)) < 4.0 * plain


def test_a_point_that_no_landmark_sees_has_its_floor_too():
    x = np.concatenate([inputs(), [[40.0] * 6]])
    y = np.zeros(N + 1)
    y[-1] = 1.0
    model = Normal(np.zeros(N + 1), np.ones(N + 1))
    settings = {"input_kernel": RBF(0.3), "regularization": 1e-3}
    exact = prepare(x, solver=Cholesky(), **settings).conditional_congruence_error(y, model)
    blind = prepare(x, solver=ConjugateGradient(landmarks=60), **settings)
    assert N not in blind.spectrum.indices
    probed = blind.conditional_congruence_error(y, model)
    assert probed.noise_floor_values[-1] == pytest.approx(exact.noise_floor_values[-1], rel=0.4)


@pytest.mark.parametrize("solver", [ConjugateGradient(landmarks=450), Nystrom(450), Cholesky()], ids=str)
def test_the_spectrum_is_read_off_landmarks_that_a_solver_has_chosen(solver):
    x = inputs()
    prepared = prepare(x, input_kernel=Polynomial(), solver=solver)
    eigenvalues = np.linalg.eigvalsh(Polynomial()(x))[::-1]
    np.testing.assert_allclose(prepared.spectrum.eigenvalues[:10], eigenvalues[:10], rtol=0.02)
    low_rank = solver.low_rank(prepared.state)
    assert (low_rank is None) == (type(solver) is Cholesky)
    if low_rank is not None:
        assert prepared.spectrum.indices is low_rank.leading.indices


def test_thinned_landmarks_are_every_other_column():
    x = inputs(900)
    solver = ConjugateGradient(landmarks=850)
    operator = RegularizedGram(x, RBF(0.3), 0.1)
    low_rank = solver.prepare(operator).preconditioner
    few, C = low_rank.leading, RBF(0.3)(x)[:, low_rank.leading.indices]
    np.testing.assert_array_equal(few.indices, low_rank.indices[::2])
    np.testing.assert_allclose(few.gram, C.T @ C)
    np.testing.assert_allclose(few.corner, C[few.indices])
    w = np.random.default_rng(0).standard_normal((len(few.indices), 3))
    np.testing.assert_allclose(few.columns.matmul(w), C @ w, atol=1e-10)


def test_a_version_has_the_same_floor_in_whatever_company():
    x, y = inputs(300), np.random.default_rng(1).standard_normal(300)
    solver = ConjugateGradient(1e-10, landmarks=100)  # has no factor: the floor is by probes
    prepared = prepare(x, input_kernel=RBF(0.3), solver=solver)
    versions = {name: Normal(np.zeros(300), np.full(300, scale)) for name, scale in (("a", 0.8), ("b", 1.2))}
    together = prepared.congruence_errors(y, versions)
    alone = prepared.congruence_errors(y, {"b": versions["b"]})["b"]
    np.testing.assert_allclose(together["b"].noise_floor_values, alone.noise_floor_values, rtol=1e-6)
