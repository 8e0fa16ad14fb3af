"""Intervals of a mean and of paired differences: coverage under skewed scores, weights and unequal groups; refusals."""

import numpy as np
import pytest

from congruence.kernels.dependence.blocks import blocks_of_groups
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.resampling import PairedResampling, PointMetric, ScoreStatistics, mean_of


def interval_of(values, **rows):
    return ScoreStatistics.of({"mean": values}, **rows).estimates()["mean"]


def paired_difference(first, second):
    return PairedResampling(len(first), 2000, 0).compare(PointMetric(first[:, None], second[:, None], mean_of))


@pytest.mark.parametrize("n", [60, 200, 5000])
def test_the_interval_covers_the_mean_as_often_as_it_says(n):
    covered = 0
    for seed in range(150):
        values = np.random.default_rng(seed).exponential(size=n)
        found = interval_of(values)
        covered += found.low <= 1.0 <= found.high
    assert 0.88 <= covered / 150 <= 0.99  # percentiles of the bootstrap cover .91 at n = 60


WEIGHTS = {
    "Pareto 1.1": lambda x, rng: rng.pareto(1.1, len(x)) + 1.0,
    "Pareto 2": lambda x, rng: rng.pareto(2.0, len(x)) + 1.0,
    "exp(1.5 x)": lambda x, rng: np.exp(1.5 * x),
    "exp(.7 x)": lambda x, rng: np.exp(0.7 * x),
}


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("n", [100, 1000])
def test_weighted_means_have_an_interval_that_covers_or_a_reason_for_none(name, n):
    """Of a score |z| exp(x / 2), which weights follow or not; most of tilt 1.5 or Pareto 1.1 are refused."""
    rng = np.random.default_rng(n)
    tilt = {"exp(1.5 x)": 1.5, "exp(.7 x)": 0.7}.get(name, 0.0)
    truth = np.sqrt(2.0 / np.pi) * np.exp(0.125 + 0.5 * tilt)
    covered = given = 0
    for _ in range(150):
        x = rng.normal(size=n)
        values, weights = np.abs(rng.normal(size=n)) * np.exp(0.5 * x), WEIGHTS[name](x, rng)
        statistics = ScoreStatistics.of({"mean": values}, weights=weights)
        reason = statistics.too_few()
        if reason:
            assert "effective rows of" in reason
        else:
            found = statistics.estimates()["mean"]
            given += 1
            covered += found.low <= truth <= found.high
    assert given < 60 if name in ("Pareto 1.1", "exp(1.5 x)") else given > 90
    assert covered >= 0.88 * given or given < 30


def test_a_group_with_half_of_the_rows_leaves_no_interval_and_unequal_groups_one_that_covers():
    rng = np.random.default_rng(0)
    half = np.repeat(np.arange(12), [110, *[10] * 11])
    blocks = blocks_of_groups(half, len(half))
    reason = ScoreStatistics.of({"mean": np.ones(len(half))}, keys=blocks.labels).too_few(blocks)
    assert reason == "one group holds 50 % of the rows"
    covered = 0
    for _ in range(200):
        sizes = np.ceil(5.0 * np.exp(rng.normal(size=30))).astype(int)
        labels = np.repeat(np.arange(30), sizes)
        values = rng.normal(size=30)[labels] + rng.normal(size=len(labels))
        found = interval_of(values, keys=labels)
        covered += found.low <= 0.0 <= found.high
    assert 0.91 <= covered / 200 <= 0.995


def test_a_million_points_take_no_more_resampling_than_a_thousand():
    values = np.random.default_rng(0).normal(3.0, 1.0, 1_000_000)
    found = interval_of(values)
    assert found.low < found.value < found.high
    assert (found.high - found.low) / 2 == pytest.approx(1.96 / 1000, rel=0.15)


def test_a_paired_difference_sees_what_two_intervals_do_not():
    rng = np.random.default_rng(0)
    common = rng.normal(0.0, 10.0, 500)
    found = paired_difference(common + 0.2, common + rng.normal(0.0, 0.5, 500))
    assert found.low < 0.2 < found.high
    assert found.p_value < 0.01
    assert interval_of(common).low < 0.2 < interval_of(common).high


def test_no_values_and_nan_are_refused():
    with pytest.raises(InvalidInputError):
        interval_of(np.array([]))
    with pytest.raises(InvalidInputError, match="row 1"):
        interval_of(np.array([1.0, np.nan]))
    with pytest.raises(InvalidInputError):
        paired_difference(np.ones(3), np.ones(4))
