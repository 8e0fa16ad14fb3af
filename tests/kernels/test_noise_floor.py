"""The noise floor by probes and the leading spectrum, against the definition sum_i W_ji^2 v_i."""

import numpy as np
import pytest

from congruence.kernels import RBF, Normal, Polynomial, prepare
from congruence.kernels.engine.plan import PROBES
from congruence.kernels.engine.spectrum import input_spectrum

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
    smoother = input_spectrum(x, RBF(0.3), 0.01).smoother(x, query)
    variance = np.random.default_rng(0).uniform(0.0, 2.0, 200)
    L = smoother(np.eye(200, dtype=np.float32)).astype(float)
    np.testing.assert_allclose(smoother.squared_weights(variance), L**2 @ variance, rtol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "regularization", "typical"), [(Polynomial(), 0.1, 0.02), (RBF(0.3), 0.1, 0.04), (RBF(0.3), 0.003, 0.08)]
)
@pytest.mark.parametrize("at_query", [False, True])
def test_sixteen_probes_leave_a_few_percent_at_a_point(kernel, regularization, typical, at_query):
    x, query = inputs(), inputs(300, seed=3) if at_query else None
    y = x[:, 0] + np.random.default_rng(4).standard_normal(N)
    model = Normal(x[:, 0], np.random.default_rng(5).uniform(0.5, 1.5, N))
    settings = {"query": query, "input_kernel": kernel, "regularization": regularization}
    exact = prepare(x, **settings).conditional_congruence_error(y, model).noise_floor_values
    prepared = prepare(x, landmarks=1200, **settings)
    probed = prepared.conditional_congruence_error(y, model).noise_floor_values
    error = probed / exact - 1.0
    plain = 0.5 * np.sqrt(2.0 / PROBES)
    assert np.sqrt(np.mean(error**2)) < typical < 0.5 * plain
    assert abs(np.mean(error)) < 0.01
    assert np.max(np.abs(error)) < 4.0 * plain


def test_the_spectrum_is_that_of_the_gram_matrix():
    x = inputs()
    for landmarks in (None, 450):
        prepared = prepare(x, input_kernel=Polynomial(), landmarks=landmarks)
        eigenvalues = np.linalg.eigvalsh(Polynomial()(x))[::-1]
        np.testing.assert_allclose(prepared.spectrum.eigenvalues[:10], eigenvalues[:10], rtol=0.02)


def test_a_version_has_the_same_floor_in_whatever_company():
    x, y = inputs(300), np.random.default_rng(1).standard_normal(300)
    prepared = prepare(x, input_kernel=RBF(0.3), landmarks=100)  # has no factor of the whole: the floor is by probes
    versions = {name: Normal(np.zeros(300), np.full(300, scale)) for name, scale in (("a", 0.8), ("b", 1.2))}
    together = prepared.evaluate(y, versions, draws=0)
    alone = prepared.evaluate(y, {"b": versions["b"]}, draws=0)["b"]
    np.testing.assert_allclose(together["b"].noise_floor_values, alone.noise_floor_values, rtol=1e-6)
