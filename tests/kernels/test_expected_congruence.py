"""What a mean CCE would be if the version were true, beside it: the same mean of norms, with its band."""

import numpy as np
import pytest

from congruence.kernels import RBF, Normal, Poisson, Polynomial, Samples, congruence_test, prepare
from congruence.kernels.engine.targets import model_output_kernel, output_features
from congruence.kernels.kernel_functions import Sum

KERNEL = Polynomial(degree=3, gamma=1.0, coef0=1.0)


def unit_inputs(n: int) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((n, 4))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("family", ["normal", "counts", "ensemble"])
def test_true_versions_lie_in_their_band(family):
    n, rng = 150, np.random.default_rng(1)
    x = unit_inputs(n)
    prepared = prepare(x, input_kernel=KERNEL)
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
        expected, smoother = psi.expectation(model), np.linalg.solve(KERNEL(x) + 0.1 * n * np.eye(n), KERNEL(x))
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
    x, y = unit_inputs(n), np.random.default_rng(2).standard_normal(200)
    test = congruence_test(x, y, Normal(zero, zero + 1.0), input_kernel=KERNEL, draws=199)
    low, high = test.band
    assert low < test.expected < high
    assert test.expected == pytest.approx(np.mean(test.null_statistics))
    wrong = congruence_test(x, y, Normal(zero + 1.0, zero + 1.0), input_kernel=KERNEL, draws=199)
    assert wrong.statistic > wrong.band[1]


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
    x = unit_inputs(n)
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
