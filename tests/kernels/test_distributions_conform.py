"""All families under all properties: what a distribution says of itself is what its cdf says."""

import numpy as np
import pytest
from expectation_rules import by_quantiles, composite, quantile_losses
from family_cases import ATOMS, CONTINUOUS, COUNTS, EXTREME, LOC, MAP, ORDINARY, SCALE, Geometric, Gumbel, N
from scipy.special import ndtri

from congruence.kernels import distributions as families
from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.counts import TAIL, JumpScores
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.base import KNOT_LEVELS
from congruence.kernels.distributions.recalibrated import Recalibrated, RecalibratedCount, recalibrated
from congruence.kernels.distributions.score_map import NormalScoreMap
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import kolmogorov_smirnov, mean_scores, pit_values
from congruence.kernels.rng import stream

DRAWS = 20_000
LEVELS_OF_RULES = np.union1d(np.linspace(0.0025, 0.9975, 399), KNOT_LEVELS)


pytestmark = pytest.mark.conform


def of(cases: dict[str, Distribution]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("law", cases.values(), ids=cases.keys())


every_family = of(ORDINARY)


def test_every_family_is_registered() -> None:
    held = {type(law) for law in ORDINARY.values()}
    exported = {getattr(families, name) for name in families.__all__}
    assert held == exported - {Distribution, families.MultivariateNormal} | {
        Gumbel, Geometric, Recalibrated, RecalibratedCount
    }  # fmt: skip


def points_of(law: Distribution, row: int) -> Array:
    """Where the cdf of a row may jump or bend, and enough points between."""
    one = law[[row]]
    if law.is_discrete:
        return np.arange(0.0, float(one.quantile(1.0 - 1e-14)[0]) + 3.0)
    found = np.concatenate([one.quantile(LEVELS_OF_RULES[None, :])[0], one.knots()[0], one.breaks()[0]])
    return np.unique(found[np.isfinite(found)])


def rules_of(law: Distribution) -> list[tuple[Array, Array]]:
    """Of each row values and weights of E g(Y), for a smooth g."""
    return [by_quantiles(law, row, points_of(law, row)) for row in range(N)]


def targets_of(law: Distribution) -> Array:
    y = law.quantile(np.random.default_rng(5).random((N, 3)))
    return np.hstack([y, y[:, :1] + 0.3 * law.std()[:, None], law.mean()[:, None] - 3.0 * law.std()[:, None]])


def defined_crps(law: Distribution, row: int, y: float) -> float:
    """The integral of (F(t) - 1[y <= t])^2; of quantiles their own losses."""
    if law.quantile_levels is not None:
        stated = law.quantile(law.quantile_levels[None, :])[row]
        return float(quantile_losses(law.quantile_levels, stated, np.array([y]))[0])
    t, weights = composite(np.unique(np.append(points_of(law, row), y)), *np.polynomial.legendre.leggauss(8))
    return float((law[[row]].cdf(t[None, :])[0] - (y <= t)) ** 2 @ weights)


# What the cdf says.


@every_family
def test_cdf_rises_from_0_to_1_and_jumps_only_upwards(law: Distribution) -> None:
    low, high = law.interval(1e-9)
    assert np.all(law.cdf_left(low) <= 1.01e-9)
    assert np.all(law.cdf(high) >= 1.0 - 1.01e-9)
    y = np.linspace(low - 1.0, high + 1.0, 200)[None, :]
    cdf, left = law.cdf(y), law.cdf_left(y)
    assert np.all(np.diff(cdf, axis=1) >= -1e-12)
    assert np.all((left >= 0.0) & (left <= cdf + 1e-15) & (cdf <= 1.0))
    np.testing.assert_allclose(law.cdf(np.array([[-1e100, 1e100]])), [[0.0, 1.0]] * N, atol=1e-14)
    assert law.may_jump or np.array_equal(cdf, left)


@every_family
def test_quantile_is_the_smallest_value_that_reaches_its_level(law: Distribution) -> None:
    levels = np.array([1e-6, 0.01, 0.2, 0.5, 0.83, 0.999])[None, :]
    values = law.quantile(levels)
    assert values.shape == (N, 6)
    assert np.all(np.diff(values, axis=1) >= 0)
    assert np.all(law.cdf(values) >= levels - 1e-9)
    assert np.all(law.cdf_left(values) <= levels + 1e-9)
    np.testing.assert_allclose(law.quantile(0.5), values[:, 3], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(law.quantile(np.tile(levels, (N, 1))), values, rtol=1e-12, atol=1e-12)
    jumps = law.cdf(values) - law.cdf_left(values) > 1e-6  # a level that is a value of the cdf gives the jump there
    np.testing.assert_allclose(law.quantile(law.cdf(values))[jumps], values[jumps], rtol=1e-14)


@of(CONTINUOUS)
def test_density_integrates_to_the_cdf(law: Distribution) -> None:
    for row in range(N):
        edges = points_of(law, row)
        edges = edges[(edges >= law.quantile(0.01)[row]) & (edges <= law.quantile(0.99)[row])]
        t, weights = composite(edges, *np.polynomial.legendre.leggauss(12))
        masses = (np.exp(law[[row]].log_prob(t[None, :])[0]) * weights).reshape(-1, 12).sum(axis=1)
        np.testing.assert_allclose(masses, np.diff(law[[row]].cdf(edges[None, :])[0]), atol=1e-7)


@of(COUNTS)
def test_mass_sums_to_the_cdf_and_to_one(law: Distribution) -> None:
    support = np.arange(0, law.quantile(1 - 1e-15).max() + 2)[None, :]
    mass = np.exp(law.log_prob(support))
    np.testing.assert_allclose(mass.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(np.cumsum(mass, axis=1), law.cdf(support), atol=1e-12)
    np.testing.assert_allclose(law.cdf(support - 1.0), law.cdf_left(support), atol=1e-15)
    np.testing.assert_allclose(law.counts.survival(support), 1.0 - law.cdf(support), atol=1e-14)
    np.testing.assert_allclose(law.counts.cumulative(support[0]), law.cdf(support), atol=1e-12)
    for y in (1.5, -1.0):
        assert np.all(law.log_prob(y) == -np.inf)


TABLED: dict[str, Distribution] = {
    **COUNTS,
    **{f"recalibrated {name}": recalibrated(law, MAP) for name, law in COUNTS.items()},
    "NegativeBinomial recalibrated twice": recalibrated(
        recalibrated(COUNTS["NegativeBinomial"], MAP), NormalScoreMap.affine(np.full(N, -0.1), np.full(N, 0.9))
    ),
    "large Poisson": families.Poisson([100.0, 105.0, 130.0, 160.0]),
    "Poisson without digits at 0": families.Poisson([500.0, 1200.0, 3000.0, 9000.0]),
}


@pytest.mark.parametrize("name", TABLED)
def test_tables_of_counts_hold_their_masses_and_levels(name: str) -> None:
    """With the digits of small masses, which sums of double Poisson masses do not keep."""
    law, counts = TABLED[name], TABLED[name].counts
    digits = {"rtol": 1e-7 if "Zero" in name or "Hurdle" in name else 1e-9}
    digits["atol"] = 1e-15 if "Double" in name else 1e-300
    for support in (np.arange(60.0), np.arange(35.0, 90.0), np.array([4.0])):
        each = np.broadcast_to(support, (N, len(support)))
        np.testing.assert_allclose(counts.masses(support), np.exp(law.log_prob(each)), **digits)
        at_most, beyond = counts.levels(support)
        np.testing.assert_allclose(at_most, law.cdf(each), **digits)
        np.testing.assert_allclose(beyond, counts.survival(each), **digits)
    table = np.random.default_rng(0).normal(size=(900, 4))
    for first in (0.0, 3.0):
        masses = np.exp(law.log_prob(first + np.arange(900.0)[None, :]))
        for part in (table, table[:2]):
            expected = masses[:, : len(part)] @ part
            np.testing.assert_allclose(counts.sum_over(first, part), expected, rtol=1e-11, atol=1e-12)


@of({name: law for name, law in ATOMS.items() if "CensoredNormal" in name})
def test_mass_at_a_bound_is_the_jump_there(law: families.CensoredNormal | Recalibrated) -> None:
    base = law.base if isinstance(law, Recalibrated) else law
    for bound in (base.lower, np.where(np.isfinite(base.upper), base.upper, base.lower)):
        np.testing.assert_allclose(np.exp(law.log_prob(bound)), law.cdf(bound) - law.cdf_left(bound), rtol=1e-12)


# What follows from it.


@every_family
def test_mean_spread_and_moments_are_expectations(law: Distribution) -> None:
    for row, (values, weights) in enumerate(rules_of(law)):
        mean = weights @ values
        np.testing.assert_allclose(law.mean()[row], mean, rtol=1e-7, atol=1e-9)
        variance = weights @ (values - mean) ** 2
        if law.draws is not None:  # which have the spread of the law behind them
            variance *= law.draws.shape[1] / (law.draws.shape[1] - 1.0)
        np.testing.assert_allclose(law.std()[row], np.sqrt(variance), rtol=1e-6, atol=1e-7)
        powers = values[:, None] ** np.arange(4)
        np.testing.assert_allclose(law.raw_moments(3)[row], weights @ powers, rtol=1e-6, atol=1e-8)


@every_family
def test_crps_is_its_definition(law: Distribution) -> None:
    y = targets_of(law)
    found = law.crps(y)
    assert found.shape == y.shape
    if law.draws is not None:  # fair: pairs of two different draws alone count
        apart = np.abs(law.draws[:, :, None] - law.draws[:, None, :]).mean(axis=(1, 2))
        found = found + 0.5 * apart[:, None] / (law.draws.shape[1] - 1.0)
    for row in range(N):
        expected = [defined_crps(law, row, value) for value in y[row]]
        np.testing.assert_allclose(found[row], expected, rtol=1e-6, atol=1e-9)


@every_family
def test_characteristic_function_is_an_expectation(law: Distribution) -> None:
    t = np.array([0.0, 0.3, 1.0, 2.5, 3.1])
    found = law.characteristic_function(t)
    for row, (values, weights) in enumerate(rules_of(law)):
        expected = weights @ np.exp(1j * np.multiply.outer(values, t))
        np.testing.assert_allclose(found[row], expected, atol=1e-8)
    np.testing.assert_allclose(found[:, 0], 1.0, atol=1e-12)
    assert np.all(np.abs(found) <= 1.0 + 1e-12)
    np.testing.assert_allclose(law.characteristic_function(-t), np.conj(found), atol=1e-12)


@pytest.mark.parametrize("family", ["Normal", "Laplace", "Logistic", "Uniform", "StudentT"])
def test_rows_of_one_scale_have_the_characteristic_function_of_rows_whose_scales_differ(family: str) -> None:
    t, loc = np.array([0.0, 0.3, 1.0, 2.5]), np.array([0.0, 1.5, -2.0])
    more = {"df": np.full(3, 4.0)} if family == "StudentT" else {}
    alike, apart = (
        getattr(families, family)(loc=loc, scale=np.array([2.0, 2.0, last]), **more).characteristic_function(t)
        for last in (2.0, 1.0)
    )
    np.testing.assert_allclose(alike[:2], apart[:2], rtol=1e-14)
    assert not np.allclose(alike[2], apart[2])


@every_family
def test_draws_have_the_cdf(law: Distribution) -> None:
    at = law.quantile(np.array([[0.02, 0.2, 0.5, 0.8, 0.98]]))
    by_uniforms = law.sample_by(lambda count, purpose: stream(3, f"draws{purpose}").random((N, count)), DRAWS)
    for draws in (law.sample(DRAWS, seed=3), by_uniforms):
        assert draws.shape == (N, DRAWS)
        for below, compare in ((law.cdf(at), np.less_equal), (law.cdf_left(at), np.less)):
            shares = np.mean(compare(draws[:, None, :], at[:, :, None]), axis=2)
            assert np.all(np.abs(shares - below) <= 5.0 * np.sqrt(below * (1.0 - below) / DRAWS) + 1e-9)
        assert not law.is_discrete or np.all((draws >= 0.0) & (draws == np.floor(draws)))
    np.testing.assert_array_equal(law.sample(3, seed=8), law.sample(3, seed=8))


UNMAPPED = ("Samples", "Deterministic", "Quantiles without tails")
"""Of which the map is another one: of draws, of nothing, of quantiles that are continued."""


@of({name: law for name, law in ORDINARY.items() if name not in UNMAPPED})
def test_a_recalibrated_cdf_is_that_of_the_base_through_the_map(law: Distribution) -> None:
    y = law.quantile(np.array([[0.01, 0.2, 0.6, 0.85, 0.999]]))
    expected, moved = MAP.below(ndtri(law.cdf(y))), recalibrated(law, MAP)
    np.testing.assert_allclose(moved.cdf(y), expected, atol=1e-12)
    np.testing.assert_allclose(moved[1:].cdf(y[1:]), expected[1:], atol=1e-12)


@of({name: law for name, law in ORDINARY.items() if name != "Deterministic"})
def test_a_map_that_changes_nothing_leaves_the_distribution_itself(law: Distribution) -> None:
    assert recalibrated(law, NormalScoreMap.affine(np.zeros(N), np.ones(N))) is law


RARE: dict[str, Distribution] = {
    "rare and frequent Poisson": families.Poisson([0.02, 3.0, 30.0]),
    "rare and frequent NegativeBinomial": families.NegativeBinomial([0.02, 3.0, 90.0], [0.0, 0.4, 0.2]),
    "zeros and a rare Poisson": families.ZeroInflated(families.Poisson([2.0, 5.0, 0.3]), [0.7, 0.1, 0.5]),
}


@of({**ORDINARY, **RARE})
def test_scores_of_jumps_and_cells_have_mean_zero_and_the_stated_variance(law: Distribution) -> None:
    scores = JumpScores.of(np.zeros(len(law)), law)
    assert (scores is not None) == (law.has_steps and law.draws is None)
    if scores is None:
        return
    starts = np.pad(scores.ends, ((0, 0), (1, 0)))[:, :-1]
    chance, possible = scores.ends - starts, mean_scores(starts, scores.ends)
    np.testing.assert_allclose(np.einsum("nk,nkj->nj", chance, possible), 0.0, atol=1e-12)
    variance = np.broadcast_to(np.einsum("nk,nkj->nj", chance, possible**2), scores.variance.shape)
    np.testing.assert_allclose(scores.variance, variance, rtol=1e-9)
    np.testing.assert_allclose(scores[np.array([2, 0])].variance, variance[[2, 0]], rtol=1e-9)
    u = np.random.default_rng(1).random((len(law), 10_000))
    np.testing.assert_allclose(scores.drawn(u).var(axis=2), variance, rtol=0.1, atol=0.01)
    np.testing.assert_allclose(scores[1:].drawn(u[1:]), scores.drawn(u)[1:])
    if law.counts is not None:  # whose tables of each row's own counts are the cdf
        table = law.quantile(np.array([[TAIL]])) + np.arange(scores.ends.shape[1])
        np.testing.assert_allclose(law.counts.cumulative(table), law.cdf(table), atol=1e-13)


WHOLE = {name: law for name, law in CONTINUOUS.items() if law.stated == "all"}


@pytest.mark.parametrize("step", [0.5, 1.0, 3.0])
@of({**WHOLE, "heavy StudentT": families.StudentT(np.full(N, 3.0), LOC, SCALE)})
def test_scores_of_rounded_targets_are_those_of_the_cells_around_them(law: Distribution, step: float) -> None:
    y = np.round(law.sample(300, seed=1) / step) * step
    rows = JumpScores.at(y[:, 0], law, step)
    direct = mean_scores(law.cdf(y[:, 0] - step / 2.0), law.cdf(y[:, 0] + step / 2.0))
    np.testing.assert_allclose(rows.values, direct, atol=1e-9)
    low, high = law.interval(1e-9)
    cells = step * np.arange(np.floor(low / step), np.ceil(high / step) + 1.0)[None, :]
    starts, ends = law.cdf(cells - step / 2.0), law.cdf(cells + step / 2.0)
    variance = np.einsum("nk,nkj->nj", ends - starts, mean_scores(starts, ends) ** 2)
    np.testing.assert_allclose(rows.variance, variance, atol=0.01)
    np.testing.assert_allclose(rows.variance.mean(axis=0), variance.mean(axis=0), rtol=0.03)
    np.testing.assert_allclose(rows[np.array([3, 1])].variance, rows.variance[[3, 1]], rtol=1e-9)
    simulated = rows.drawn(np.random.default_rng(0).random((N, 40_000)))
    np.testing.assert_allclose(simulated.mean(axis=2), 0.0, atol=0.03)
    np.testing.assert_allclose(np.mean(simulated**2, axis=2), variance, atol=0.03)
    np.testing.assert_allclose(np.mean(simulated**2, axis=(0, 2)), variance.mean(axis=0), rtol=0.04)
    pit = pit_values(y.ravel(), law[np.repeat(np.arange(N), y.shape[1])], step=step)
    assert kolmogorov_smirnov(pit).p_value > 0.01


# Rows and shapes.


@every_family
def test_arguments_have_any_shape_that_fits_the_rows(law: Distribution) -> None:
    y = targets_of(law)
    names = ["cdf", "cdf_left", "crps"] + (["log_prob"] if law.has_density() else [])
    for name in names:
        method = getattr(law, name)
        whole = method(y)
        np.testing.assert_allclose(method(y[:, 0]), whole[:, 0], atol=1e-12)
        np.testing.assert_allclose(method(y[:1]), method(np.tile(y[:1], (N, 1))), atol=1e-12)
        np.testing.assert_allclose(method(float(y[0, 0]))[0], whole[0, 0], atol=1e-12)
        with pytest.raises(InvalidInputError, match=f"does not fit {N} rows"):
            method(np.zeros(N + 1))
    for level in (-0.1, 1.5, np.nan, 95.0):
        for row, q in ((0, level), (1, np.where(np.arange(N) == 1, level, 0.5))):
            with pytest.raises(InvalidInputError, match=f"q: row {row} has the level"):
                law.quantile(q)


@every_family
def test_rows_can_be_cut_and_joined(law: Distribution) -> None:
    y = targets_of(law)
    assert len(law) == N
    joined = type(law).concatenate([law[:3], law[np.arange(3, N)]])
    for name, values in law.parameters().items():
        np.testing.assert_allclose(joined.parameters()[name], values, rtol=1e-15)
    np.testing.assert_allclose(joined.crps(y), law.crps(y), atol=1e-12)
    mask = np.arange(N) % 2 == 0
    np.testing.assert_allclose(law[mask].mean(), law.mean()[mask], atol=1e-12)
    assert len(law[2]) == 1
    assert len(law[np.zeros(N, dtype=bool)]) == 0
    np.testing.assert_allclose(law[2].cdf(y[2:3]), law.cdf(y)[2:3], atol=1e-12)
    assert type(law).__name__ in repr(law)


def test_vectors_have_marginals_and_are_whitened() -> None:
    rng = np.random.default_rng(0)
    loc, scale, y = rng.normal(size=(5, 2)), rng.uniform(0.5, 2.0, (5, 2)), rng.normal(size=(5, 2))
    law, draws = families.MultivariateNormal(loc, scale), families.Samples(rng.normal(size=(5, 7, 2)))
    expected = families.Normal(loc[:, 1], scale[:, 1]).log_prob(y[:, 1])
    np.testing.assert_array_equal(law.marginal(1).log_prob(y[:, 1]), expected)
    one = draws.marginal(0)
    np.testing.assert_array_equal(one.mean(), draws.mean()[:, 0])
    z, standard = law.whitened(y)
    np.testing.assert_allclose(standard.log_prob(z) - np.log(scale).sum(axis=1), law.log_prob(y), rtol=1e-12)
    np.testing.assert_array_equal(families.MultivariateNormal.concatenate([law[:1], law[[1, 2]]]).loc, loc[:3])
    taken = law.sample_by(lambda count, _: rng.random((5, count)), 4_000)
    assert taken.shape == (5, 4_000, 2)
    np.testing.assert_allclose(taken.std(axis=1), scale, rtol=0.08)


# Rows far from the ordinary.

LEVELS = np.array([[1e-9, 1e-3, 0.05, 0.3, 0.5, 0.8, 0.97, 1.0 - 1e-6]])


def resolution(law: Distribution, y: Array) -> Array:
    """What the cdf changes by where y moves by a rounding of itself and of the location."""
    offset = max(float(np.max(np.abs(values[np.isfinite(values)]))) for values in law.parameters().values())
    step = 4e-16 * np.abs(y) + 1e-14 * offset
    return np.zeros_like(y) if law.is_discrete else law.cdf(y + step) - law.cdf_left(y - step)


@of(EXTREME)
def test_extreme_rows_agree_with_themselves(law: Distribution) -> None:
    y = law.quantile(LEVELS)
    assert np.all(np.isfinite(y))
    assert np.all(np.diff(y, axis=1) >= 0.0)
    cdf, left, slack = law.cdf(y), law.cdf_left(y), resolution(law, y) + 1e-7 * LEVELS + 1e-13
    assert np.all((left >= 0.0) & (left <= cdf + 1e-14) & (cdf <= 1.0))
    assert np.all(cdf >= LEVELS - slack)
    assert np.all(left <= LEVELS + slack)
    log_prob = law.log_prob(y)
    assert not np.any(np.isnan(log_prob))
    if law.is_discrete:
        np.testing.assert_allclose(np.exp(log_prob), cdf - left, rtol=1e-6, atol=1e-11)
    width = np.max(law.quantile(0.99) - law.quantile(0.01))
    wave = law.characteristic_function(np.array([0.0, 0.1, 1.0, 4.0]) / (width if width > 0.0 else 1.0))
    np.testing.assert_allclose(wave[:, 0], 1.0, atol=1e-9)
    assert np.all(np.abs(wave) <= 1.0 + 1e-9)
    assert np.all(np.isfinite(law.sample(50, seed=3)))


@of(EXTREME)
def test_extreme_rows_have_scores_between_their_bounds(law: Distribution) -> None:
    """|y - E Y| - E |Y - Y'| / 2 <= crps <= E |y - Y| and E |Y - Y'| / 2 <= std / 3^(1/2), up to the mass beyond y."""
    y, mean, std = law.quantile(LEVELS), law.mean(), law.std()
    spread = np.ptp(y, axis=1)
    for values in (y, np.stack([y[:, 0] - 3.0 * spread - 1.0, y[:, -1] + 3.0 * spread + 1.0], axis=1)):
        assert np.all(law.crps(values) >= 0.0)
    known = np.isfinite(std)
    distance, scores = np.abs(values - mean[:, None])[known], law.crps(values)[known]
    assert np.all(scores <= distance * (1.0 + 1e-9) + 2e-3 * std[known, None])
    assert np.all(scores >= distance * (1.0 - 1e-9) - 0.578 * std[known, None] - 1e-9)
