"""Means over rows and paired differences: the same in any sharding, intervals that cover, tests of their level."""

import warnings

import numpy as np
import pytest
import scipy.stats
from scipy.special import ndtr, ndtri

from congruence.kernels.arrays import mean_over
from congruence.kernels.dependence.blocks import blocks_of_groups
from congruence.kernels.distributions import Normal, Poisson
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import pit_values
from congruence.kernels.resampling import PairedResampling, ScoreStatistics, mean_of, root_of, sliced_statistics

RNG = np.random.default_rng(3)
SCORES = {"crps": RNG.gamma(2, 1, 5000), "squared_error": RNG.gamma(1, 4, 5000)}
KEYS = np.arange(5000)


def _shard(rows: np.ndarray) -> ScoreStatistics:
    return ScoreStatistics.of({name: values[rows] for name, values in SCORES.items()}, keys=KEYS[rows])


def test_shards_merge_to_the_whole_in_any_order() -> None:
    whole = ScoreStatistics.of(SCORES, keys=KEYS)
    parts = [_shard(rows) for rows in np.array_split(RNG.permutation(5000), 7)]
    merged = sum(parts[1:], start=parts[0])
    assert merged.rows == 5000
    assert merged.means() == pytest.approx({name: values.mean() for name, values in SCORES.items()})
    for name, estimate in merged.estimates().items():
        reference = whole.estimates()[name]
        assert (estimate.low, estimate.high) == pytest.approx((reference.low, reference.high))


def test_intervals_have_the_width_of_the_standard_error() -> None:
    functions = {"rmse": lambda mean: np.sqrt(mean["squared_error"]), "crps": lambda mean: mean["crps"]}
    estimates = ScoreStatistics.of(SCORES).estimates(functions)
    standard_error = SCORES["crps"].std() / np.sqrt(5000)
    assert estimates["crps"].high - estimates["crps"].low == pytest.approx(2 * 1.96 * standard_error, rel=0.08)
    assert estimates["rmse"].value == pytest.approx(np.sqrt(SCORES["squared_error"].mean()))
    assert estimates["rmse"].low < estimates["rmse"].value < estimates["rmse"].high
    assert estimates == ScoreStatistics.of(SCORES).estimates(functions)


def test_slices_are_the_statistics_of_their_rows() -> None:
    labels = np.where(KEYS % 3 == 0, "rural", "urban")
    shards = [
        sliced_statistics({n: v[rows] for n, v in SCORES.items()}, labels[rows], keys=KEYS[rows])
        for rows in (slice(0, 2000), slice(2000, 5000))
    ]
    merged = {label: shards[0][label] + shards[1][label] for label in shards[0]}
    assert merged["rural"].means()["crps"] == pytest.approx(SCORES["crps"][KEYS % 3 == 0].mean())
    assert merged["rural"].rows + merged["urban"].rows == 5000


def test_an_infinite_score_makes_its_mean_infinite_and_no_other() -> None:
    estimates = ScoreStatistics.of({"nll": [1.0, np.inf, 2.0], "crps": [1.0, 2.0, 3.0]}).estimates()
    assert estimates["nll"].value == estimates["nll"].low == np.inf
    assert np.isfinite(estimates["crps"].high)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both = ScoreStatistics.of({"nll": [1.0, np.inf, -np.inf]}).estimates()
        assert np.isnan(both["nll"].value)
        assert np.isnan(mean_over(np.array([np.inf, -np.inf]), None))


def test_what_cannot_be_aggregated_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        ScoreStatistics.of({"x": np.array([])}).estimates()
    with pytest.raises(InvalidInputError, match="NaN in row 1"):
        ScoreStatistics.of({"x": [1.0, np.nan]})
    with pytest.raises(InvalidInputError, match="expected \\(2,\\)"):
        ScoreStatistics.of({"x": [1.0, 2.0], "y": [1.0]})
    with pytest.raises(InvalidInputError, match="cannot merge"):
        ScoreStatistics.of({"x": [1.0]}) + ScoreStatistics.of({"y": [1.0]})
    with pytest.raises(InvalidInputError, match="keys"):
        ScoreStatistics.of({"x": [1.0]}, keys=[1, 2])


LEVELS = np.linspace(1e-5, 1.0 - 1e-5, 20)
CENTERS = {f"pit_{j}": float(level) for j, level in enumerate(LEVELS)}


def _calibration_statistics(pit: np.ndarray) -> ScoreStatistics:
    return ScoreStatistics.of({name: pit <= level for name, level in CENTERS.items()})


@pytest.mark.parametrize("law", ["normal", "poisson", "overconfident"])
def test_intervals_of_a_calibration_error_cover_that_of_the_population(law: str) -> None:
    """Percentiles of the bootstrap cover a calibrated model's error, 0, in no sample at all."""
    covered, repetitions = 0, 300
    truth = float(np.mean(np.abs(LEVELS - ndtr(ndtri(LEVELS) / 1.5)))) if law == "overconfident" else 0.0
    for seed in range(repetitions):
        rng = np.random.default_rng(seed)
        if law == "poisson":
            pit = pit_values(rng.poisson(0.5, 500), Poisson(np.full(500, 0.5)), seed=seed)
        else:
            pit = ndtr(rng.normal(0.0, 1.5 if law == "overconfident" else 1.0, 500))
        found = _calibration_statistics(pit).mean_absolute_deviation(CENTERS, resamples=300)
        assert 0.0 <= found.low < found.value < found.high
        covered += found.low <= truth <= found.high
    assert 0.92 <= covered / repetitions <= 0.99
    assert law != "overconfident" or found.low > 0.03


def test_a_mean_absolute_deviation_is_that_of_the_means_and_merges() -> None:
    pit = np.random.default_rng(4).uniform(size=3000) ** 1.1
    whole = _calibration_statistics(pit).mean_absolute_deviation(CENTERS)
    assert whole.value == pytest.approx(np.mean([abs(np.mean(pit <= level) - level) for level in LEVELS]), rel=1e-12)
    keys = np.arange(3000)
    parts = [
        ScoreStatistics.of({name: pit[rows] <= level for name, level in CENTERS.items()}, keys=keys[rows])
        for rows in (slice(1000, 3000), slice(0, 1000))
    ]
    merged = (parts[0] + parts[1]).mean_absolute_deviation(CENTERS)
    assert (merged.low, merged.high) == pytest.approx((whole.low, whole.high), rel=1e-9)


def test_a_deviation_that_is_not_defined_is_refused() -> None:
    statistics = ScoreStatistics.of({"x": [1.0, np.inf]})
    for centers, message in (({}, "none"), ({"z": 0.0}, "'z'"), ({"x": 0.0}, "infinite values")):
        with pytest.raises(InvalidInputError, match=message):
            statistics.mean_absolute_deviation(centers)
    with pytest.raises(InvalidInputError, match="level"):
        statistics.mean_absolute_deviation({"x": 0.0}, level=1.0)


def interval_of(values, **rows):
    return ScoreStatistics.of({"mean": values}, **rows).estimates()["mean"]


def paired_difference(first, second):
    return PairedResampling(len(first), 2000, 0).compare(first[:, None], second[:, None], mean_of)


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


def test_a_paired_difference_sees_what_two_intervals_do_not():
    rng = np.random.default_rng(0)
    common = rng.normal(0.0, 10.0, 500)
    found = paired_difference(common + 0.2, common + rng.normal(0.0, 0.5, 500))
    assert found.low < 0.2 < found.high
    assert found.p_value < 0.01
    assert interval_of(common).low < 0.2 < interval_of(common).high


def test_the_interval_is_the_t_interval_and_the_p_value_the_permutation_tests():
    rng = np.random.default_rng(0)
    first, second = rng.normal(0.15, 1, 200), rng.normal(0, 1, 200)
    result = PairedResampling(200, resamples=4000).compare(first, second, mean_of)
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
        result = PairedResampling(n, resamples=199, seed=seed).compare(first, second, mean_of)
        rejected += result.p_value <= 0.05
        covered += result.low <= 0 <= result.high
    assert rejected <= 20  # expected 10
    assert covered >= 178  # expected 190


def test_equal_models_are_equal_and_orders_mirror():
    values = np.random.default_rng(1).normal(size=50) ** 2
    same = PairedResampling(50).compare(values, values, mean_of)
    assert (same.difference, same.low, same.high, same.p_value) == (0.0, 0.0, 0.0, 1.0)
    other = values + np.random.default_rng(2).normal(0.3, 1, 50)
    forth, back = (PairedResampling(50).compare(*pair, mean_of) for pair in ((values, other), (other, values)))
    assert forth.difference == -back.difference
    assert forth.p_value == back.p_value


def test_any_function_of_means():
    rng = np.random.default_rng(3)
    first, second = rng.normal(0, 2, 3000) ** 2, rng.normal(0, 1, 3000) ** 2
    result = PairedResampling(3000).compare(first, second, root_of)
    assert result.first == pytest.approx(np.sqrt(first.mean()))
    assert result.low < 1.0 < result.high
    assert result.p_value < 0.001


def test_the_same_seed_gives_the_same_numbers():
    rng = np.random.default_rng(4)
    metric = rng.normal(size=100), rng.normal(size=100), mean_of
    assert PairedResampling(100, seed=5).compare(*metric) == PairedResampling(100, seed=5).compare(*metric)
    assert PairedResampling(100, seed=5).compare(*metric) != PairedResampling(100, seed=6).compare(*metric)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InvalidInputError, match="at least two"):
        PairedResampling(1)
    with pytest.raises(InvalidInputError, match="points must be the same"):
        PairedResampling(3).compare(np.ones(3), np.ones(4), mean_of)
    with pytest.raises(InvalidInputError, match="row 1"):
        PairedResampling(2).compare(np.array([1.0, np.nan]), np.ones(2), mean_of)
    with pytest.raises(InvalidInputError, match="made for 5"):
        PairedResampling(5).compare(np.ones(4), np.ones(4), mean_of)


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
        result = resampling.compare(below(ndtr(y - 0.05)), below(ndtr(y + 0.05)), calibration_error)
        assert (result.p_value < 0.05) <= (not result.low <= 0.0 <= result.high)
        rejected += result.p_value <= 0.05
    assert rejected <= 22  # expected 10


def test_a_worse_calibration_error_is_seen():
    y = np.random.default_rng(0).normal(size=2000)
    result = PairedResampling(2000).compare(below(ndtr(y)), below(ndtr(1.3 * y)), calibration_error)
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
        rejected += resampling.compare(first, second, mean_of).p_value <= 0.05
    assert rejected <= 24  # expected 10; of 150 skewed differences of NLL 14, as by Student's test
