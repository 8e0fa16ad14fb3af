"""Calibration tests: level on calibrated models, power on uncalibrated ones, and honesty about both."""

import numpy as np
import pytest

from congruence.kernels import RBF
from congruence.kernels.distributions import MultivariateNormal, Normal, Samples
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_calibration.estimators import asymptotic_test, calibration_test
from congruence.kernels.kernel_calibration.pairs import pair_terms
from congruence.kernels.kernel_calibration.prediction_kernels import Wasserstein

KERNEL = RBF(0.5)
METHODS = ("asymptotic", "block")


def synthetic(n: int, seed: int, *, calibrated: bool) -> tuple[Normal, np.ndarray]:
    """The paper's experiment: P = N(c, .1^2) with c ~ U(0, 1); targets from P, or from N(.1, .1^2)."""
    rng = np.random.default_rng(seed)
    center = rng.uniform(size=n)
    return Normal(center, np.full(n, 0.1)), (center if calibrated else 0.1) + 0.1 * rng.normal(size=n)


@pytest.mark.parametrize(
    ("method", "n", "repetitions", "options"),
    [
        ("asymptotic", 256, 300, {"replicates": 199}),
        ("block", 1024, 100, {}),
        ("asymptotic", 64, 300, {"replicates": 199}),
    ],
)
def test_level_on_calibrated_models(method, n, repetitions, options):
    """At most the level plus three standard errors (they overlap .05 +- .02 in the record of the long experiment)."""
    rejected = 0
    for seed in range(repetitions):
        predictive, y = synthetic(n, seed, calibrated=True)
        rejected += (
            calibration_test(y, predictive, method=method, output_kernel=KERNEL, seed=seed, **options).p_value <= 0.05
        )
    assert rejected / repetitions <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / repetitions)


@pytest.mark.parametrize("method", METHODS)
def test_power_on_the_uncalibrated_model(method):
    for seed in range(5):
        predictive, y = synthetic(256, seed, calibrated=False)
        assert calibration_test(y, predictive, method=method, output_kernel=KERNEL, seed=seed).p_value <= 0.05


def test_ten_targets():
    """The paper's experiment in ten dimensions: only the first target is off."""
    rng = np.random.default_rng(0)
    center = np.repeat(rng.uniform(size=(200, 1)), 10, axis=1)
    predictive = MultivariateNormal(center, np.full((200, 10), 0.1))
    y = center + 0.1 * rng.normal(size=(200, 10))
    options = {"output_kernel": KERNEL, "replicates": 39}
    assert calibration_test(y, predictive, **options).p_value > 0.05
    y[:, 0] = 0.1 + 0.1 * rng.normal(size=200)
    assert calibration_test(y, predictive, **options).p_value <= 0.05


def test_ordinary_least_squares_illustration_is_rejected():
    """Quantiles of a line through y = sin(pi x) + |1 + x| eps look calibrated; the joint law is not."""
    rejections = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rng.uniform(-1, 1, size=150)
        y = np.sin(np.pi * x) + np.abs(1 + x) * 0.15 * rng.normal(size=150)
        slope, intercept = np.polyfit(x[:100], y[:100], 1)
        spread = np.std(y[:100] - intercept - slope * x[:100], ddof=1)
        predictive = Normal(intercept + slope * x[100:], np.full(50, spread))
        rejections.append(calibration_test(y[100:], predictive, output_kernel=KERNEL, seed=seed).p_value < 0.05)
    assert np.mean(rejections) >= 0.75


def test_more_rows_than_are_all_compared_find_more():
    """Overconfident by a factor of 1.15: no size finds less than a smaller one."""
    found = []
    for n in (600, 1_200, 2_400):
        p_values = []
        for seed in range(12):
            rng = np.random.default_rng([n, seed])
            center = rng.normal(size=n)
            terms = pair_terms(Normal(center, np.ones(n)), center + 1.15 * rng.normal(size=n))
            p_values.append(asymptotic_test(terms, 99, seed, reach=1_000).p_value)
        found.append(np.mean(np.array(p_values) <= 0.05))
    assert found[0] <= found[1] <= found[2] == 1.0


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_repeats_the_result(method):
    predictive, y = synthetic(256, 0, calibrated=True)
    first, second = (calibration_test(y, predictive, method=method, seed=7) for _ in range(2))
    assert first == second
    assert 0.0 < first.p_value <= 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "cme"}, "unknown"),
        ({"replicates": 5}, "at least 19"),
        ({"method": "block", "block_size": 20}, "leave 2 blocks"),  # which can give a calibrated model p = 1e-63
    ],
)
def test_bad_options_are_named(options, message):
    predictive, y = synthetic(40, 0, calibrated=True)
    with pytest.raises(InvalidInputError, match=message):
        calibration_test(y, predictive, **options)


def test_ensembles_are_tested_as_the_empirical_law_they_are():
    """Members around the true center that differ less than the targets do: overconfident."""
    rng = np.random.default_rng(0)
    center = rng.normal(size=(200, 1))
    y = center[:, 0] + rng.normal(size=200)
    wide = Samples(center + rng.normal(size=(200, 30)))
    narrow = Samples(center + 0.2 * rng.normal(size=(200, 30)))
    assert calibration_test(y, wide, output_kernel=RBF(1.0)).p_value > 0.05
    assert calibration_test(y, narrow, output_kernel=RBF(1.0)).p_value < 0.01


@pytest.mark.parametrize("members", [3, 10])
def test_few_draws_of_the_truth_are_not_uncalibrated(members):
    """Compared by the draws alone, three right ones were rejected in .83 of the splits, and those of counts in all."""
    rng, n, rejected = np.random.default_rng(members), 150, np.zeros(3)
    for seed in range(40):
        center, rate = rng.normal(size=(n, 1)), np.exp(0.5 * rng.normal(size=(n, 1)))
        drawn = center + rng.normal(size=(n, members + 1)), rng.poisson(rate, (n, members + 1)).astype(float)
        narrow = center + np.where(np.arange(members + 1) > 0, 0.5, 1.0) * rng.normal(size=(n, members + 1))
        for place, values in enumerate((*drawn, narrow)):
            terms = pair_terms(Samples(values[:, 1:]), values[:, 0], Wasserstein(None))
            rejected[place] += asymptotic_test(terms, seed=seed, replicates=199).p_value <= 0.05
    assert np.all(rejected[:2] <= 6)  # of a binomial number, 2 to be expected
    assert rejected[2] >= 32
