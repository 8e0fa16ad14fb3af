"""What finitely many targets make of a true version: its noise floor, its expected CCE with band and error."""

import numpy as np
import pytest
from unit_splits import CUBIC, unit_rows

from congruence.kernels import RBF, Normal, Poisson, Polynomial, Samples, congruence_test, prepare
from congruence.kernels.engine.congruence_test import band_of
from congruence.kernels.engine.plan import PROBES, model_output_kernel
from congruence.kernels.engine.spectrum import input_spectrum
from congruence.kernels.engine.targets import output_features
from congruence.kernels.kernel_functions import Sum

N = 1500


def inputs(n=N, d=6, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)) * np.linspace(1.0, 0.2, d)


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


@pytest.mark.parametrize("family", ["normal", "counts", "ensemble"])
def test_true_versions_lie_in_their_band(family):
    n, rng = 150, np.random.default_rng(1)
    x = unit_rows(n, 4)
    prepared = prepare(x, input_kernel=CUBIC)
    kernel, found = RBF(0.3), []
    if family == "ensemble":
        for _ in range(25):
            values = x[:, :1] + rng.standard_normal((n, 9))
            found.append(
                prepared.conditional_congruence_error(values[:, 0], Samples(values[:, 1:]), output_kernel=kernel)
            )
        means = np.array([one.mean for one in found])
    else:
        model = Normal(x[:, 0], 0.5 + np.abs(x[:, 1])) if family == "normal" else Poisson(3.0 + 2.0 * x[:, 0])
        draws = model.sample(400, seed=rng)
        found = [prepared.conditional_congruence_error(draws[:, 0], model, output_kernel=kernel)]
        psi = output_features(kernel, draws.ravel(), model)
        expected, smoother = psi.expectation(model), np.linalg.solve(CUBIC(x) + 0.1 * n * np.eye(n), CUBIC(x))
        means = np.array([np.mean(np.linalg.norm(smoother @ (psi(y) - expected), axis=1)) for y in draws.T])
        assert means[0] == pytest.approx(found[0].mean, rel=1e-6)
    bands = [one.band for one in found]
    low, high = np.array([(band.low, band.high) for band in bands]).T
    assert np.mean([band.mean for band in bands]) == pytest.approx(np.mean(means), rel=0.05)
    assert np.mean((low <= means) & (means <= high)) >= 0.87
    # A mean of norms lies below a root of expected squares.
    assert np.mean(means) < np.mean([one.noise_floor for one in found])


def test_the_test_has_what_its_statistic_would_be():
    n, zero = 200, np.zeros(200)
    x, y = unit_rows(n, 4), np.random.default_rng(2).standard_normal(200)
    test = congruence_test(x, y, Normal(zero, zero + 1.0), input_kernel=CUBIC, draws=199)
    low, high = test.band
    assert low < test.expected < high
    assert test.expected == pytest.approx(np.mean(test.null_statistics))
    wrong = congruence_test(x, y, Normal(zero + 1.0, zero + 1.0), input_kernel=CUBIC, draws=199)
    assert wrong.statistic > wrong.band[1]


def test_one_more_draw_lies_in_the_band_of_others_as_often_as_it_says():
    drawn = np.random.default_rng(3).standard_normal((20_000, 257))
    ends = np.array([band_of(draws) for draws in drawn[:, 1:]])
    assert np.mean((ends[:, 0] <= drawn[:, 0]) & (drawn[:, 0] <= ends[:, 1])) == pytest.approx(0.95, abs=0.0045)
    assert band_of(np.arange(1.0, 200.0)) == pytest.approx((5.0, 195.0))


@pytest.mark.parametrize("gamma", [1.0, 20.0])
def test_the_standard_error_is_the_spread_over_new_targets_under_narrow_kernels_too(gamma):
    n, rng = 500, np.random.default_rng(4)
    x, kernel, output = rng.standard_normal((n, 2)), RBF(gamma), RBF(0.4)
    model = Normal(np.sin(2.0 * x[:, 0]), 0.5 + 0.3 * np.abs(x[:, 0]))
    gram = kernel(x)
    smoother = np.linalg.solve(gram + 0.001 * n * np.eye(n), gram)
    psi = output_features(output, model.sample(1, seed=1)[:, 0], model)
    expected, means = psi.expectation(model), []
    for _ in range(200):
        error = smoother @ (psi(model.sample(1, seed=rng)[:, 0]) - expected)
        means.append(np.mean(np.linalg.norm(error, axis=1)))
    prepared = prepare(x, input_kernel=kernel, regularization=0.001)
    stated = [
        prepared.conditional_congruence_error(model.sample(1, seed=rng)[:, 0], model, output_kernel=output)
        for _ in range(4)
    ]
    error = np.sqrt(np.mean([found.standard_error**2 for found in stated]))
    assert error == pytest.approx(np.std(means), rel=0.15)


def test_a_model_states_its_own_bandwidth():
    n = 400
    x = unit_rows(n, 4)
    model = Normal(3.0 * x[:, 0], np.full(n, 0.5))
    y = model.sample(1, seed=3)[:, 0]
    variance = 0.25 + np.var(3.0 * x[:, 0])
    assert model_output_kernel(y, model) == RBF(1.0 / (2.0 * variance))
    assert model_output_kernel(y, model, "residual") == RBF(2.0)
    several = model_output_kernel(y, model, "multiscale")
    assert isinstance(several, Sum)
    assert [part.gamma * 2.0 * variance for part in several.parts] == pytest.approx([1.0, 4.0, 16.0, 64.0])
    # The observed target does not tell: any one of an ensemble and its target could have been it.
    values = np.random.default_rng(4).standard_normal((n, 5))
    swapped = values[:, [2, 1, 0, 3, 4]]
    for scale in ("marginal", "residual"):
        first = model_output_kernel(values[:, 0], Samples(values[:, 1:]), scale)
        second = model_output_kernel(swapped[:, 0], Samples(swapped[:, 1:]), scale)
        assert first.gamma == pytest.approx(second.gamma)
