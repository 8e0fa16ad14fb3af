"""Rows that depend on each other: a true law keeps its level by blocks, and correlation is found unasked."""

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.special import ndtr, ndtri
from scipy.stats import poisson

from congruence.kernels import RBF, MultivariateNormal, Normal, Poisson, ScoreStatistics, calibration_test, prepare
from congruence.kernels.arrays import effective_rows, require_weights
from congruence.kernels.conditional_calibration import passes
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import conditional_calibration_test, prepare_calibration
from congruence.kernels.conditional_calibration.reading import group_reading
from congruence.kernels.dependence.blocks import (
    DependentBlocks,
    RowDependence,
    SumOfBlocks,
    TooFewBlocksError,
    blocks_of_groups,
    blocks_of_time,
    enlargement,
    enlargements,
    t_quantile,
)
from congruence.kernels.dependence.correlation import correlations, dependence_scores, version_blocks
from congruence.kernels.dependence.runs import block_length, run_length
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import pit_scores
from congruence.kernels.resampling import PairedResampling, mean_of

FEW = CalibrationSettings(draws=199, directions=20, own_directions=5)
LAW = Normal(np.zeros(500), 1.0)


def autoregressive(n: int, rho: float, seed: int) -> np.ndarray:
    """Standard normal at every time, lag-1 correlation rho."""
    noise = np.random.default_rng(seed).standard_normal(n)
    noise[1:] *= np.sqrt(1.0 - rho**2)
    return np.asarray(lfilter([1.0], [1.0, -rho], noise))


def slow_inputs(n: int) -> np.ndarray:
    t = np.arange(n) / n
    return np.column_stack([np.sin(6.0 * t), np.cos(4.0 * t), t])


def test_a_true_law_of_an_hourly_series_is_not_called_wrong_and_a_bias_is_found() -> None:
    prepared = prepare_calibration(slow_inputs(500), settings=FEW)
    series = [autoregressive(500, 0.5, seed) for seed in range(40)]
    hours = RowDependence.of(500, time=np.datetime64("2026-01-01") + np.arange(500))
    assert sum(prepared.test_version(y, LAW).p_value <= 0.05 for y in series) >= 20
    by_blocks = [prepared.test_version(y, LAW, dependence=hours) for y in series]
    assert sum(test.p_value <= 0.05 for test in by_blocks) <= 6
    assert sum(prepared.test_version(y + 0.4, LAW, dependence=hours).p_value <= 0.05 for y in series[:10]) >= 8
    assert by_blocks[0].null == "blocks"
    assert 10 <= by_blocks[0].blocks < 250


def test_rows_of_one_group_are_one_observation() -> None:
    rng = np.random.default_rng(0)
    patients = RowDependence.of(500, groups=np.repeat([f"patient {k}" for k in range(100)], 5))
    x = np.repeat(rng.standard_normal((100, 2)), 5, axis=0)
    prepared = prepare_calibration(x, settings=FEW)
    alone = by_group = 0
    for _ in range(40):
        y = np.sqrt(0.5) * (np.repeat(rng.standard_normal(100), 5) + rng.standard_normal(500))
        alone += prepared.test_version(y, LAW).p_value <= 0.05
        by_group += prepared.test_version(y, LAW, dependence=patients).p_value <= 0.05
    assert alone >= 15
    assert by_group <= 6


def test_groups_of_single_rows_change_nothing() -> None:
    x, y = slow_inputs(500), autoregressive(500, 0.0, 1)
    one, other = (conditional_calibration_test(x, y, LAW, settings=FEW, groups=g) for g in (None, np.arange(500)))
    assert other.p_value == one.p_value
    assert other.effects == one.effects
    assert other.blocks is None


def test_point_estimates_do_not_change_and_intervals_widen() -> None:
    x, y = slow_inputs(500), autoregressive(500, 0.8, 3)
    one, other = (conditional_calibration_test(x, y, LAW, settings=FEW, time=t) for t in (None, np.arange(500)))
    assert other.means == one.means
    assert other.effects["bias"].estimate == one.effects["bias"].estimate
    assert other.effects["bias"].high > one.effects["bias"].high


def test_runs_follow_the_order_of_time_and_keep_ties_together() -> None:
    scores = pit_scores(ndtr(autoregressive(600, 0.7, 0)))
    shuffled = np.random.default_rng(1).permutation(600)
    hours = np.arange(600) // 3
    runs = blocks_of_time(hours[shuffled], scores[shuffled])
    labels = np.empty(600, dtype=int)
    labels[shuffled] = runs.labels
    assert np.all(np.diff(labels) >= 0)
    assert all(len(np.unique(labels[hours == hour])) == 1 for hour in range(200))
    assert block_length(0.0, 1000) == 1
    assert block_length(0.9, 1000) > block_length(0.5, 1000) > 10


def test_the_standard_error_is_that_of_means_of_blocks() -> None:
    rng, groups = np.random.default_rng(0), np.repeat(np.arange(30), 4)
    values = rng.standard_normal(120)
    blocks = blocks_of_groups(groups, 120)
    means = values.reshape(30, 4).mean(axis=1)
    assert blocks.standard_error(values) == pytest.approx(np.std(means, ddof=1) / np.sqrt(30))
    found = SumOfBlocks.of(blocks.sums(values - values.mean()) / 120)
    assert found.error == pytest.approx(blocks.standard_error(values))
    even = SumOfBlocks.of(np.repeat([-1.0, 1.0], 15))
    low, high = even.interval(1.0)
    assert (high - low) / 2 / even.error == pytest.approx(2.045, abs=1e-3)
    (edge,) = {round(found.p_value(found.error * found._inverse(reach)), 6) for reach in (2.0452296, -2.0452296)}
    assert edge == 0.05
    np.testing.assert_array_equal(blocks.signs(3, 0, 2), blocks.signs(5, 0)[:, 2:])


def test_correlation_is_found_unasked_and_seldom_where_there_is_none() -> None:
    rng = np.random.default_rng(5)
    alarms = 0
    for seed in range(60):
        looks = correlations(pit_scores(rng.random(200)), groups={"shop": np.arange(200) // 4}, seed=seed)
        alarms += any(look.is_found for look in looks)
    assert alarms <= 3
    hourly = pit_scores(ndtr(autoregressive(400, 0.5, 0)))
    mixed = rng.permutation(400)
    (look,) = correlations(hourly[mixed], time=mixed)
    assert look.is_found
    assert look.value == pytest.approx(0.5, abs=0.15)
    assert look.along == "time"
    shop = np.repeat(np.arange(100), 4)
    scores = pit_scores(ndtr(np.sqrt(0.5) * (rng.standard_normal(100)[shop] + rng.standard_normal(400))))
    looks = correlations(scores[mixed], groups={"shop": shop[mixed], "id": np.arange(400)})
    assert [look.along for look in looks] == ["row order", "shop"]
    assert [look.is_found for look in looks] == [False, True]
    assert looks[1].along == "shop"


def test_targets_that_are_rounded_coarsely_do_not_follow_their_slow_inputs() -> None:
    """At two spreads, rows in the order of a slow input were called correlated in every split."""
    rng, mean, found = np.random.default_rng(4), 3.0 * np.sin(np.linspace(0.0, 12.0, 500)), 0
    of_two = MultivariateNormal(np.stack([mean, mean], axis=1), np.ones((500, 2)))
    for seed in range(20):
        y = 2.0 * np.round((mean[:, None] + rng.standard_normal((500, 2))) / 2.0)
        for targets, law in ((y[:, 0], Normal(mean, 1.0)), (y, of_two)):
            found += correlations(dependence_scores(targets, law), seed=seed)[0].is_found
    assert found <= 2


def test_a_few_outliers_together_make_no_rows_correlated_and_rows_that_are_stay_so() -> None:
    """Six of 200 rows at the end of a file, 8 spreads off: .70 of splits were "correlated"."""
    found, group, end = [0, 0, 0], np.arange(200) // 4, np.arange(200) >= 194
    for seed in range(20):
        z = np.random.default_rng(seed).standard_normal(200)
        in_one_group = np.random.default_rng(seed).permutation(50)[group] == 0
        for k, values in enumerate((z + 8.0 * end, z + 8.0 * in_one_group, autoregressive(200, 0.4, seed) + 8.0 * end)):
            looks = correlations(pit_scores(ndtr(values)), groups={"shop": group}, seed=seed)
            found[k] += any(look.is_found for look in looks)
    assert max(found[:2]) <= 3
    assert found[2] == 20


def test_effective_rows_of_equal_weights_are_all() -> None:
    assert effective_rows(np.full(7, 3.0)) == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: blocks_of_groups(np.repeat([1, 2], 10), 20), "groups: 2 groups among 20 rows.*at least 10"),
        (lambda: blocks_of_groups(np.repeat([1], 20), 20), "groups: all 20 rows are one group; .*at least 10"),
        (lambda: blocks_of_groups(np.arange(5), 20), "expected one value for each of the 20 rows"),
        (lambda: blocks_of_groups(np.r_[np.arange(19.0), np.nan], 20), "groups: row 19 has no value"),
        (lambda: blocks_of_time(np.zeros(50), np.ones((50, 4))), "time: all 50 rows are one run of rows that depend"),
        (lambda: require_weights([1.0, -1.0], 2), "weights: row 1 is -1"),
        (lambda: require_weights([1.0, np.nan], 2), "weights: row 1 is nan"),
        (lambda: require_weights([0.0, 0.0], 2), "all 2 are 0"),
        (lambda: require_weights([1.0], 2), "expected one weight for each of the 2 rows"),
    ],
)
def test_what_says_nothing_of_blocks_or_weights_is_refused(call, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()


def test_an_interval_of_few_skewed_groups_holds_the_mean_and_one_of_many_is_students() -> None:
    rng = np.random.default_rng(0)
    covered = student = 0
    for groups in rng.chisquare(1.0, (600, 10)):
        found, off = SumOfBlocks.of((groups - groups.mean()) / 10), groups.mean() - 1.0
        low, high = found.interval(groups.mean())
        covered += low <= 1.0 <= high
        student += abs(off) <= t_quantile(10) * found.error
        assert (found.p_value(off) <= 0.05) == (not low <= 1.0 <= high)
    assert student < 535 < 546 < covered < 588
    many = SumOfBlocks.of(rng.chisquare(1.0, 100_000) - 1.0)
    assert many.interval(0.0)[1] == pytest.approx(t_quantile(None) * many.error, rel=0.01)


def test_runs_of_counts_are_as_long_as_those_of_what_lies_behind_their_noise() -> None:
    hidden = autoregressive(4_000, 0.9, 0)
    noisy = hidden + np.random.default_rng(1).standard_normal(4_000)
    length = run_length(noisy)
    assert 0.8 < length / run_length(hidden) < 1.3
    assert block_length(0.45, 4_000) < 0.5 * length
    assert run_length(np.random.default_rng(2).standard_normal(4_000)) < 20


def test_runs_are_whole_seasons_where_these_depend_on_each_other_and_a_fault_of_some_hours_is_none() -> None:
    days = np.column_stack([autoregressive(125, 0.5, hour) for hour in range(24)])  # an hour and that of the next day
    noise = np.random.default_rng(3).standard_normal(3_000)
    hours = np.sqrt(0.5) * days.ravel() + np.sqrt(0.5) * noise
    assert run_length(hours) in (24 * block_length(0.2, 125), 24 * block_length(0.25, 125))
    at_noon = noise + 0.5 * np.sin(np.pi * np.arange(3_000) / 12.0)
    assert run_length(at_noon) < 48
    assert all(run_length(autoregressive(3_000, 0.9, seed)) < 200 for seed in range(10))


def test_groups_that_share_what_happens_at_one_time_are_refused_where_time_is_named_beside_them() -> None:
    shop, day = np.repeat(np.arange(20), 15), np.tile(np.arange(15), 20)
    named = RowDependence.of(300, groups=shop, time=day)
    law = Normal(np.zeros(300), 1.0)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        own = np.concatenate([autoregressive(15, 0.7, int(each)) for each in rng.integers(0, 2**31, 20)])
        own += rng.standard_normal(20)[shop] / 2.0
        assert version_blocks(named, own, law).count == 20
        with pytest.raises(TooFewBlocksError, match="rows of different groups depend on each other near in time"):
            version_blocks(named, own + 0.6 * rng.standard_normal(15)[day], law)


def test_a_few_groups_of_very_unequal_size_know_errors_as_fewer_equal_ones_do() -> None:
    """By as many degrees of freedom as twelve equal groups have, .72 of 100 such intervals held."""
    sizes = np.array([90, 60, 40, 30, 20, 15, 12, 10, 8, 6, 5, 4])
    shop = np.repeat(np.arange(12), sizes)
    rng = np.random.default_rng(1)
    split = prepare(rng.standard_normal((12, 3))[shop], input_kernel=RBF(0.5), groups=shop)
    blocks = blocks_of_groups(shop, 300)
    assert blocks.effective == pytest.approx(np.sum(sizes**2.0) ** 2 / np.sum(sizes**4.0))
    assert blocks_of_groups(np.arange(300) % 12, 300).effective == pytest.approx(12.0)
    found = []
    for _ in range(40):
        y = np.sqrt(0.5) * (rng.standard_normal(12)[shop] + rng.standard_normal(300))
        result = split.conditional_congruence_error(y, Normal(np.full(300, 0.3), 1.0), output_kernel=RBF(0.5))
        found.append((result.mean, *result.interval()))
        reach = t_quantile(blocks.effective) * result.standard_error
        assert result.interval()[1] == pytest.approx(result.mean + reach)
    mean, low, high = np.transpose(found)
    assert np.sum((low <= mean.mean()) & (mean.mean() <= high)) >= 36


def test_a_null_is_enlarged_where_sums_of_blocks_are_skewed() -> None:
    rng = np.random.default_rng(0)
    even, skewed = enlargements(np.column_stack([rng.standard_normal(40), rng.chisquare(1.0, 40)]))
    assert 1.0 < even < 1.02 < skewed < 1.3
    assert enlargement(10) == pytest.approx((10 / 9) ** (1 / 3))
    assert enlargements(np.zeros((10, 1))) == pytest.approx((10 / 9) ** (1 / 3))


def test_sparse_counts_that_fall_together_in_a_few_of_fifty_groups_are_not_called_wrong() -> None:
    """.18 of 400 true versions were: signs of blocks do not make sums as skewed as these."""
    rng, groups = np.random.default_rng(5), np.repeat(np.arange(50), 50)
    split = prepare(np.repeat(rng.standard_normal((50, 3)), 50, axis=0), input_kernel=RBF(0.5), groups=groups)
    law, called = Poisson(np.full(2_500, 0.05)), 0
    for _ in range(60):
        shared = np.repeat(rng.standard_normal(50), 50)
        y = poisson.ppf(ndtr(np.sqrt(0.5) * (shared + rng.standard_normal(2_500))), 0.05)
        called += split.congruence_test(y, law, draws=99).p_value <= 0.05
    assert called <= 6
    skewed, even = np.append(np.zeros(49), 1.0), np.arange(50.0)
    assert enlargement(50, skewed - 0.1) > 1.5 > enlargement(50, even - 30.0) == enlargement(50)
    assert enlargement(50, skewed) == enlargement(50)  # more fall than expected: their sums vary enough
    balanced = skewed - np.mean(skewed)  # to rounding, by which no p-value may jump
    assert enlargement(50, balanced - 1e-15) == enlargement(50, balanced + 1e-15) == enlargement(50)
    for mean, sparse in ((0.05, True), (3.0, False)):
        counts = rng.poisson(mean, 2_500).astype(float)
        found = version_blocks(RowDependence(groups), counts, Poisson(np.full(2_500, mean)))
        assert found.sparse == sparse


def test_a_calibration_error_of_ten_groups_has_an_interval_that_holds_it() -> None:
    """.89 of intervals did: signs of deviations that are small by chance were taken as known."""
    levels, groups, held = np.linspace(0.02, 0.98, 20), np.arange(200) // 20, 0
    centers = {f"level {k}": float(level) for k, level in enumerate(levels)}
    truth = np.mean(np.abs(ndtr(ndtri(levels) + 0.3) - levels))
    blocks = blocks_of_groups(groups, 200)
    for seed in range(300):
        rng = np.random.default_rng(seed)
        pit = ndtr(np.sqrt(0.5) * (np.repeat(rng.standard_normal(10), 20) + rng.standard_normal(200)) - 0.3)
        statistics = ScoreStatistics.of({name: pit <= level for name, level in centers.items()}, keys=groups)
        found = statistics.mean_absolute_deviation(centers, blocks=blocks, resamples=200)
        held += found.low <= truth <= found.high
    assert 0.93 <= held / 300 <= 0.99


def test_an_effect_that_is_near_zero_by_chance_knows_how_far_it_may_be() -> None:
    """Its blocks contribute nothing to first order, and what they say of each other is in their own noise."""
    x, biased = np.random.default_rng(3).standard_normal((500, 3)), Normal(np.full(500, -0.3), 1.0)
    prepared = prepare_calibration(x, settings=CalibrationSettings(draws=99, directions=30, own_directions=5))
    twenty = RowDependence.of(500, groups=np.arange(500) // 25)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        shared = rng.standard_normal(20)
        y = np.sqrt(0.5) * (np.repeat(shared / np.std(shared, ddof=1), 25) + rng.standard_normal(500))
        # Two standard errors lower than expected: the bias of .3, an effect of .085, is not seen.
        effect = prepared.test_version(y - y.mean() - 0.3, biased, dependence=twenty).effects["bias"]
        assert effect.estimate < 0.02
        assert effect.low == 0.0
        assert effect.high > 0.085


def test_blocks_are_a_partition() -> None:
    blocks = DependentBlocks(np.array([0, 1, 0]), 2, "groups")
    np.testing.assert_array_equal(blocks.sums(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])), [[6.0, 8.0], [3.0, 4.0]])


def test_products_are_summed_within_blocks_and_neighbouring_blocks_are_joined() -> None:
    rng, labels = np.random.default_rng(0), np.array([4, 0, 2, 2, 1, 3, 0, 4, 4])
    blocks, vectors, values = DependentBlocks(labels, 5, "groups"), rng.random((9, 3)), rng.random((9, 2))
    total = np.zeros((5, 3, 2))
    for rows in (slice(0, 4), slice(4, 9)):
        blocks.at(rows).add_products(total, vectors[rows], values[rows])
    expected = [np.einsum("nk,nr->kr", vectors[labels == b], values[labels == b]) for b in range(5)]
    np.testing.assert_allclose(total, expected)
    joined = blocks.joined(2)
    assert joined.count == 2
    assert np.array_equal(joined.labels, [1, 0, 0, 0, 0, 1, 0, 1, 1])
    assert blocks.joined(5) is blocks


def test_of_many_blocks_neighbouring_ones_are_taken_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "MOST_BLOCKS", 40)
    x, y = slow_inputs(240), autoregressive(240, 0.0, 3)
    pairs, sixes = (RowDependence.of(240, groups=np.arange(240) // size) for size in (2, 6))
    prepared = prepare_calibration(x, settings=CalibrationSettings(draws=49, directions=20, own_directions=5))
    law = Normal(np.zeros(240), 1.0)
    test = prepared.test_version(y, law, dependence=pairs)
    assert (test.null, test.blocks) == ("blocks", 40)
    assert test.p_value == prepared.test_version(y, law, dependence=sixes).p_value


def test_a_true_law_on_a_split_of_hours_keeps_its_level_band_and_difference() -> None:
    x, time = slow_inputs(300), np.arange(300)
    by_blocks, independent = (prepare(x, input_kernel=RBF(0.5), time=t) for t in (time, None))
    law, up, down = Normal(np.zeros(300), 1.0), Normal(np.full(300, 0.2), 1.0), Normal(np.full(300, -0.2), 1.0)
    found, alone, inside, differ = 0, 0, 0, 0
    for seed in range(12):
        y = autoregressive(300, 0.5, seed)
        result = by_blocks.evaluate(y, {"": law}, draws=99)[""]
        found += result.test.p_value <= 0.05
        alone += independent.congruence_test(y, law, draws=99).p_value <= 0.05
        inside += result.band.low <= result.mean <= result.band.high
        differ += by_blocks.compare(y, up, down).p_value <= 0.05
    assert found <= 2 < alone
    assert inside >= 9
    assert differ <= 2
    assert result.p_value_kind == f"asymptotic in {result.test.blocks} blocks"
    wrong = by_blocks.evaluate(autoregressive(300, 0.5, 0) + 1.0, {"": law}, draws=99)[""]
    assert wrong.p_value == 0.01
    assert wrong.mean > 2 * wrong.band.high


def test_a_split_of_groups_of_single_rows_is_a_split_of_independent_rows() -> None:
    x, y = slow_inputs(200), autoregressive(200, 0.0, 1)
    law, other = Normal(np.zeros(200), 1.0), Normal(np.full(200, 0.2), 1.0)
    plain, single = (prepare(x, input_kernel=RBF(0.5), groups=groups) for groups in (None, np.arange(200)))
    one, two = (split.evaluate(y, {"": law}, draws=49)[""] for split in (plain, single))
    np.testing.assert_array_equal(two.test.null_statistics, one.test.null_statistics)
    assert (two.interval(), two.band, two.p_value_kind) == (one.interval(), one.band, "exact")
    assert single.compare(y, law, other) == plain.compare(y, law, other)
    assert calibration_test(y, law, groups=np.arange(200), replicates=99) == calibration_test(y, law, replicates=99)


@pytest.mark.parametrize(
    ("n", "share", "splits", "refusals", "most"),
    [(400, 0.6, 60, range(41, 61), 5), (2_000, 0.3, 200, range(11), 16)],
    ids=["few runs of a correlation that lasts are refused", "noise hides nothing of how long it lasts"],
)
def test_noise_beside_a_correlation(n: int, share: float, splits: int, refusals: range, most: int) -> None:
    """A share of the variance is an autoregression of .9: runs by lag 1 alone rejected .09 to .18 of true means."""
    rejected = refused = 0
    for seed in range(splits):
        noise = np.random.default_rng([seed, 1]).standard_normal(n)
        scores = pit_scores(ndtr(np.sqrt(share) * autoregressive(n, 0.9, seed) + np.sqrt(1.0 - share) * noise))
        try:
            blocks = blocks_of_time(np.arange(n), scores)
        except TooFewBlocksError as error:
            assert f"runs of rows that do not depend on each other among {n} rows" in str(error)  # noqa: PT017
            refused += 1
            continue
        found = SumOfBlocks.of(blocks.sums(scores[:, 0] - scores[:, 0].mean()) / n)
        rejected += found.p_value(float(scores[:, 0].mean())) <= 0.05
    assert refused in refusals
    assert rejected <= most


def test_a_fault_that_follows_a_slow_input_is_no_correlation() -> None:
    """One spread for all, where it is exp(sin) of time: runs of hundreds of rows would not find it."""
    at = np.exp(0.7 * np.sin(2.0 * np.pi * np.arange(500) / 500))
    lengths = [
        run_length(column)
        for seed in range(20)
        for column in pit_scores(ndtr(at * np.random.default_rng(seed).standard_normal(500))).T
    ]
    assert np.mean(np.array(lengths) > 20) < 0.1


def test_point_estimates_of_a_split_do_not_change() -> None:
    x, y, law = slow_inputs(200), autoregressive(200, 0.6, 1), Normal(np.zeros(200), 1.0)
    plain, grouped = (prepare(x, input_kernel=RBF(0.5), groups=groups) for groups in (None, np.arange(200) // 4))
    one, two = (split.evaluate(y, {"": law}, draws=49)[""] for split in (plain, grouped))
    np.testing.assert_array_equal(two.values, one.values)
    assert two.standard_error > one.standard_error
    assert two.band.high > one.band.high


def test_the_kernel_calibration_error_is_tested_by_groups() -> None:
    rng, groups = np.random.default_rng(0), np.repeat(np.arange(40), 5)
    law = Normal(np.repeat(rng.standard_normal(40), 5), 1.0)
    alone = by_group = 0
    for _ in range(20):
        y = law.loc + np.sqrt(0.5) * (np.repeat(rng.standard_normal(40), 5) + rng.standard_normal(200))
        alone += calibration_test(y, law, replicates=99).p_value <= 0.05
        test = calibration_test(y, law, replicates=99, groups=groups)
        by_group += test.p_value <= 0.05
    assert by_group <= 3 < alone
    assert test.p_value_kind == "asymptotic in 40 blocks"
    with pytest.raises(InvalidInputError, match="'block' takes rows as independent"):
        calibration_test(y, law, method="block", groups=groups)


def test_means_and_their_differences_are_resampled_by_whole_blocks() -> None:
    rng, groups = np.random.default_rng(2), np.repeat(np.arange(25), 20)
    blocks = blocks_of_groups(groups, 500)
    covered = alone = 0
    for _ in range(60):
        values = np.repeat(rng.standard_normal(25), 20) + 0.3 * rng.standard_normal(500)
        by_blocks = ScoreStatistics.of({"a": values}, keys=blocks.labels).estimates()["a"]
        covered += by_blocks.low <= 0.0 <= by_blocks.high
        plain = ScoreStatistics.of({"a": values}).estimates()["a"]
        alone += plain.low <= 0.0 <= plain.high
    assert alone <= 40 < 53 <= covered
    one, other = (PairedResampling(500, blocks=b).compare(values, np.zeros(500), mean_of) for b in (None, blocks))
    assert other.difference == pytest.approx(one.difference)
    assert other.high - other.low > 2.0 * (one.high - one.low)


def test_a_place_is_read_by_blocks_and_not_at_all_from_fewer_than_ten() -> None:
    rng = np.random.default_rng(0)
    shop = np.repeat(np.arange(60), 10)
    pit = ndtr(np.repeat(rng.standard_normal(60), 10))
    blocks = blocks_of_groups(shop, 600)
    alone, by_blocks = (group_reading(pit, shop < 30, blocks=b) for b in (None, blocks))
    assert by_blocks.shift == alone.shift
    assert by_blocks.score_errors[0] > 2.0 * alone.score_errors[0]
    assert group_reading(pit, shop < 5, blocks=blocks).p_value == 1.0


def test_counts_so_sparse_that_few_groups_hold_any_are_refused() -> None:
    """Of such splits a quarter were called wrong at 5 %: a group without a count says next to nothing."""
    rng, groups = np.random.default_rng(0), np.arange(500) // 50
    law, y = Poisson(np.full(500, 0.02)), np.zeros(500)
    y[rng.choice(350, 8, replace=False)] = 1.0
    held = len(np.unique(groups[y > 0]))
    split = prepare(rng.standard_normal((500, 3)), input_kernel=RBF(0.5), groups=groups)
    said = f"groups: {held} of 10 groups hold a target other than 0; .* need at least 10"
    for test in (split.congruence_test, split.calibration_test):
        with pytest.raises(TooFewBlocksError, match=said):
            test(y, law)
    y[::50] = 1.0  # one in each group
    assert 0.0 < split.congruence_test(y, law, draws=99).p_value <= 1.0
    assert 0.0 < split.congruence_test(y, Normal(np.zeros(500), 1.0), draws=99).p_value <= 1.0
