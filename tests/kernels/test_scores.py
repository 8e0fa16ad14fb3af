"""Scores against scoringrules and their definitions, and the policies on what cannot be scored."""

import numpy as np
import pytest
import scipy.special
import scipy.stats
import scoringrules as sr

from congruence.kernels import distributions as families
from congruence.kernels import scores
from congruence.kernels.errors import InvalidInputError

RNG = np.random.default_rng(2)
N = 40
Y = RNG.uniform(0.05, 0.95, N)


def test_crps_of_counts_of_wide_windows_is_the_sum_over_counts() -> None:
    """Of families without a closed form; one node between quantiles far apart was off by 3 %."""
    plain = families.NegativeBinomial(np.full(4, 50_000.0), 0.3)
    y = np.array([100.0, 10_000.0, 50_000.0, 300_000.0])
    alone = families.Mixture(np.ones((4, 1)), (plain,))
    np.testing.assert_allclose(alone.crps(y), plain.crps(y), rtol=1e-5)


def test_double_poisson_has_the_values_of_the_literature() -> None:
    """(10, 1) is Poisson with P(10) = .12511003572; (10, 2) has Z = .9956139101, mean 10.00232, variance 4.998697."""
    assert np.exp(families.DoublePoisson(10.0, 1.0).log_prob(10.0))[0] == pytest.approx(0.12511003572, abs=1e-11)
    law = families.DoublePoisson(10.0, 2.0)
    assert np.exp(law._law[2][0]) == pytest.approx(0.9956139101, abs=1e-10)
    assert law.mean()[0] == pytest.approx(10.00232, abs=5e-6)
    assert law.std()[0] ** 2 == pytest.approx(4.998697, abs=5e-7)


@pytest.mark.parametrize("rate", [50_000.0, 2.5e6])
def test_large_rates_are_cut_by_mass_not_by_a_constant(rate: float) -> None:
    y = np.array([rate - 300.0, rate, rate + 500.0])
    for law in (families.Poisson(np.full(3, rate)), families.DoublePoisson(np.full(3, rate), 1.0)):
        np.testing.assert_allclose(law.cdf(y), scipy.stats.poisson.cdf(y, rate), atol=1e-9)
        normal = families.Normal(np.full(3, rate), np.sqrt(rate))
        np.testing.assert_allclose(law.crps(y), normal.crps(y), rtol=1e-3)
        np.testing.assert_allclose(law.mean(), rate, rtol=1e-9)
        t = np.array([0.0, 1e-4, 1e-3, 0.01, 0.5, 3.0])
        poisson = families.Poisson(np.full(3, rate)).characteristic_function(t)
        np.testing.assert_allclose(law.characteristic_function(t), poisson, atol=1e-9)


def test_interval_pinball_and_coverage_follow_their_definitions() -> None:
    law = families.Normal(np.zeros(4000), 1.0)
    y = np.random.default_rng(1).normal(size=4000)
    lower, upper = scores.central_interval(law, 0.8)
    np.testing.assert_allclose(scores.interval_score(y, law, 0.8), sr.interval_score(y, lower, upper, 0.2))
    np.testing.assert_allclose(scores.pinball_score(y, law, 0.3), sr.quantile_score(y, law.quantile(0.3), 0.3))
    assert scores.covered(law, y, 0.8).mean() == pytest.approx(0.8, abs=0.03)
    np.testing.assert_allclose(scores.width(law, 0.8), 2 * 1.2815515655)
    assert scores.sharpness(law) == pytest.approx(1.0)
    with pytest.raises(InvalidInputError, match=r"level: is 1\.5"):
        scores.interval_score(y, law, 1.5)


def test_a_target_in_a_bin_without_mass_has_a_coverage() -> None:
    """It has one place among the levels, inside the interval or not."""
    law = families.Histogram([0.0, 1.0, 2.0, 3.0, 4.0], np.tile([0.0, 0.5, 0.0, 0.5], (3, 1)))
    y = np.array([0.5, 2.5, 9.0])  # at the levels 0 and .5, and in the outermost bin, which is open
    assert scores.covered(law, y, 0.8).tolist() == pytest.approx([0.0, 1.0, 0.8])


def test_an_infinite_log_score_is_refused_or_kept_never_nan() -> None:
    law, y = families.Uniform(np.zeros(3), 1.0), np.array([0.5, 2.0, 0.1])
    with pytest.raises(InvalidInputError, match=r"1 of 3 rows .* row 1 with y = 2.0"):
        scores.negative_log_likelihood(y, law)
    np.testing.assert_array_equal(scores.negative_log_likelihood(y, law, infinite="keep"), [0.0, np.inf, 0.0])
    assert np.isinf(scores.point_scores(law, y)["nll"][1])


def test_laws_without_a_density_have_no_log_score() -> None:
    assert "nll" not in scores.point_scores(families.Deterministic(Y), Y)
    assert "nll" not in scores.point_scores(families.Samples(np.ones((N, 3))), Y)
    assert "nll" in scores.point_scores(families.Samples(RNG.normal(size=(N, 30))), Y)


def test_log_score_of_many_samples_nears_that_of_their_law() -> None:
    draws = families.Samples(np.random.default_rng(0).normal(size=(1, 20_000)))
    y = np.array([[0.0, 1.0, -1.5]])
    np.testing.assert_allclose(draws.log_prob(y), families.Normal(0.0, 1.0).log_prob(y), atol=0.05)


@pytest.mark.parametrize("size", [5, 10, 20, 50])
def test_log_score_of_a_few_draws_is_that_of_their_law_and_no_row_decides_it(size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.normal(size=(6000, size + 1))
    found = scores.point_scores(families.Samples(values[:, 1:]), values[:, 0])["nll"]
    assert found.mean() == pytest.approx(1.4189, abs=0.04)
    assert np.abs(found).max() < 0.002 * np.abs(found).sum()
    heavy = rng.standard_t(3, size=(6000, size + 1))
    found = scores.point_scores(families.Samples(heavy[:, 1:]), heavy[:, 0])["nll"]
    assert found.mean() == pytest.approx(scipy.stats.t(3).entropy(), abs=0.15)
    assert np.abs(found).max() < 0.003 * np.abs(found).sum()
    assert "nll" not in scores.point_scores(families.Samples(values[:, :4]), values[:, 0])


@pytest.mark.parametrize(("step", "unit"), [(0.001, 1.0), (0.01, 1.0), (0.1, 1.0), (10.0, 100.0), (None, 1.0)])
def test_rounded_targets_are_scored_as_they_were_before(step: float | None, unit: float) -> None:
    """y ~ N(2 x, 1) in any unit: the skill of NLL over the law of all targets is log(5) / 2."""
    rng = np.random.default_rng(3)
    center = 2.0 * rng.normal(size=3000) * unit
    exact = center + rng.normal(size=3000) * unit
    y = exact if step is None else np.round(exact / step) * step
    found = scores.resolution(y)
    assert found == step
    law = families.Normal(center, unit)
    nll = scores.negative_log_likelihood(y, law, step=found)
    np.testing.assert_allclose(nll, scores.negative_log_likelihood(exact, law), atol=0.35)
    assert nll.mean() == pytest.approx(scores.negative_log_likelihood(exact, law).mean(), abs=5e-3)
    assert scores.marginal_log_score(y, found) - nll.mean() == pytest.approx(np.log(5.0) / 2.0, abs=0.04)


def test_cells_keep_their_digits_in_both_tails_and_wherever_a_law_is_narrow() -> None:
    y = np.array([-30.0, -10.0, 0.0, 10.0, 30.0])
    cells = scores.negative_log_likelihood(y, families.Normal(np.zeros(5), 1.0), step=0.1)
    near, far = (np.abs(y) - 0.05, np.abs(y) + 0.05)
    expected = np.log(0.1) - np.log(2.0 * scipy.stats.norm.cdf(0.05) - 1.0)
    tails = scipy.stats.norm.logsf(near) + np.log1p(-np.exp(scipy.stats.norm.logsf(far) - scipy.stats.norm.logsf(near)))
    np.testing.assert_allclose(cells, np.where(y == 0.0, expected, np.log(0.1) - tails), rtol=1e-9)
    point = scores.negative_log_likelihood([0.02, 0.98], families.Normal([0.0, 0.0], 1e-6), step=0.1, infinite="keep")
    assert point[0] == pytest.approx(np.log(0.1))  # a law narrower than the step cannot gain by it
    assert point[1] > 1e9
    counts = families.Poisson(np.array([3.0, 80.0]))
    of_counts = scores.negative_log_likelihood([3.0, 80.0], counts, step=1.0)
    np.testing.assert_allclose(of_counts, -counts.log_prob([3.0, 80.0]))
    tens = scores.negative_log_likelihood([0.0, 300.0], counts, step=10.0)
    assert tens[0] == pytest.approx(np.log(10.0) - scipy.stats.poisson(3.0).logcdf(5))
    masses = scipy.stats.poisson(80.0).logpmf(np.arange(296, 306))
    assert tens[1] == pytest.approx(np.log(10.0) - scipy.special.logsumexp(masses))


def test_a_resolution_is_found_where_targets_are_rounded_and_nowhere_else() -> None:
    rng = np.random.default_rng(5)
    y = rng.normal(size=4000)
    counts = rng.poisson(3.0, 4000)
    some = np.where(rng.random(4000) < 0.005, y, np.round(y, 1))
    zeros = np.where(rng.random(4000) < 0.5, 0.0, y)
    found = [scores.resolution(each) for each in (y, y.astype(np.float32), zeros, np.round(y[:30], 1))]
    assert found == [None] * 4
    assert [scores.resolution(each) for each in (counts, some, np.round(y * 8) / 8)] == [1.0, 0.1, 0.125]
    assert scores.resolution((counts - 3.0) / 1.7) == pytest.approx(1.0 / 1.7, rel=1e-5)  # standardised whole numbers
    rare = np.where(rng.random(4000) < 0.99, 0.0, rng.poisson(2.0, 4000))
    assert scores.resolution(rare) in (None, 1.0)  # that most are 0 says nothing of steps
    large = np.where(rng.random(4000) < 0.04, rng.poisson(1e7, 4000), counts)
    assert scores.resolution(large) in (None, 1.0)  # not 10^6, beside which 0 to 9 would be one value
    mixed = scores.marginal_log_score(zeros)
    assert mixed == pytest.approx(np.log(2.0) + 0.5 * 1.4189, abs=0.05)


def test_targets_must_match_and_be_finite() -> None:
    law = families.Normal(np.zeros(3), 1.0)
    with pytest.raises(InvalidInputError, match="2 rows"):
        scores.crps([1.0, 2.0], law)
    with pytest.raises(InvalidInputError, match="row 1"):
        scores.crps([1.0, np.nan, 2.0], law)


def test_vector_targets_have_energy_scores_and_joint_densities() -> None:
    loc, scale, y = RNG.normal(size=(5, 2)), RNG.uniform(0.5, 1.5, (5, 2)), RNG.normal(size=(5, 2))
    law = families.MultivariateNormal(loc, scale)
    parts = [families.Normal(loc[:, j], scale[:, j]) for j in range(2)]
    np.testing.assert_allclose(law.log_prob(y), sum(part.log_prob(y[:, j]) for j, part in enumerate(parts)))
    draws = families.Samples(law.sample(400, seed=1))
    np.testing.assert_allclose(law.crps(y), draws.crps(y), rtol=0.1)
    point = families.Deterministic(loc)
    np.testing.assert_allclose(point.crps(y), np.linalg.norm(loc - y, axis=1))
    np.testing.assert_allclose(scores.squared_error(y, law), np.sum((loc - y) ** 2, axis=1))
    assert set(scores.point_scores(law, y)) >= {"nll", "crps", "squared_error"}
    for refused in (law.quantile, law.characteristic_function, draws.cdf, draws.quantile, point.cdf):
        with pytest.raises(InvalidInputError, match="scalar targets"):
            refused(np.array([0.5]))
