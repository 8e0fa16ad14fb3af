"""Output features reproduce their kernel, and their expectations are those of the predictive distributions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from congruence.kernels import RBF, Kernel, Laplacian, Matern, Normal, Poisson, Polynomial, multiscale_rbf
from congruence.kernels.engine.targets import output_features
from congruence.kernels.errors import BudgetError
from congruence.kernels.fourier import FourierFeatures

RNG = np.random.default_rng(0)
Y = RNG.normal(3.0, 35.0, size=400)


@pytest.mark.parametrize(
    "kernel", [RBF(1 / (2 * 35.0**2)), RBF(0.02), multiscale_rbf(Y), Matern(2.5, 50.0), Polynomial(2, 1e-3)], ids=str
)
def test_features_reproduce_the_kernel(kernel: Kernel) -> None:
    features = output_features(kernel, Y)
    psi, gram = features(Y), kernel(Y)
    assert np.abs(psi @ psi.T - gram).max() <= 10 * max(features.error, 1e-12) * np.abs(gram).max()


@given(log_gamma=st.floats(-4, 1), location=st.floats(-1e3, 1e3), spread=st.floats(0.1, 10))
@settings(max_examples=30, deadline=None)
def test_fourier_features_hold_at_any_bandwidth_and_place(log_gamma: float, location: float, spread: float) -> None:
    y = location + spread * np.random.default_rng(1).normal(size=50)
    psi = output_features(RBF(10.0**log_gamma), y)(y)
    expected = np.exp(-(10.0**log_gamma) * (y[:, None] - y) ** 2)
    assert np.abs(psi @ psi.T - expected).max() < 1e-11


def test_one_rbf_at_the_papers_bandwidth_needs_few_features() -> None:
    features = output_features(RBF(1 / (2 * np.var(Y, ddof=1))), Y)
    assert isinstance(features, FourierFeatures)
    assert features.rank <= 60


@pytest.mark.parametrize("kernel", [RBF(0.002), Matern(2.5, 30.0), Laplacian(0.5)], ids=str)
def test_expectations_are_averages_over_the_distribution(kernel: Kernel) -> None:
    if isinstance(kernel, Laplacian):
        model, y = Poisson(np.array([3.0, 11.0])), np.arange(25.0)
    else:
        model, y = Normal(np.array([0.0, 20.0]), np.array([5.0, 40.0])), Y
    features = output_features(kernel, y, model)
    draws = 4000
    average = np.array([features(row).mean(axis=0) for row in model.sample(draws, seed=3)])
    assert np.abs(features.expectation(model) - average).max() < 5 / np.sqrt(draws)


def test_a_gaussian_integral_to_rounding() -> None:
    gamma, model = 0.002, Normal(np.array([0.0, 20.0, -3.0]), np.array([5.0, 40.0, 0.1]))
    features = output_features(RBF(gamma), Y, model)
    v = 1 / (2 * gamma)
    total = v + model.scale[:, None] ** 2
    expected = np.sqrt(v / total) * np.exp(-((model.loc[:, None] - Y) ** 2) / (2 * total))
    np.testing.assert_allclose(features.expectation(model) @ features(Y).T, expected, atol=1e-11)


def test_the_range_covers_the_predictions_too() -> None:
    far = Normal(np.array([400.0]), np.array([10.0]))
    kernel = RBF(1 / (2 * 35.0**2))
    features = output_features(kernel, Y, far)
    mean = features.expectation(far)[0]
    v = 35.0**2
    assert mean @ mean == pytest.approx(np.sqrt(v / (v + 200.0)), rel=1e-9)


def test_a_bandwidth_far_below_the_range_is_refused_before_work() -> None:
    with pytest.raises(BudgetError, match="wider output kernel"):
        output_features(RBF(1e6), np.array([0.0, 1000.0]))


def test_vector_targets() -> None:
    y = RNG.normal(size=(120, 3))
    kernel = RBF(0.2)
    features = output_features(kernel, y)
    psi = features(y)
    assert np.abs(psi @ psi.T - kernel(y)).max() < 1e-7


def test_a_kernel_with_a_kink_states_how_far_off_its_features_are() -> None:
    kernel = Laplacian(0.03)
    features = output_features(kernel, Y[:50])
    between = np.sort(Y[:50])[:-1] + 0.013
    missed = np.abs(features(between) @ features(Y[:50]).T - kernel(between, Y[:50])).max()
    assert missed <= features.error
    assert features.error < 0.02
