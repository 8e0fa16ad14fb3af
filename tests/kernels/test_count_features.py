"""Features on counts: the definition in sums of masses, against the Fourier rule, and where counts end."""

import numpy as np
import pytest

from congruence.kernels import (
    RBF,
    DoublePoisson,
    Mixture,
    NegativeBinomial,
    Normal,
    Poisson,
    Samples,
    ZeroInflated,
)
from congruence.kernels.distributions.counts import Count
from congruence.kernels.engine.targets import output_features, target_errors
from congruence.kernels.finite_features import CountFeatures
from congruence.kernels.fourier import Density, FourierFeatures, fourier_features

ROWS = 300
RNG = np.random.default_rng(3)
MEAN = 2.0 * np.exp(0.5 * RNG.normal(size=ROWS))
LAWS = {
    "poisson": Poisson(MEAN),
    "negative binomial": NegativeBinomial(MEAN, np.full(ROWS, 0.4)),
    "double poisson": DoublePoisson(MEAN, np.full(ROWS, 1.5)),
    "zero inflated": ZeroInflated(Poisson(MEAN), np.full(ROWS, 0.3)),
    "mixture": Mixture(np.array([0.3, 0.7]), [Poisson(MEAN), Poisson(2.0 * MEAN)]),
    "large": Poisson(100.0 + MEAN),
    "without digits at 0": Poisson(600.0 * MEAN),
}
COUNTED = [name for name in LAWS if name != "without digits at 0"]


@pytest.mark.parametrize("name", COUNTED)
def test_errors_are_those_of_the_fourier_rule(name):
    law = LAWS[name]
    y, kernel = law.sample(1, seed=1)[:, 0], RBF(0.3)
    features = output_features(kernel, y, law)
    assert isinstance(features, CountFeatures)
    waves = fourier_features([Density.of(RBF(0.3))], *features.range, 1e-12)
    counted, fourier = target_errors(y, law, kernel, features=features), target_errors(y, law, kernel, features=waves)
    np.testing.assert_allclose(counted.delta @ counted.delta.T, fourier.delta @ fourier.delta.T, atol=3e-12)
    np.testing.assert_allclose(counted.variance, fourier.variance, atol=3e-12)
    assert features.rank <= waves.rank
    assert features.error <= 1e-12


@pytest.mark.parametrize("name", [name for name in LAWS if isinstance(LAWS[name], Count)])
@pytest.mark.parametrize("first", [0.0, 3.0])
def test_sums_over_counts_are_those_of_the_definition(name, first):
    law, table = LAWS[name], np.random.default_rng(0).normal(size=(900, 4))
    mass = np.exp(law.log_prob(first + np.arange(900.0)[None, :]))
    np.testing.assert_allclose(law.sum_over(first, table), mass @ table, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(law.sum_over(first, table[:2]), mass[:, :2] @ table[:2], rtol=1e-11, atol=1e-12)


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
