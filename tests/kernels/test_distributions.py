"""What every family of scalar predictive distributions must do: one conformance case, run over all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from congruence.kernels import distributions as families
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.base import KNOT_LEVELS
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import RBF, Laplacian
from congruence.kernels.mean_embeddings.feature_maps import output_features

N = 8
DRAWS = 40_000
FEW = 4_000
RNG = np.random.default_rng(20)
LOC, SCALE = RNG.normal(0, 2, N), RNG.uniform(0.3, 2, N)
MEAN, SHARE = RNG.uniform(0.2, 30, N), RNG.uniform(0.05, 0.6, N)
TRIALS, DISPERSION, PHI = RNG.integers(1, 40, N), RNG.uniform(0.05, 1.5, N), RNG.uniform(0.3, 4, N)
LEVELS = np.array([0.05, 0.2, 0.5, 0.7, 0.95])
VALUES = np.sort(RNG.normal(size=(N, 5)), axis=1)
BORDERS, MASSES = np.array([-3.0, -1.0, -0.2, 0.5, 1.0, 4.0]), np.random.default_rng(21).dirichlet(np.ones(5), N)
OWN_BORDERS = LOC[:, None] + SCALE[:, None] * BORDERS

CONTINUOUS: dict[str, Distribution] = {
    "Normal": families.Normal(LOC, SCALE),
    "Laplace": families.Laplace(LOC, SCALE),
    "StudentT": families.StudentT(RNG.uniform(4.5, 90, N), LOC, SCALE),
    "Logistic": families.Logistic(LOC, SCALE),
    "LogNormal": families.LogNormal(RNG.uniform(0.1, 0.8, N), SCALE),
    "Gamma": families.Gamma(RNG.uniform(0.4, 9, N), SCALE),
    "Beta": families.Beta(RNG.uniform(0.4, 9, N), RNG.uniform(0.4, 9, N)),
    "Uniform": families.Uniform(LOC, SCALE),
    "TruncatedNormal": families.TruncatedNormal(LOC, SCALE, LOC - RNG.uniform(-0.3, 2, N), LOC + 2.5),
    "half-open TruncatedNormal": families.TruncatedNormal(LOC, SCALE, 0.0, np.inf),
    "Quantiles": families.Quantiles(LEVELS, VALUES),
    "Histogram": families.Histogram(BORDERS, MASSES),
    "Histogram with borders by row": families.Histogram(OWN_BORDERS, MASSES),
    "Histogram with tails": families.Histogram(BORDERS, MASSES, tail_share=0.5),
    "Histogram with borders by row and tails": families.Histogram(OWN_BORDERS, MASSES, tail_share=0.2),
    "Mixture of normals": families.Mixture(
        RNG.dirichlet(np.ones(3), N), [families.Normal(LOC + 2.0 * k, SCALE / (k + 1)) for k in range(3)]
    ),
    "Mixture of families": families.Mixture([0.4, 0.6], [families.Laplace(LOC, SCALE), families.Logistic(-LOC, SCALE)]),
}
COUNTS: dict[str, Distribution] = {
    "Poisson": families.Poisson(MEAN),
    "NegativeBinomial": families.NegativeBinomial(MEAN, DISPERSION),
    "DoublePoisson": families.DoublePoisson(MEAN, PHI),
    "Binomial": families.Binomial(TRIALS, SHARE),
    "ZeroInflatedPoisson": families.ZeroInflatedPoisson(MEAN, SHARE),
    "ZeroInflatedNegativeBinomial": families.ZeroInflatedNegativeBinomial(MEAN, DISPERSION, SHARE),
    "ZeroInflatedDoublePoisson": families.ZeroInflatedDoublePoisson(MEAN, PHI, SHARE),
    "ZeroInflatedBinomial": families.ZeroInflatedBinomial(TRIALS, SHARE, SHARE),
    "HurdlePoisson": families.HurdlePoisson(MEAN, SHARE),
    "HurdleNegativeBinomial": families.HurdleNegativeBinomial(MEAN, DISPERSION, SHARE),
    "HurdleDoublePoisson": families.HurdleDoublePoisson(MEAN, PHI, SHARE),
    "HurdleBinomial": families.HurdleBinomial(TRIALS, SHARE, SHARE),
    "Mixture of counts": families.Mixture([0.3, 0.7], [families.Poisson(MEAN), families.Binomial(TRIALS, SHARE)]),
}
ATOMS: dict[str, Distribution] = {
    "CensoredNormal": families.CensoredNormal(LOC, SCALE, LOC - 1.0, LOC + 0.5),
    "half-open CensoredNormal": families.CensoredNormal(LOC, SCALE, LOC - 0.5 * SCALE, np.inf),
    "Samples": families.Samples(RNG.normal(size=(N, 7))),
    "WeightedSamples": families.WeightedSamples(BORDERS[[3, 0, 1, 2, 3]], MASSES),
    "WeightedSamples with points by row": families.WeightedSamples(OWN_BORDERS[:, 1:], MASSES),
    "Deterministic": families.Deterministic(LOC),
    "Quantiles with an atom": families.Quantiles(LEVELS, np.maximum(VALUES, VALUES[:, 1:2])),
    "Mixture with an atom": families.Mixture([0.2, 0.8], [families.Deterministic(LOC), families.Normal(LOC, SCALE)]),
}
ALL = {**CONTINUOUS, **COUNTS, **ATOMS}
every_family = pytest.mark.parametrize("law", ALL.values(), ids=ALL.keys())


@pytest.fixture(scope="module")
def draws() -> dict[int, np.ndarray]:
    return {id(law): law.sample(DRAWS, seed=3) for law in ALL.values()}


def test_every_family_is_covered() -> None:
    vectors_and_base = {"Distribution", "MultivariateNormal"}
    assert {type(law).__name__ for law in ALL.values()} == set(families.__all__) - vectors_and_base


def _plausible_targets(law: Distribution) -> np.ndarray:
    y = law.quantile(np.random.default_rng(5).random(N))
    return y if law.is_discrete else y + 0.1 * law.std()


@every_family
def test_quantile_is_the_smallest_value_that_reaches_its_level(law: Distribution) -> None:
    levels = np.array([1e-6, 0.01, 0.2, 0.5, 0.83, 0.999])[None, :]
    values = law.quantile(levels)
    assert values.shape == (N, 6)
    assert np.all(law.cdf(values) >= levels - 1e-9)
    assert np.all(law.cdf_left(values) <= levels + 1e-9)
    assert np.all(np.diff(values, axis=1) >= 0)
    np.testing.assert_array_equal(law.quantile(0.5), values[:, 3])


@every_family
def test_cdf_rises_from_0_to_1_and_jumps_only_upwards(law: Distribution) -> None:
    low, high = law.interval(1e-9)
    y = np.linspace(low - 1, high + 1, 200)[None, :]
    cdf, left = law.cdf(y), law.cdf_left(y)
    assert np.all(np.diff(cdf, axis=1) >= -1e-12)
    assert np.all(left <= cdf + 1e-15)
    assert np.all((cdf >= 0) & (cdf <= 1))
    assert np.all(cdf[:, 0] <= 1e-8)
    assert np.all(cdf[:, -1] >= 1 - 1e-8)


@every_family
def test_draws_have_the_mean_and_the_spread(law: Distribution, draws: dict[int, np.ndarray]) -> None:
    values = draws[id(law)]
    assert values.shape == (N, DRAWS)
    std = law.std()
    if isinstance(law, families.Samples):  # which has the spread of the law behind its values
        std = std * np.sqrt(1.0 - 1.0 / law.values.shape[1])
    error = std / np.sqrt(DRAWS)
    assert np.all(np.abs(values.mean(axis=1) - law.mean()) <= 5 * error + 1e-12)
    fourth = np.mean((values - values.mean(axis=1, keepdims=True)) ** 4, axis=1)
    spread_error = np.sqrt(np.maximum(fourth - values.var(axis=1) ** 2, 0) / DRAWS)
    assert np.all(np.abs(values.var(axis=1) - std**2) <= 7 * spread_error + 1e-9)
    np.testing.assert_array_equal(law.sample(3, seed=8), law.sample(3, seed=8))


# The CRPS of samples is not that of their empirical law, from which these draws are.
@pytest.mark.parametrize("name", [name for name in ALL if name != "Samples"])
def test_crps_is_that_of_many_draws(name: str, draws: dict[int, np.ndarray]) -> None:
    law = ALL[name]
    values, y = draws[id(law)], _plausible_targets(law)
    to_target, apart = np.abs(values - y[:, None]), np.abs(values - np.roll(values, 1, axis=1))
    estimate = to_target.mean(axis=1) - apart.mean(axis=1) / 2
    error = np.std(to_target - apart / 2, axis=1) / np.sqrt(DRAWS)
    assert np.all(np.abs(law.crps(y) - estimate) <= 7 * error + 1e-9)
    np.testing.assert_allclose(law.crps(np.stack([y, y + 1], axis=1))[:, 0], law.crps(y), atol=1e-12)


@every_family
def test_kernel_mean_is_the_average_over_draws(law: Distribution, draws: dict[int, np.ndarray]) -> None:
    y = _plausible_targets(law)
    kernel = RBF(0.2 / np.var(draws[id(law)][:, :100]))
    features = output_features(kernel, y, law)
    values = draws[id(law)][:, :FEW]
    average = np.stack([features(row).mean(axis=0) for row in values])
    assert np.all(np.abs(features.expectation(law) - average) <= 7 * np.sqrt(1 / FEW))
    # Where the feature map is exact, E k(t, Y) by the features equals it by sums or quadrature.
    nodes = np.linspace(y.min(), y.max(), 5)
    by_features = features.expectation(law) @ features(nodes).T
    np.testing.assert_allclose(by_features, law.kernel_expectation(kernel, nodes), atol=1e-7)


@every_family
def test_kernel_expectation_of_a_kinked_kernel(law: Distribution, draws: dict[int, np.ndarray]) -> None:
    kernel, nodes = Laplacian(0.7), np.array([0.0, 1.5])
    values = draws[id(law)][:, :FEW]
    average = np.stack([kernel(row, nodes).mean(axis=0) for row in values])
    assert np.all(np.abs(law.kernel_expectation(kernel, nodes) - average) <= 7 * 0.5 / np.sqrt(FEW))


@every_family
def test_rows_can_be_cut_and_joined(law: Distribution) -> None:
    y = _plausible_targets(law)
    assert len(law) == N
    joined = type(law).concatenate([law[:3], law[np.arange(3, N)]])
    for name, values in law.parameters().items():
        np.testing.assert_allclose(joined.parameters()[name], values, rtol=1e-15)
    np.testing.assert_allclose(joined.crps(y), law.crps(y), atol=1e-12)
    mask = np.arange(N) % 2 == 0
    np.testing.assert_allclose(law[mask].mean(), law.mean()[mask], atol=1e-12)
    assert len(law[2]) == 1
    np.testing.assert_allclose(law[2].cdf(y[2:3]), law.cdf(y)[2:3], atol=1e-12)


@pytest.mark.parametrize("law", CONTINUOUS.values(), ids=CONTINUOUS.keys())
def test_density_integrates_to_the_cdf(law: Distribution) -> None:
    levels = np.union1d(np.linspace(0.05, 0.95, 31), LEVELS)
    within = law.quantile(levels[None, :])
    edges = np.sort(np.hstack([within, np.clip(law.knots(), within[:, :1], within[:, -1:])]), axis=1)
    nodes, weights = np.polynomial.legendre.leggauss(12)
    half = np.diff(edges, axis=1)[:, :, None] / 2
    points = (edges[:, :-1, None] + half * (1 + nodes)).reshape(N, -1)
    area = np.exp(law.log_prob(points)).reshape(N, -1, 12) * half @ weights
    np.testing.assert_allclose(area, np.diff(law.cdf(edges), axis=1), atol=2e-5)  # kinks


@pytest.mark.parametrize("law", COUNTS.values(), ids=COUNTS.keys())
def test_mass_sums_to_the_cdf_and_to_one(law: Distribution) -> None:
    support = np.arange(0, law.quantile(1 - 1e-15).max() + 2)[None, :]
    mass = np.exp(law.log_prob(support))
    np.testing.assert_allclose(mass.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(np.cumsum(mass, axis=1), law.cdf(support), atol=1e-12)
    np.testing.assert_allclose(law.cdf(support - 1.0), law.cdf_left(support), atol=1e-15)
    np.testing.assert_allclose(mass @ support[0], law.mean(), rtol=1e-11)
    assert np.all(law.log_prob(1.5) == -np.inf)
    assert np.all(law.log_prob(-1.0) == -np.inf)


@every_family
def test_characteristic_function_is_the_mean_wave(law: Distribution, draws: dict[int, np.ndarray]) -> None:
    t = np.array([0.0, 0.3, 1.0, 2.5])
    wave = law.characteristic_function(t)
    np.testing.assert_allclose(wave[:, 0], 1.0, atol=1e-12)
    assert np.all(np.abs(wave) <= 1 + 1e-12)
    average = np.stack([np.exp(1j * draws[id(law)] * frequency).mean(axis=1) for frequency in t], axis=1)
    assert np.all(np.abs(wave - average) <= 7 / np.sqrt(DRAWS))
    np.testing.assert_allclose(law.characteristic_function(-t), np.conj(wave), atol=1e-12)


@every_family
def test_interval_and_knots_cover_the_mass(law: Distribution) -> None:
    low, high = law.interval(1e-9)
    assert np.all(law.cdf_left(low) <= 1.01e-9)
    assert np.all(law.cdf(high) >= 1 - 1.01e-9)
    knots = law.knots()
    assert np.all(np.diff(knots, axis=1) >= 0)
    assert np.all(law.cdf_left(knots[:, 0]) <= 1.1 * KNOT_LEVELS[0])


@every_family
def test_mismatched_arguments_are_refused(law: Distribution) -> None:
    with pytest.raises(InvalidInputError, match="does not fit 8 rows"):
        law.cdf(np.zeros(N + 1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: families.Normal([0.0, 0.0], [1.0, -1.0]), "Normal.scale: row 1 is -1"),
        (lambda: families.Normal([0.0, np.nan], 1.0), "row 1"),
        (lambda: families.Normal([0.0, 0.0], [1.0, 1.0, 1.0]), "different lengths"),
        (lambda: families.Normal(["a"], [1.0]), "expected numbers"),
        (lambda: families.NegativeBinomial([1.0, -2.0], 0.5), "NegativeBinomial.mean: row 1 is -2"),
        (lambda: families.DoublePoisson(1.0, 0.0), "DoublePoisson.inverse_dispersion: row 0"),
        (lambda: families.Binomial(2.5, 0.5), "whole number"),
        (lambda: families.TruncatedNormal(0.0, 1.0, 2.0, 1.0), "bound below upper"),
        (lambda: families.ZeroInflatedPoisson(-1.0, 0.5), "Poisson.rate"),
        (lambda: families.HurdlePoisson(1.0, 1.5), "probability"),
        (lambda: families.Quantiles([0.1, 0.9], [[0.0, 1.0], [2.0, 1.0]]), "row 1 falls from 2 at level 0.1"),
        (lambda: families.Quantiles([0.9, 0.1], [[0.0, 1.0]]), "increase strictly"),
        (lambda: families.Mixture([0.5, 0.6], [families.Normal(0.0, 1.0)] * 2), "sum to 1"),
        (lambda: families.Mixture([0.5, 0.5], [families.Normal(0.0, 1.0), families.Normal([0.0] * 2, 1.0)]), "rows"),
        (lambda: families.Samples([1.0, 2.0]), "expected numbers of shape"),
        (lambda: families.Samples(np.ones((2, 3))).log_prob(1.0), "row 0 has all 3 samples equal"),
        (lambda: families.Histogram([0.0, 1.0, 1.0], [[0.5, 0.5]]), "border 2 is not above border 1"),
        (lambda: families.Histogram([0.0, 1.0], [[0.5, 0.5]]), "one more border than bins"),
        (lambda: families.Histogram([0.0, 1.0, 2.0], [[0.5, 0.5], [1.5, -0.5]]), "probabilities: row 1 is -0.5"),
        (lambda: families.Histogram([0.0, 1.0, 2.0], [[2.0, 3.0]]), "sum to 1; apply a softmax"),
        (lambda: families.Histogram([0.0, 1.0], [[1.0]], 0.5), "tail_share: is 0.5 with 1 bins"),
        (lambda: families.WeightedSamples([0.0, 1.0, 2.0], [[0.5, 0.5]]), "does not fit weights"),
        (
            lambda: families.WeightedSamples([0.0, 1.0], [[0.5, 0.5], [0, 1]]).log_prob(1.0),
            "row 1 has all its mass on 1",
        ),
        (lambda: families.Deterministic([1.0]).log_prob(1.0), "no density"),
        (lambda: families.StudentT(0.9, 0.0, 1.0).crps(0.0), "infinite for df <= 1"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_with_its_row(make: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()  # type: ignore[operator]


@settings(max_examples=25, deadline=None)
@given(
    mean=st.floats(1e-3, 5e4),
    dispersion=st.floats(1e-3, 5.0),
    y=st.integers(0, 60_000),
)
def test_crps_of_counts_is_consistent_at_any_rate(mean: float, dispersion: float, y: int) -> None:
    """Closed forms against certified sums, from rates of a thousandth to fifty thousand."""
    from congruence.kernels.distributions.counts import Count

    target = np.array([[float(y)]])
    for law in (families.Poisson(mean), families.NegativeBinomial(min(mean, 2000.0), dispersion)):
        by_sums = Count.mean_absolute_deviation(law, target) - Count.mean_absolute_difference(law) / 2
        np.testing.assert_allclose(law.crps(target), by_sums, rtol=1e-8, atol=1e-8)


def test_a_histogram_equals_quantiles_of_the_same_law() -> None:
    levels = np.array([0.0, 0.1, 0.35, 0.6, 0.9, 1.0])
    law = families.Histogram(OWN_BORDERS, np.tile(np.diff(levels), (N, 1)))
    inner = np.concatenate([[0.05], levels[1:-1], [0.95]])
    same = families.Quantiles(inner, law.quantile(inner[None, :]), "none")
    y = law.mean()[:, None] + law.std()[:, None] * np.linspace(-4, 4, 23)
    for name in ("cdf", "crps", "log_prob"):
        np.testing.assert_allclose(getattr(law, name)(y), getattr(same, name)(y), atol=1e-12)
    np.testing.assert_allclose(law.std(), same.std(), rtol=1e-12)


def test_weighted_samples_are_mixtures_of_points_and_weights_are_repetitions() -> None:
    law = families.WeightedSamples(OWN_BORDERS[:, 1:], MASSES)
    points = families.Mixture(MASSES, [families.Deterministic(column) for column in OWN_BORDERS[:, 1:].T])
    y = law.mean()[:, None] + law.std()[:, None] * np.linspace(-4, 4, 23)
    for name in ("cdf", "cdf_left", "crps"):
        np.testing.assert_allclose(getattr(law, name)(y), getattr(points, name)(y), atol=1e-12)
    repeated = families.WeightedSamples([0.0, 1.0, 1.0, 3.0], [[0.25] * 4])
    once = families.WeightedSamples([0.0, 1.0, 3.0], [[0.25, 0.5, 0.25]])
    grid = np.linspace(-1, 4, 11)[None, :]
    for name in ("cdf", "crps", "quantile"):
        values = grid if name != "quantile" else np.linspace(0, 1, 11)[None, :]
        np.testing.assert_allclose(getattr(repeated, name)(values), getattr(once, name)(values), atol=1e-14)
