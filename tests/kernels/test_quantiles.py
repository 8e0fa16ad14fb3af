"""Quantiles: the smallest value that reaches a level; as predictions, a law that goes on beyond its levels."""

import numpy as np
import pytest
import scipy.stats
from expectation_rules import quantile_losses
from hypothesis import given, settings
from hypothesis import strategies as st

from congruence.kernels import Normal, Quantiles, crps, negative_log_likelihood
from congruence.kernels.distributions import Deterministic, Gamma, Laplace, Mixture, Uniform
from congruence.kernels.distributions.quadrature import smallest_reaching
from congruence.kernels.distributions.recalibrated import recalibrated
from congruence.kernels.distributions.score_map import NormalScoreMap
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import RBF, Laplacian
from congruence.kernels.scores import point_scores

LEVELS = np.array([0.05, 0.25, 0.5, 0.9])
VALUES = np.array([[-1.0, 0.2, 0.9, 3.0], [0.0, 0.4, 2.0, 2.1]])
Y = np.array([[-40.0, -1.5, 0.1, 2.05, 3.5, 60.0]])
BOUNDED = ["normal", "exponential", "none"]
OPEN = BOUNDED[:2]


@pytest.mark.parametrize("tails", OPEN)
def test_no_target_has_an_infinite_score(tails):
    law = Quantiles(LEVELS, VALUES, tails)
    assert np.isfinite(negative_log_likelihood(np.array([-9.0, 30.0]), law)).all()
    bounded = Quantiles(LEVELS, VALUES, "none")
    with pytest.raises(InvalidInputError, match="2 of 2 rows have an infinite log score"):
        negative_log_likelihood(np.array([-9.0, 30.0]), bounded)
    np.testing.assert_array_equal(law.outside(Y)[1], [-1.0, -1.0, 0.0, 0.0, 1.0, 1.0])
    np.testing.assert_array_equal(point_scores(law, np.array([-9.0, 0.3]))["beyond_quantiles"], [1.0, 0.0])


def test_normal_quantiles_have_the_tails_of_their_normal_law():
    levels = np.linspace(0.02, 0.98, 49)
    truth = Normal([1.0, -2.0], [0.5, 3.0])
    law, y = Quantiles(levels, truth.quantile(levels[None, :])), np.array([[-20.0, -1.0, 3.0, 12.0]])
    np.testing.assert_allclose(law.log_prob(y)[:, [0, 3]], truth.log_prob(y)[:, [0, 3]], rtol=1e-9)
    np.testing.assert_allclose(law.crps(y), truth.crps(y), rtol=5e-3)  # by 49 levels, also far beyond them
    np.testing.assert_allclose(
        law.kernel_expectation(RBF(0.3), y[0]), truth.kernel_expectation(RBF(0.3), y[0]), atol=1e-3
    )


def test_an_exponential_tail_is_that_of_an_exponential_law():
    levels = np.array([0.1, 0.5, 0.8, 0.9])
    law = Quantiles(levels, -np.log1p(-levels)[None, :], "exponential")
    y = np.array([[3.0, 5.0, 9.0]])
    np.testing.assert_allclose(law.log_prob(y), -y, rtol=1e-9)
    np.testing.assert_allclose(1.0 - law.cdf(y), np.exp(-y), rtol=1e-9)


@given(
    st.lists(st.floats(0.01, 0.99), min_size=2, max_size=6, unique_by=lambda level: round(level, 3)),
    st.integers(0, 2**32 - 1),
    st.sampled_from(BOUNDED),
)
@settings(max_examples=30, deadline=None)
def test_cdf_and_quantile_are_inverse_and_crps_is_least_where_the_law_is(levels, seed, tails):
    levels, rng = np.sort(np.round(levels, 3)), np.random.default_rng(seed)
    law = Quantiles.rearranged(levels, rng.normal(size=(3, len(levels))) * 10.0 ** rng.uniform(-3, 3), tails)
    q = np.array([[1e-6, 0.004, 0.3, 0.5, 0.77, 0.995, 1.0 - 1e-6]])
    np.testing.assert_allclose(law.cdf(law.quantile(q)), np.repeat(q, 3, axis=0), rtol=1e-6)
    assert np.all(np.diff(law.quantile(q), axis=1) > 0)
    assert np.all(law.crps(law.quantile(q)) >= 0)


@pytest.mark.parametrize("tails", OPEN)
def test_a_repeated_outer_value_is_a_point_of_mass_without_a_tail(tails):
    law = Quantiles([0.1, 0.5, 0.9], [[0.0, 0.0, 1.0]], tails)
    assert not law.has_density()
    assert law.cdf_left(0.0)[0] == 0.0
    assert law.cdf(0.0)[0] == pytest.approx(0.5)
    assert law.quantile(0.01)[0] == 0.0
    assert np.isfinite(law.mean()).all()
    assert np.isfinite(crps(np.array([-1.0]), law)).all()
    assert np.isfinite(law.kernel_expectation(Laplacian(1.0), np.array([0.0, 2.0]))).all()


TRUTHS = {
    "normal": scipy.stats.norm(2.0, 3.0),
    "t(3)": scipy.stats.t(3.0),
    "lognormal": scipy.stats.lognorm(1.0),
    "exponential": scipy.stats.expon(),
    "uniform": scipy.stats.uniform(),
}


@pytest.mark.parametrize("levels", [[0.05, 0.5, 0.95], [0.1, 0.5, 0.9], [0.025, 0.25, 0.5, 0.75, 0.975], LEVELS])
@pytest.mark.parametrize("name", TRUTHS)
def test_the_crps_is_lowest_for_true_quantiles_and_near_that_of_their_distribution(name, levels):
    truth, levels = TRUTHS[name], np.array(levels)
    y = truth.ppf((np.arange(20_000) + 0.5) / 20_000)
    right = truth.ppf(levels)

    def mean(quantiles):
        return float(np.mean(Quantiles(levels, np.tile(quantiles, (len(y), 1))).crps(y)))

    middle, rng = truth.ppf(0.5), np.random.default_rng(0)
    narrow_or_wide = [middle + factor * (right - middle) for factor in (0.8, 0.9, 1.1, 1.25)]
    others = [np.sort(right + 0.1 * truth.ppf(0.75) * rng.standard_normal(len(levels))) for _ in range(20)]
    assert min(mean(wrong) for wrong in [*narrow_or_wide, *others]) > mean(right)
    exact = np.mean(y * (np.arange(1, 20_001) - 10_000.5) / 10_000)  # E |Y - y| - E |Y - Y'| / 2 over all pairs
    assert mean(right) == pytest.approx(exact, rel=0.03)
    several = np.array([-3.0, 0.1, 4.0])
    found = Quantiles(levels, np.tile(right, (3, 1))).crps(several)
    np.testing.assert_allclose(found, quantile_losses(levels, right, several), rtol=1e-4)


def test_levels_however_far_out_count_for_what_they_are():
    levels = np.array([1e-300, 1e-9, 0.5, 1.0 - 1e-12])
    far = Quantiles(levels, np.array([[-1e3, -6.0, 0.0, 7.0]]))
    assert far.crps(-7.0)[0] == pytest.approx(7.0 / np.sqrt(2.0), rel=0.01)  # the median's loss, scaled


@pytest.mark.parametrize("tails", BOUNDED)
def test_recalibrated_quantiles_are_scored_at_their_levels(tails):
    """Those without tails had stated twenty levels more once they were recalibrated."""
    law = Quantiles(LEVELS, VALUES, tails)
    wider = recalibrated(law, NormalScoreMap.affine(np.zeros(2), np.full(2, 1.5)))
    moved = wider.quantile(LEVELS[None, :])
    y = np.array([-2.0, 0.7])
    np.testing.assert_allclose(wider.crps(y), Quantiles(LEVELS, moved, tails).crps(y))
    np.testing.assert_array_equal(point_scores(wider, y)["beyond_quantiles"], (y < moved[:, 0]) | (y > moved[:, -1]))
    assert wider.cells(y).ends.shape == (2, len(LEVELS) + 1)
    kept = wider[1:]
    np.testing.assert_allclose(kept.crps(y[1:]), wider.crps(y)[1:])


def test_crossing_rows_are_sorted_and_known():
    law = Quantiles.rearranged([0.1, 0.5, 0.9], [[0.0, 1.0, 2.0], [1.0, 0.0, 2.0], [3.0, 2.0, 1.0]])
    np.testing.assert_array_equal(law.values[1:], [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]])
    np.testing.assert_array_equal(law.crossed, [False, True, True])
    np.testing.assert_array_equal(law[[2, 0]].crossed, [True, False])
    joined = Quantiles.concatenate([law[:1], law[1:]])
    np.testing.assert_array_equal(joined.crossed, law.crossed)
    restored = Quantiles(*law.parameters().values())
    assert restored.tails == law.tails == "normal"
    np.testing.assert_array_equal(restored.crossed, law.crossed)
    np.testing.assert_array_equal(point_scores(law, np.zeros(3))["quantile_crossing"], [0.0, 1.0, 1.0])


def test_tails_that_nobody_knows_are_refused():
    with pytest.raises(InvalidInputError, match=r"tails: is 'heavy', expected one of normal, exponential, none"):
        Quantiles(LEVELS, VALUES, "heavy")
    with pytest.raises(InvalidInputError, match="different tails"):
        Quantiles.concatenate([Quantiles(LEVELS, VALUES), Quantiles(LEVELS, VALUES, "none")])


FAR_LEVELS = np.array([[1e-100, 1e-18, 1e-8, 0.001, 0.1, 0.25, 0.5, 0.75, 0.9, 0.999, 1 - 1e-8]])
FAMILIES = {
    "normal": Normal,
    "laplace": Laplace,
    "gamma": lambda place, scale: Gamma(1.0 + np.abs(place), scale),
    "atom": lambda place, scale: Deterministic(place),
}


def bisected(law, q):
    """The definition, by bisection down to rounding."""
    ends = np.stack([component.quantile(q) for component in law.components])
    low, high = ends.min(axis=0), ends.max(axis=0)
    high = np.where(law.cdf(low) >= q, low, high)
    for _ in range(120):
        middle = low + (high - low) / 2
        if np.all((middle == low) | (middle == high)):
            break  # no step moves the upper end any more
        reached = law.cdf(middle) >= q
        high, low = np.where(reached, middle, high), np.where(reached, low, middle)
    return high


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    spread=st.sampled_from([0.1, 3.0, 1e3]),
    families=st.lists(st.sampled_from(sorted(FAMILIES)), min_size=1, max_size=4),
)
def test_quantiles_of_mixtures_are_those_of_bisection(seed, spread, families):
    rng = np.random.default_rng(seed)
    n = 8
    parts = [FAMILIES[name](spread * rng.standard_normal(n), np.exp(rng.standard_normal(n))) for name in families]
    law = Mixture(rng.dirichlet(np.ones(len(parts)), n), parts)
    q = np.broadcast_to(FAR_LEVELS, (n, FAR_LEVELS.shape[1]))
    found, exact = law.quantile(q), bisected(law, q)
    scale = np.abs(exact).max(axis=1, keepdims=True)
    # As values, or, where the cdf is as flat as its rounding, as levels: in the lower tail that is relative.
    close = (np.abs(found - exact) <= 1e-8 * scale) | (np.abs(law.cdf(found) - q) <= 4e-15 * q)
    assert close.all()


def test_the_left_end_of_a_gap_between_components_is_found():
    gap = Mixture([0.5, 0.5], [Uniform(0.0, 1.0), Uniform(2.0, 1.0)])
    np.testing.assert_allclose(gap.quantile([[0.0, 0.25, 0.5, 0.75, 1.0]]), [[0.0, 0.5, 1.0, 2.5, 3.0]], atol=1e-14)
    atoms = Mixture([0.5, 0.5], [Deterministic(0.0), Deterministic(1.0)])
    np.testing.assert_allclose(atoms.quantile([[0.25, 0.5, 0.75]]), [[0.0, 0.0, 1.0]], atol=1e-14)


def test_no_levels_have_no_quantiles():
    law = Mixture([0.5, 0.5], [Normal([0.0, 1.0], 1.0), Normal([2.0, 3.0], 1.0)])
    assert law.quantile(np.empty((2, 0))).shape == (2, 0)


def test_a_smooth_cdf_is_asked_about_a_dozen_times():
    rng = np.random.default_rng(0)
    law = Mixture(rng.dirichlet([1.0, 1.0], 1), [Normal(-3.0, 2.0), Normal(4.0, 1.0)])
    q = np.linspace(0.001, 0.999, 999)
    asked = []

    def cdf_of(elements):
        def cdf(s):
            asked.append(len(elements))
            return law.cdf(s[None, :])[0]

        return cdf

    ends = [component.quantile(q[None, :])[0] for component in law.components]
    found = smallest_reaching(cdf_of, q, np.minimum(*ends), np.maximum(*ends), whole=False)
    np.testing.assert_allclose(law.cdf(found[None, :])[0], q, atol=1e-14)
    assert sum(asked) <= 15 * len(q)
