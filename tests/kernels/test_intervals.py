"""Bootstrap intervals of a mean and paired differences: coverage, scale and refusals."""

import numpy as np
import pytest

from congruence.kernels.errors import InvalidInputError
from congruence.kernels.resampling.aggregation import ScoreStatistics
from congruence.kernels.resampling.paired import PairedResampling, PointMetric, mean_of


def bootstrap_interval(values, **options):
    return ScoreStatistics.of({"mean": values}).estimates(**options)["mean"]


def paired_difference(first, second):
    return PairedResampling(len(first), 2000, 0).compare(PointMetric(first[:, None], second[:, None], mean_of))


@pytest.mark.parametrize("n", [200, 5000])
def test_the_interval_covers_the_mean_as_often_as_it_says(n):
    covered = 0
    for seed in range(150):
        values = np.random.default_rng(seed).exponential(size=n)
        found = bootstrap_interval(values, resamples=400, seed=seed)
        covered += found.low <= 1.0 <= found.high
    assert 0.88 <= covered / 150 <= 0.99


def test_a_million_points_take_no_more_resampling_than_a_thousand():
    values = np.random.default_rng(0).normal(3.0, 1.0, 1_000_000)
    found = bootstrap_interval(values)
    assert found.low < found.value < found.high
    assert (found.high - found.low) / 2 == pytest.approx(1.96 / 1000, rel=0.15)


def test_a_paired_difference_sees_what_two_intervals_do_not():
    rng = np.random.default_rng(0)
    common = rng.normal(0.0, 10.0, 500)
    found = paired_difference(common + 0.2, common + rng.normal(0.0, 0.5, 500))
    assert found.low < 0.2 < found.high
    assert found.p_value < 0.01
    assert bootstrap_interval(common).low < 0.2 < bootstrap_interval(common).high


def test_no_values_and_nan_are_refused():
    with pytest.raises(InvalidInputError):
        bootstrap_interval(np.array([]))
    with pytest.raises(InvalidInputError, match="row 1"):
        bootstrap_interval(np.array([1.0, np.nan]))
    with pytest.raises(InvalidInputError):
        paired_difference(np.ones(3), np.ones(4))
