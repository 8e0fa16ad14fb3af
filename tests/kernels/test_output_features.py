"""Output features reproduce their kernel, on counts as elsewhere; waves by products are sines and cosines."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from congruence.kernels import (
    RBF,
    DoublePoisson,
    Kernel,
    Laplacian,
    Matern,
    Mixture,
    NegativeBinomial,
    Normal,
    Poisson,
    Polynomial,
    Samples,
    ZeroInflated,
    multiscale_rbf,
)
from congruence.kernels.arrays import average_wave, waves
from congruence.kernels.engine.targets import (
    Density,
    FourierFeatures,
    fourier_features,
    output_features,
    target_errors,
)
from congruence.kernels.errors import BudgetError
from congruence.kernels.finite_features import CountFeatures

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


def test_a_kernel_with_a_kink_states_how_far_off_its_features_are() -> None:
    kernel = Laplacian(0.03)
    features = output_features(kernel, Y[:50])
    between = np.sort(Y[:50])[:-1] + 0.013
    missed = np.abs(features(between) @ features(Y[:50]).T - kernel(between, Y[:50])).max()
    assert missed <= features.error
    assert features.error < 0.02


ROWS = 300
MEAN = 2.0 * np.exp(0.5 * np.random.default_rng(3).normal(size=ROWS))
LAWS = {
    "poisson": Poisson(MEAN),
    "negative binomial": NegativeBinomial(MEAN, np.full(ROWS, 0.4)),
    "double poisson": DoublePoisson(MEAN, np.full(ROWS, 1.5)),
    "zero inflated": ZeroInflated(Poisson(MEAN), np.full(ROWS, 0.3)),
    "mixture": Mixture(np.array([0.3, 0.7]), [Poisson(MEAN), Poisson(2.0 * MEAN)]),
    "large": Poisson(100.0 + MEAN),
}


@pytest.mark.parametrize("name", LAWS)
def test_errors_are_those_of_the_fourier_rule(name):
    law = LAWS[name]
    y, kernel = law.sample(1, seed=1)[:, 0], RBF(0.3)
    features = output_features(kernel, y, law)
    assert isinstance(features, CountFeatures)
    waves = fourier_features((Density.of(RBF(0.3)),), *features.range, 1e-12)
    counted, fourier = target_errors(y, law, kernel, features=features), target_errors(y, law, kernel, features=waves)
    np.testing.assert_allclose(counted.delta @ counted.delta.T, fourier.delta @ fourier.delta.T, atol=3e-12)
    np.testing.assert_allclose(counted.variance, fourier.variance, atol=3e-12)
    assert features.rank <= waves.rank
    assert features.error <= 1e-12


def test_a_target_that_is_no_count_of_the_table_is_projected_and_said_to_be():
    law, kernel = LAWS["poisson"], RBF(0.1)
    features = output_features(kernel, law.sample(1, seed=1)[:, 0], law)
    y = np.full(ROWS, 1.0)
    y[:3] = 2.5, features.range[1] + 6.0, 1e4
    np.testing.assert_allclose(features(y)[:3] @ features(y[3:4]).T, kernel(y[:3], y[3:4]), atol=1e-6)
    missed = features.missed(y, law)
    assert np.all(missed.rows[3:] == 4.0 * features.error)
    assert missed.rows[0] < 1e-3 < 0.1 < missed.rows[1]
    assert missed.rows[2] == pytest.approx(1.0)


def test_mass_beyond_the_table_is_in_the_error():
    law, y = LAWS["poisson"], np.zeros(ROWS)
    features = output_features(RBF(0.3), y, law[:1])
    missed = (2.0 * (1.0 - law.cdf(features.range[1]))) ** 2
    np.testing.assert_allclose(features.missed(y, law).outside, missed, rtol=1e-6, atol=1e-29)
    assert np.sqrt(np.max(missed)) > 1e-6


def test_targets_between_counts_and_counts_without_end_take_the_fourier_rule():
    law, kernel = LAWS["poisson"], RBF(0.3)
    assert isinstance(output_features(kernel, np.linspace(0.0, 3.0, ROWS), law), FourierFeatures)
    assert isinstance(output_features(RBF(1e-4), np.arange(ROWS) * 5.0, law), FourierFeatures)


@pytest.mark.parametrize("law", [Samples(LAWS["poisson"].sample(7, seed=2)), Normal(MEAN, np.sqrt(MEAN))])
def test_laws_that_are_no_counts_are_projected_on_them(law):
    truth, kernel = LAWS["poisson"], RBF(0.05)
    features = output_features(kernel, truth.sample(1, seed=1)[:, 0], truth)
    counts = np.arange(3.0, 9.0)  # a normal law lies below the least count, too
    inner = features.expectation(law) @ features(counts).T
    np.testing.assert_allclose(inner, law.kernel_expectation(kernel, counts), atol=1e-7)
    missed = features.missed(truth.sample(1, seed=3)[:, 0], law)
    if isinstance(law, Samples):
        assert np.all(missed.rows == 4.0 * features.error)
    else:
        assert np.max(missed.rows) > 1e-6


@pytest.mark.parametrize(
    "t",
    [0.07 * np.arange(131), 0.3 + 0.07 * np.arange(40), np.array([0.0, 0.1, 0.4]), np.array([0.2]), np.array([])],
    ids=["from 0", "from elsewhere", "uneven", "one", "none"],
)
def test_waves_are_those_of_sines_and_cosines(t):
    values = 20.0 * np.random.default_rng(0).standard_normal((3, 700))
    phase = np.multiply.outer(values, t)
    found = waves(values, t)
    assert found.shape == phase.shape
    rounding = 2.0 * np.finfo(float).eps * max(4.0, np.max(np.abs(phase), initial=0.0))  # of the phase itself
    np.testing.assert_allclose(found, np.cos(phase) + 1j * np.sin(phase), rtol=0, atol=rounding)
    np.testing.assert_allclose(waves(values[0, 0], t), found[0, 0], rtol=0, atol=rounding)


@pytest.mark.parametrize("t", [0.11 * np.arange(90), np.array([0.0, 0.1, 0.4])], ids=["even", "uneven"])
def test_averages_of_uniform_laws_of_any_width(t):
    """A width of 0 is a point, and a small one keeps its digits."""
    rng = np.random.default_rng(0)
    center, weights = 5.0 * rng.standard_normal((900, 6)), rng.dirichlet(np.ones(6))
    half = np.abs(rng.standard_normal((900, 6))) * np.array([0.0, 1e-300, 1e-12, 1e-4, 1.0, 9.0])
    expected = np.empty((900, len(t)), dtype=complex)
    for j, frequency in enumerate(t):
        expected[:, j] = (np.exp(1j * frequency * center) * np.sinc(frequency * half / np.pi)) @ weights
    np.testing.assert_allclose(average_wave(center, weights, t, half_widths=half), expected, rtol=0, atol=2e-14)
