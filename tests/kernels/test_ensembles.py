"""Samples are draws of a law, not the law: the truth must pass for the truth with five of them."""

import numpy as np
import pytest
import scipy.stats
import scoringrules as sr
from scipy.special import ndtr

from congruence.kernels import RBF, scores
from congruence.kernels import distributions as families
from congruence.kernels.conditional_calibration.faults import rank_scores
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.conditional_calibration.reading import group_reading
from congruence.kernels.engine.null import exchangeable_targets
from congruence.kernels.marginal_calibration import expected_calibration_error
from congruence.kernels.pit import chi_square, kolmogorov_smirnov, mean_scores, pit_scores, pit_values

N = 6000
SIZES = pytest.mark.parametrize("size", [1, 2, 5, 10, 50])


def perfect_ensemble(size: int, seed: int = 0) -> tuple[families.Samples, np.ndarray]:
    """Targets and draws of the same normal laws."""
    rng = np.random.default_rng([seed, size])
    center, spread = rng.normal(size=(N, 1)), rng.uniform(0.5, 2.0, (N, 1))
    values = center + spread * rng.normal(size=(N, size + 1))
    return families.Samples(values[:, 1:]), values[:, 0]


@SIZES
def test_a_perfect_ensemble_has_uniform_pit_values(size: int) -> None:
    ensemble, y = perfect_ensemble(size)
    pit = pit_values(y, ensemble)
    assert kolmogorov_smirnov(pit).p_value > 1e-3
    assert chi_square(pit).p_value > 1e-3
    assert expected_calibration_error(y, ensemble) < 0.01
    assert expected_calibration_error(y, ensemble, pit="mid") < 0.5 / (size + 1)


def test_ties_are_broken_at_random() -> None:
    rng = np.random.default_rng(3)
    values = rng.poisson(rng.uniform(0, 3, (N, 1)), (N, 6)).astype(float)
    pit = pit_values(values[:, 0], families.Samples(values[:, 1:]))
    assert chi_square(pit).p_value > 1e-3
    lower, upper = families.Samples([[1.0, 2.0, 2.0, 5.0]]).pit_range(2.0)
    np.testing.assert_allclose((lower[0], upper[0]), (1 / 5, 4 / 5))


@pytest.mark.parametrize("size", [5, 10, 50])
def test_wrong_ensembles_are_found(size: int) -> None:
    ensemble, y = perfect_ensemble(size)
    narrow = families.Samples(ensemble.mean()[:, None] + 0.5 * (ensemble.values - ensemble.mean()[:, None]))
    for wrong in (families.Samples(ensemble.values + 0.3), narrow):
        assert kolmogorov_smirnov(pit_values(y, wrong)).p_value < 1e-6
        assert expected_calibration_error(y, wrong) > 0.04


@SIZES
def test_crps_is_the_fair_one(size: int) -> None:
    rng = np.random.default_rng(2)
    values, y = rng.normal(size=(N, size)), rng.normal(size=N)
    result = scores.crps(y, families.Samples(values))
    expected = np.abs(values[:, 0] - y) if size == 1 else sr.crps_ensemble(y, values, estimator="fair")
    np.testing.assert_allclose(result, expected, atol=1e-13)
    if size > 1:  # one draw knows nothing of its spread
        exact = families.Normal(np.zeros(N), 1.0).crps(y)
        assert abs(np.mean(result - exact)) < 4 * np.std(result - exact) / np.sqrt(N)


@pytest.mark.parametrize("size", [2, 5, 40])
def test_energy_score_is_the_fair_one(size: int) -> None:
    rng = np.random.default_rng(4)
    values, y = rng.normal(size=(50, size, 3)), rng.normal(size=(50, 3))
    np.testing.assert_allclose(
        families.Samples(values).crps(y), sr.es_ensemble(y, values, estimator="fair"), atol=1e-12
    )
    one = families.Samples(values[:, :1])
    np.testing.assert_allclose(one.crps(y), np.linalg.norm(values[:, 0] - y, axis=1))


@SIZES
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_coverage_of_a_perfect_ensemble_is_its_level(size: int, level: float) -> None:
    ensemble, y = perfect_ensemble(size)
    assert scores.covered(ensemble, y, level).mean() == pytest.approx(level, abs=0.02)


def test_order_statistics_stand_at_their_expected_levels() -> None:
    ensemble, y = perfect_ensemble(9)
    lower, upper = scores.central_interval(ensemble, 0.8)  # the outermost of nine
    np.testing.assert_array_equal(lower, ensemble.values.min(axis=1))
    np.testing.assert_array_equal(upper, ensemble.values.max(axis=1))
    assert np.mean((lower <= y) & (y <= upper)) == pytest.approx(0.8, abs=0.02)
    levels = np.array([0.05, 0.3, 0.5, 0.77])
    expected = np.quantile(ensemble.values, levels, axis=1, method="weibull").T
    np.testing.assert_allclose(ensemble.predictive_quantile(levels[None, :]), expected, atol=1e-12)
    np.testing.assert_array_equal(ensemble.predictive_quantile(0.5), np.median(ensemble.values, axis=1))


@pytest.mark.parametrize("members", [2, 3, 5, 10, 20])
def test_sharpness_does_not_depend_on_the_number_of_members(members: int) -> None:
    draws = np.random.default_rng(members).normal(0.0, 2.0, (40_000, members))
    assert scores.sharpness(families.Samples(draws)) == pytest.approx(2.0, rel=0.01)
    np.testing.assert_allclose(families.Samples(draws).std(), draws.std(axis=1, ddof=1), rtol=1e-12)
    assert np.all(families.Samples(draws[:, :1]).std() == 0.0)


@pytest.mark.parametrize("members", [3, 5, 20, 100])
def test_shift_and_factor_are_those_of_the_law_that_members_are_drawn_from(members: int) -> None:
    rng = np.random.default_rng(members)
    n, splits = 500, 60
    for shift, factor in ((0.0, 1.5), (0.5, 1.0), (0.0, 0.67), (0.5, 2.0)):
        held, found, spreads = np.zeros(2), [], 0
        for _ in range(splits):
            above = rng.binomial(members, ndtr(shift + factor * rng.standard_normal(n)))
            read = group_reading((above + rng.random(n)) / (members + 1.0), members=members)
            held += [
                each[0] <= true <= each[1]
                for true, each in ((shift, read.shift_interval), (factor, read.factor_interval))
            ]
            found.append((read.shift, read.factor))
            spreads += read.dominant == "spread"
        assert shift > 0.0 or spreads >= 0.95 * splits
        assert np.all(held >= 0.83 * splits)
        np.testing.assert_allclose(np.median(found, axis=0), (shift, factor), atol=0.06)


def test_scores_of_ranks_follow_from_those_of_the_law() -> None:
    u = np.array([0.1, 0.37, 0.8])
    for members in (1, 3, 12):
        chance = scipy.stats.binom.pmf(np.arange(members + 1), members, u[:, None])
        ranks = np.arange(members + 1) / (members + 1.0)
        expected = chance @ mean_scores(ranks, ranks + 1.0 / (members + 1.0))
        np.testing.assert_allclose(pit_scores(u) @ rank_scores(members).T, expected, atol=1e-12)
    assert rank_scores(3)[3, 3] == pytest.approx(0.0, abs=1e-12)


def test_an_evaluation_reads_the_law_behind_members_at_every_row() -> None:
    rng = np.random.default_rng(8)
    n = 1500
    x = rng.standard_normal((n, 1))
    law = families.Samples(rng.standard_normal((n, 5)))
    prepared = prepare_calibration(x, input_kernel=RBF(0.5), settings=CalibrationSettings(draws=99, directions=20))
    reading = prepared.version(2.0 * rng.standard_normal(n), law).reading
    assert 1.75 < np.median(reading.factor) < 2.3
    assert np.mean(reading.names == "spread") > 0.95


def test_the_target_and_every_member_are_drawn_equally_often_where_they_may_be_exchanged() -> None:
    members, y = np.arange(4.0) + 10.0 * np.arange(50)[:, None], 4.0 + 10.0 * np.arange(50)
    drawn = exchangeable_targets(y, families.Samples(members), 2000, np.random.default_rng(0))
    shares = np.bincount((drawn % 10).astype(int).ravel(), minlength=5) / drawn.size
    assert shares == pytest.approx(np.full(5, 0.2), abs=4.0 * np.sqrt(0.16 / drawn.size))
    np.testing.assert_array_equal(drawn // 10, np.arange(50)[:, None] * np.ones(2000))
