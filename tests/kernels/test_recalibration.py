"""Recalibrated laws against quadrature and closed forms; corrections judged on rows that they have not seen."""

from typing import Any

import numpy as np
import pytest
import scipy.stats
from scipy.special import ndtr, ndtri
from unit_splits import CUBIC, embedded

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import (
    Beta,
    Deterministic,
    Distribution,
    Gamma,
    Histogram,
    Mixture,
    NegativeBinomial,
    Normal,
    Poisson,
    Quantiles,
    Samples,
    StudentT,
    ZeroInflated,
)
from congruence.kernels.distributions.recalibrated import Recalibrated, recalibrated, score_intervals
from congruence.kernels.distributions.score_map import NormalScoreMap
from congruence.kernels.engine.spectrum import input_spectrum
from congruence.kernels.engine.targets import target_errors
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import RBF, Laplacian
from congruence.kernels.recalibration.fit import (
    RehearsalSplit,
    fit_recalibration,
    recalibration_rehearsal,
    rehearsal_split,
)
from congruence.kernels.recalibration.recalibration_map import (
    Form,
    InputFeatures,
    input_features,
    linear_in_kernel,
    map_arrays,
    map_of,
)
from congruence.kernels.scores import negative_log_likelihood
from congruence.kernels.split import Split, prepare

LEVELS = np.array([0.0, 0.1, 0.5, 0.9, 1.0])
SHARES = np.array([[0.0, 0.05, 0.45, 0.93, 1.0], [0.0, 0.2, 0.5, 0.8, 1.0]])
BENT = NormalScoreMap([0.3, -0.2], [1.5, 0.7], LEVELS, SHARES)
N = 600
TWICE = np.random.default_rng(0).normal(size=(2 * N, 3))


def test_a_moved_and_stretched_normal_law_is_normal() -> None:
    score_map = NormalScoreMap.affine([0.3, -0.2], [3.0, 0.5])
    base = Normal([1.0, 2.0], [1.0, 2.0])
    law, general = recalibrated(base, score_map), Recalibrated(base, score_map)
    assert isinstance(law, Normal)
    np.testing.assert_allclose(law.loc, [1.3, 1.6])
    np.testing.assert_allclose(law.scale, [3.0, 1.0])
    y = np.array([[-30.0, -1.0, 0.0, 5.0, 30.0]])  # 15 to 30 spreads of the base from its middle
    np.testing.assert_allclose(general.log_prob(y), law.log_prob(y), atol=2e-5)
    np.testing.assert_allclose(general.cdf(y), law.cdf(y), atol=1e-12)
    np.testing.assert_allclose(general.crps(y), law.crps(y), rtol=1e-6)


def test_bounded_laws_keep_their_support() -> None:
    stretched = NormalScoreMap.affine([0.0, 0.0], [4.0, 4.0])
    values = recalibrated(Beta([2.0, 3.0], [1.5, 4.0]), stretched).quantile(np.array([[1e-9, 0.5, 1.0 - 1e-9]]))
    assert np.all((values >= 0.0) & (values <= 1.0))
    law = recalibrated(Gamma([2.0, 3.0], [1.0, 1.0]), stretched)
    assert np.all(law.quantile(1e-9) >= 0.0)
    assert np.all(law.log_prob(-1.0) == -np.inf)


def test_draws_stay_draws_in_their_order() -> None:
    draws = np.random.default_rng(0).normal(size=(2, 60))
    law = recalibrated(Samples(draws), NormalScoreMap.affine([1.0, 0.0], [2.0, 0.5]))
    assert isinstance(law, Samples)
    np.testing.assert_array_equal(np.argsort(law.values, axis=1), np.argsort(draws, axis=1))
    spread = law.values.std(axis=1) / draws.std(axis=1)
    np.testing.assert_allclose(spread, [2.0, 0.5], rtol=0.25)
    assert law.values[0].mean() - draws[0].mean() == pytest.approx(draws[0].std(), rel=0.4)


@pytest.mark.parametrize("size", [5, 10, 20])
@pytest.mark.parametrize(("spread", "factor"), [(0.5, 1.8), (1.0, 1.0001), (2.0, 0.6)])
def test_few_draws_that_were_moved_score_as_the_distribution_behind_them(
    size: int, spread: float, factor: float
) -> None:
    """As if they were independent, .507 of five and .533 of ten that were widened: below the .560 of the truth."""
    rng, n = np.random.default_rng(size), 20_000
    y, draws = rng.normal(size=n), spread * rng.normal(size=(n, size))
    law = recalibrated(Samples(draws), NormalScoreMap.affine(np.zeros(n), np.full(n, factor)))
    assert isinstance(law, Samples)
    behind = np.mean(Normal(np.zeros(n), np.full(n, spread * factor)).crps(y))
    assert np.mean(law.crps(y)) == pytest.approx(behind, rel=0.01 if spread < 2.0 else 0.06)
    again = recalibrated(law, NormalScoreMap.affine(np.zeros(n), np.full(n, 1.0001)))
    np.testing.assert_allclose(again.crps(y), law.crps(y), rtol=0.01, atol=0.001)
    np.testing.assert_allclose(law[:50].crps(y[:50]), law.crps(y)[:50], rtol=1e-9)


@pytest.mark.parametrize(("size", "spread"), [(5, 0.5), (5, 1.5), (10, 0.67), (20, 0.67)])
def test_few_draws_that_were_moved_state_the_distribution_behind_them(size: int, spread: float) -> None:
    """Of five that were widened as quantiles are, targets had the outer places 1.2 times too seldom."""
    rng, n = np.random.default_rng(size), 20_000
    y, draws, truth = rng.normal(size=n), spread * rng.normal(size=(n, size)), Normal(np.zeros(n), 1.0)
    law = recalibrated(Samples(draws), NormalScoreMap.affine(np.zeros(n), np.full(n, 1.0 / spread)))
    places = np.bincount(np.sum(law.draws < y[:, None], axis=1), minlength=size + 1)
    assert scipy.stats.chisquare(places).pvalue > 1e-3
    kernel, nodes = RBF(0.5), np.array([0.0, 0.7, 2.0])
    found, expected = (each.kernel_expectation(kernel, nodes) for each in (law, truth))
    np.testing.assert_allclose(found.mean(axis=0), expected[0], atol=0.006)
    np.testing.assert_allclose(law.raw_moments(2).mean(axis=0), [1.0, 0.0, 1.0], atol=0.02)
    waves = np.array([0.5, 1.0])
    np.testing.assert_allclose(
        law.characteristic_function(waves).mean(axis=0), truth.characteristic_function(waves)[0], atol=0.01
    )
    assert np.mean(law.std() ** 2) == pytest.approx(1.0, rel=0.02)
    assert np.mean(negative_log_likelihood(y, law)) == pytest.approx(0.5 * np.log(2.0 * np.pi * np.e), abs=0.04)
    errors = target_errors(y[:4000], law[:4000], kernel)
    assert np.mean(errors.variance) == pytest.approx(np.mean(np.sum(errors.delta**2, axis=1)), rel=0.06)


def test_corrected_draws_are_not_exchangeable_with_targets_and_their_test_says_so() -> None:
    rng = np.random.default_rng(1)
    split, y = prepare(rng.normal(size=(60, 2)), input_kernel=RBF(0.5)), rng.normal(size=60)
    draws = rng.normal(size=(60, 5))
    moved = recalibrated(Samples(draws), NormalScoreMap.affine(np.zeros(60), np.full(60, 1.2)))
    kinds = [split.congruence_test(y, law, draws=19).p_value_kind for law in (Samples(draws), moved)]
    assert kinds == ["exact", "asymptotic in 60 blocks"]


def test_scores_of_targets_are_intervals_where_the_law_jumps() -> None:
    low, high = score_intervals(Normal([0.0, 0.0], [1.0, 1.0]), [1.0, -20.0])
    np.testing.assert_array_equal(low, high)
    np.testing.assert_allclose(low, [1.0, -20.0], rtol=1e-6)
    low, high = score_intervals(Poisson([2.0, 2.0]), [0.0, 60.0])
    assert low[0] == -np.inf
    assert ndtr(high[0]) == pytest.approx(np.exp(-2.0))
    assert 14.0 < low[1] < high[1] < 25.0  # a probability of 1e-60, which 1 - cdf does not have
    low, high = score_intervals(Samples(np.arange(18.0).reshape(2, 9)), [-1.0, 30.0])
    assert (low[0], high[1]) == (-np.inf, np.inf)
    assert ndtr(high[0]) == pytest.approx(0.1)
    low, high = score_intervals(Quantiles([0.1, 0.5, 0.9], [[-1.0, 0.0, 1.0]]), [4.0])
    assert low[0] == pytest.approx(4.0 * ndtri(0.9), rel=0.03)  # normal tails of the quantiles' spread


# Fitting


@pytest.fixture(scope="module")
def inputs() -> Array:
    return np.random.default_rng(0).normal(size=(N, 3))


@pytest.fixture(scope="module")
def prepared(inputs: Array) -> Split:
    return prepare(embedded(inputs), input_kernel=CUBIC, regularization=0.1)


@pytest.fixture(scope="module")
def features(prepared: Split) -> InputFeatures:
    return input_features(prepared.spectrum, prepared.x)


def _truth(x: Array) -> Normal:
    return Normal(3.0 * np.sin(x[:, 0]), np.exp(0.4 * x[:, 1]))


def _drawn(law: Distribution, seed: int = 2) -> Array:
    return law.sample(1, seed=np.random.default_rng(seed))[:, 0]


def test_features_at_new_inputs_are_those_of_the_reference_rows(inputs: Array, features: InputFeatures) -> None:
    again = linear_in_kernel(features.kernel, features.landmarks, features.basis, embedded(inputs))
    np.testing.assert_allclose(again, features.values, atol=2e-3 * np.abs(features.values).max())


def test_folds_and_draws_follow_the_rows_names(inputs: Array, features: InputFeatures) -> None:
    law = Poisson(np.exp(0.5 * inputs[:, 0]))
    y, keys = _drawn(law) * 2.0, np.array([f"row {i}" for i in range(N)])
    order = np.random.default_rng(3).permutation(N)
    moved = InputFeatures(features.values[order], features.landmarks, features.kernel, features.basis)
    first = fit_recalibration(features, y, law, keys=keys)
    second = fit_recalibration(moved, y[order], law[order], keys=keys[order])
    assert second.form == first.form
    np.testing.assert_allclose(second.weights, first.weights, rtol=1e-8, atol=1e-10)


def test_shift_factor_and_shape_are_found(inputs: Array, features: InputFeatures) -> None:
    law = _truth(inputs)
    y = _drawn(law)
    narrow = fit_recalibration(features, y, Normal(law.loc - 0.25 * law.scale, law.scale / 2.0)).at(embedded(inputs))
    np.testing.assert_allclose(np.mean(narrow.factor), 2.0, rtol=0.1)
    np.testing.assert_allclose(np.mean(narrow.shift), 0.5, atol=0.15)
    skewed = law.loc + law.scale * (np.random.default_rng(4).gamma(2.0, size=N) - 2.0) / np.sqrt(2.0)
    assert fit_recalibration(features, skewed, law).form.shape is not None


def test_rounded_targets_are_fitted_by_their_cells(inputs: Array, features: InputFeatures) -> None:
    """At their points they had made the spread too wide by .15 at a step of two spreads."""
    law, spreads = Normal(inputs[:, 0], 1.0), []
    narrow = Normal(law.loc, 1.0 / 1.5)
    for seed in range(4):
        y = 2.0 * np.round(_drawn(law, seed) / 2.0)
        spreads.append(np.mean(fit_recalibration(features, y, narrow)(embedded(inputs), narrow).std()))
    assert np.mean(spreads) == pytest.approx(1.0, abs=0.05)


def test_a_wrong_label_leaves_the_correction_as_it_is(inputs: Array, features: InputFeatures) -> None:
    """Its normal score of 40 hid from the cross-validation that the spread is too small."""
    law = _truth(inputs)
    y = _drawn(law)
    y[0] = 1e6
    fitted = fit_recalibration(features, y, Normal(law.loc, law.scale / 1.5)).at(embedded(inputs))
    np.testing.assert_allclose(np.mean(fitted.factor), 1.5, rtol=0.1)


def test_spreads_that_are_wrong_by_other_factors_are_no_wrong_labels(inputs: Array, features: InputFeatures) -> None:
    law, wide = _truth(inputs), np.where(inputs[:, 0] > 0.0, 100.0, 1.0)
    fitted = fit_recalibration(features, _drawn(law), Normal(law.loc, wide * law.scale)).at(embedded(inputs))
    assert np.median(fitted.factor[wide == 1.0]) > 0.5


def test_the_map_of_all_rows_serves_new_ones(inputs: Array, features: InputFeatures) -> None:
    law = _truth(inputs)
    flat = Normal(law.loc, np.full(N, 1.2))
    fitted = fit_recalibration(features, _drawn(law), flat)
    fresh = np.random.default_rng(5).normal(size=(N, 3))
    truth, stated = _truth(fresh), Normal(_truth(fresh).loc, np.full(N, 1.2))
    y = _drawn(truth, 6)
    scores = [float(np.mean(-law.log_prob(y))) for law in (stated, fitted(embedded(fresh), stated), truth)]
    assert scores[1] < scores[0] - 0.5 * (scores[0] - scores[2])


TRUE_LAWS: dict[str, Any] = {
    "normal": _truth,
    "t": lambda x: StudentT(np.full(N, 4.0), np.sin(x[:, 0]), np.exp(0.4 * x[:, 1])),
    "poisson": lambda x: Poisson(np.exp(0.5 * x[:, 0])),
    "zero-inflated": lambda x: ZeroInflated(Poisson(np.exp(1.0 + 0.3 * x[:, 0])), np.full(N, 0.3)),
    "mixture": lambda x: Mixture(
        np.full((N, 2), 0.5), (Normal(x[:, 0] - 2.0, np.ones(N)), Normal(x[:, 0] + 2.0, np.ones(N)))
    ),
}


@pytest.mark.parametrize("name", TRUE_LAWS)
def test_a_true_law_stays_as_it_is(inputs: Array, features: InputFeatures, name: str) -> None:
    law = TRUE_LAWS[name](inputs)
    found = [fit_recalibration(features, _drawn(law, seed), law) for seed in range(2)]
    assert sum(one.changes_nothing for one in found) >= 1
    for one, seed in zip(found, range(2), strict=True):
        y = _drawn(law, 100 + seed)  # that no map has seen
        lost = one(embedded(inputs), law).crps(y) - law.crps(y)
        assert np.mean(lost) <= 0.005 * np.mean(law.crps(y))


def test_a_true_ensemble_stays_as_it_is_and_a_narrow_one_is_widened(inputs: Array, features: InputFeatures) -> None:
    law = _truth(inputs)
    y, members = _drawn(law), law.sample(10, seed=7)
    assert fit_recalibration(features, y, Samples(members)).changes_nothing
    narrow = Samples(law.loc[:, None] + 0.5 * (members - law.loc[:, None]))
    found = fit_recalibration(features, y, narrow)
    assert np.mean(found.at(embedded(inputs)).factor) == pytest.approx(2.0, abs=0.25)
    again = map_of(map_arrays(found))
    np.testing.assert_array_equal(again.at(embedded(inputs)).factor, found.at(embedded(inputs)).factor)


@pytest.fixture(scope="module")
def halves() -> RehearsalSplit:
    return rehearsal_split(embedded(TWICE), np.arange(2 * N) % 2 == 0, input_kernel=CUBIC)


def test_a_rehearsal_of_an_overconfident_version(halves: RehearsalSplit) -> None:
    law = _truth(TWICE)
    y, held_out = _drawn(law), np.arange(2 * N) % 2 == 1
    prepared = prepare(halves.points, input_kernel=halves.protocol.input_kernel)
    right = prepared.conditional_congruence_error(y[held_out], law[held_out]).mean
    found = recalibration_rehearsal(halves, y, Normal(law.loc, law.scale / 2.0))
    assert found.changes["cce"].before > 1.8 * right
    assert found.changes["cce"].after == pytest.approx(right, rel=0.1)
    assert set(found.changes) == {"nll", "crps", "cce", "mae"}
    judged = [found.changes[name] for name in ("nll", "crps", "cce")]  # a spread that is corrected leaves MAE alone
    assert all(each.after < each.before - 2.0 * each.standard_error for each in judged)
    expected = np.mean(-law[held_out].log_prob(y[held_out]))
    assert found.changes["nll"].after == pytest.approx(expected, abs=0.03)


def test_a_rehearsal_of_counts_and_of_a_true_law(halves: RehearsalSplit) -> None:
    rate = np.exp(0.5 + 0.5 * TWICE[:, 1])
    y = _drawn(NegativeBinomial(rate, np.full(2 * N, 0.8)))
    changed = recalibration_rehearsal(halves, y, Poisson(rate))
    assert changed.changes["nll"].after < changed.changes["nll"].before - 2 * changed.changes["nll"].standard_error
    kept = recalibration_rehearsal(halves, y, NegativeBinomial(rate, np.full(2 * N, 0.8)))
    assert kept.map.changes_nothing
    assert kept.changes["cce"].after == kept.changes["cce"].before


def test_bad_input_is_named(features: InputFeatures, inputs: Array) -> None:
    law = _truth(inputs)
    with pytest.raises(InvalidInputError, match="the features have 600"):
        fit_recalibration(features, np.zeros(5), law[:5])
    few = InputFeatures(features.values[:49], features.landmarks, features.kernel, features.basis)
    with pytest.raises(InvalidInputError, match="49 rows; a recalibration is fitted on at least 50"):
        fit_recalibration(few, law.loc[:49], law[:49])
    with pytest.raises(InvalidInputError, match="no levels to recalibrate"):
        recalibrated(Deterministic([0.0, 1.0]), BENT)
    with pytest.raises(InvalidInputError, match="2 rows for 600"):
        recalibrated(law, BENT)
    with pytest.raises(InvalidInputError, match="one draw per row"):
        recalibrated(Samples(np.zeros((2, 1))), BENT)
    with pytest.raises(InvalidInputError, match="row 1 does not increase"):
        NormalScoreMap([0.0, 0.0], 1.0, LEVELS, [[0.0, 0.1, 0.2, 0.3, 1.0], [0.0, 0.5, 0.2, 0.3, 1.0]])
    with pytest.raises(InvalidInputError, match="row 0 is -1"):
        NormalScoreMap.affine([0.0], [-1.0])
    with pytest.raises(InvalidInputError, match=r"expected \(m, 32\)"):
        linear_in_kernel(features.kernel, features.landmarks, features.basis, np.zeros((4, 7)))
    assert Form() == Form(None, None, None)


def histograms(temperature: float, bias: float = 0.0) -> tuple[Array, Array, Histogram]:
    """Inputs, targets, and their law in bins as a softmax at another temperature gives it, moved by ``bias``."""
    draw = np.random.default_rng(5)
    x, borders = draw.normal(size=(900, 2)), np.linspace(-9.0, 9.0, 73)
    spread = np.exp(0.3 * x[:, 1])
    y = x[:, 0] + spread * draw.normal(size=900)
    shares = np.diff(ndtr((borders - x[:, :1] - bias) / spread[:, None]), axis=1) ** (1.0 / temperature)
    return x, y, Histogram(borders, shares / shares.sum(axis=1, keepdims=True), tail_share=0.5)


@pytest.mark.parametrize(("temperature", "bias"), [(0.5, 0.0), (2.0, 0.0), (1.0, 0.0), (0.5, 0.8)])
def test_bins_are_first_taken_at_another_temperature(temperature: float, bias: float) -> None:
    x, y, law = histograms(temperature, bias)
    features = input_features(input_spectrum(x, CUBIC, 0.1), x)
    fitted = fit_recalibration(features, y, law)
    found, truth = fitted(x, law), histograms(1.0)[2]
    assert abs(float(found.log_prob(y).mean() - truth.log_prob(y).mean())) < 0.02
    if bias == 0.0:  # the law stays a histogram, and nothing else is corrected
        assert isinstance(found, Histogram)
        assert fitted.form.is_a_temperature
        assert (fitted.form.temperature or 1.0) == pytest.approx(1.0 / temperature, rel=0.15)
    else:
        assert fitted.form.shift is not None
    with pytest.raises(InvalidInputError, match="has no bins"):
        Form(temperature=2.0).tempered(Normal([0.0], [1.0]))


def test_recalibrated_bins_are_those_of_more_bins():
    """Nodes that did not know where quantiles bend had a mean that was off by .02 and a wave by .1."""
    borders, masses = np.linspace(-4.0, 4.0, 13), np.random.default_rng(3).dirichlet(np.ones(12), 6)
    levels, shares = np.array([0.0, 0.3, 0.6, 1.0]), np.array([0.0, 0.2, 0.7, 1.0])
    law = Histogram(borders, masses)
    bent = recalibrated(law, NormalScoreMap(np.zeros(6), np.ones(6), levels, np.tile(shares, (6, 1))))
    points = np.sort(np.hstack([np.tile(borders, (6, 1)), law.quantile(levels[None, 1:-1])]), axis=1)
    whole = Histogram(points, np.diff(np.interp(law.cdf(points), levels, shares), axis=1))
    t = np.linspace(0.0, 6.0, 13)
    np.testing.assert_allclose(bent.mean(), whole.mean(), rtol=1e-10)
    np.testing.assert_allclose(bent.std(), whole.std(), rtol=1e-10)
    np.testing.assert_allclose(bent.characteristic_function(t), whole.characteristic_function(t), atol=1e-10)
    np.testing.assert_allclose(bent.raw_moments(4), whole.raw_moments(4), rtol=1e-10, atol=1e-10)
    nodes, kernel = np.array([-1.0, 0.3]), Laplacian(1.0)
    found, expected = (each.kernel_expectation(kernel, nodes) for each in (bent, whole))
    np.testing.assert_allclose(found, expected, atol=1e-9)
