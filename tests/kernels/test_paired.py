"""Paired comparison: level and power of the test, coverage of the interval, and a cost that does not grow with n."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from scipy.special import ndtr

from congruence.kernels.distributions import Normal
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.resampling import PairedResampling, PointMetric, mean_of, root_of


def mean_metric(first, second):
    return PointMetric(first, second, mean_of)


def test_the_interval_is_the_t_interval_and_the_p_value_the_permutation_tests():
    rng = np.random.default_rng(0)
    first, second = rng.normal(0.15, 1, 200), rng.normal(0, 1, 200)
    result = PairedResampling(200, resamples=4000).compare(mean_metric(first, second))
    reference = scipy.stats.ttest_rel(first, second)
    interval = reference.confidence_interval()
    assert result.difference == pytest.approx(np.mean(first - second), rel=1e-12)
    assert result.low == pytest.approx(interval.low, abs=0.02)
    assert result.high == pytest.approx(interval.high, abs=0.02)
    assert result.p_value == pytest.approx(reference.pvalue, abs=0.03)


@pytest.mark.parametrize("n", [60, 5000])
def test_level_and_coverage(n):
    rng = np.random.default_rng(n)
    rejected = covered = 0
    for seed in range(200):
        common = rng.exponential(size=n)
        first, second = common + rng.normal(size=n), common + rng.normal(size=n)
        result = PairedResampling(n, resamples=199, seed=seed).compare(mean_metric(first, second))
        rejected += result.p_value <= 0.05
        covered += result.low <= 0 <= result.high
    assert rejected <= 20  # expected 10
    assert covered >= 178  # expected 190


def test_equal_models_are_equal_and_orders_mirror():
    values = np.random.default_rng(1).normal(size=50) ** 2
    same = PairedResampling(50).compare(mean_metric(values, values))
    assert (same.difference, same.low, same.high, same.p_value) == (0.0, 0.0, 0.0, 1.0)
    other = values + np.random.default_rng(2).normal(0.3, 1, 50)
    forth, back = (PairedResampling(50).compare(mean_metric(*pair)) for pair in ((values, other), (other, values)))
    assert forth.difference == -back.difference
    assert forth.p_value == back.p_value


def test_any_function_of_means():
    rng = np.random.default_rng(3)
    first, second = rng.normal(0, 2, 3000) ** 2, rng.normal(0, 1, 3000) ** 2
    result = PairedResampling(3000).compare(PointMetric(first, second, root_of))
    assert result.first == pytest.approx(np.sqrt(first.mean()))
    assert result.low < 1.0 < result.high
    assert result.p_value < 0.001


def test_the_same_seed_gives_the_same_numbers():
    rng = np.random.default_rng(4)
    metric = mean_metric(rng.normal(size=100), rng.normal(size=100))
    assert PairedResampling(100, seed=5).compare(metric) == PairedResampling(100, seed=5).compare(metric)
    assert PairedResampling(100, seed=5).compare(metric) != PairedResampling(100, seed=6).compare(metric)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InvalidInputError, match="at least two"):
        PairedResampling(1)
    with pytest.raises(InvalidInputError, match="points must be the same"):
        mean_metric(np.ones(3), np.ones(4))
    with pytest.raises(InvalidInputError, match="row 1"):
        mean_metric(np.array([1.0, np.nan]), np.ones(2))
    with pytest.raises(InvalidInputError, match="made for 5"):
        PairedResampling(5).compare(mean_metric(np.ones(4), np.ones(4)))


LEVELS = np.linspace(1e-5, 1.0 - 1e-5, 20)


def below(pit):
    return (pit[:, None] <= LEVELS).astype(float)


def calibration_error(observed):
    return np.abs(observed - LEVELS).mean(axis=-1)


@pytest.mark.parametrize("n", [150, 2000])
def test_level_where_two_models_have_the_same_calibration_error(n):
    """Biased up and down by as much. Exchanging their columns called this a difference 8 to 9 times in ten."""
    resampling, rejected, repetitions = PairedResampling(n, resamples=299), 0, 200
    for seed in range(repetitions):
        y = np.random.default_rng(seed).normal(size=n)
        metric = PointMetric(below(ndtr(y - 0.05)), below(ndtr(y + 0.05)), calibration_error)
        result = resampling.compare(metric)
        assert (result.p_value < 0.05) <= (not result.low <= 0.0 <= result.high)
        rejected += result.p_value <= 0.05
    assert rejected <= 22  # expected 10


def test_a_worse_calibration_error_is_seen():
    y = np.random.default_rng(0).normal(size=2000)
    result = PairedResampling(2000).compare(PointMetric(below(ndtr(y)), below(ndtr(1.3 * y)), calibration_error))
    assert result.high < 0.0
    assert result.p_value < 0.01


@pytest.mark.parametrize("n", [150, 2000])
@pytest.mark.parametrize(("score", "scale"), [("nll", 1.2996311741), ("crps", 1.3525353003)])
def test_level_where_two_different_models_score_the_same(n, score, scale):
    """Too narrow and too wide: point by point the scores differ much, and not alike, but their means are the same."""
    resampling, rejected, repetitions = PairedResampling(n, resamples=299), 0, 200
    narrow = {"nll": 0.8, "crps": 0.7}[score]
    for seed in range(repetitions):
        y = np.random.default_rng(seed).normal(size=n)
        models = [Normal(np.zeros(n), np.full(n, spread)) for spread in (narrow, scale)]
        first, second = (-law.log_prob(y) if score == "nll" else law.crps(y) for law in models)
        rejected += resampling.compare(mean_metric(first, second)).p_value <= 0.05
    assert rejected <= 24  # expected 10; of 150 skewed differences of NLL 14, as by Student's test
