"""Paired differences of CCE and standard errors of a mean CCE: new targets at the same inputs are what is random."""

import numpy as np
import pytest
from scipy.special import ndtri
from unit_splits import CUBIC, unit_rows

from congruence.kernels import RBF, MultivariateNormal, Normal, Poisson, Quantiles, Samples, prepare
from congruence.kernels.engine import uncertainty
from congruence.kernels.engine.results import difference_of_influences
from congruence.kernels.engine.targets import output_features
from congruence.kernels.errors import InvalidInputError

SPLITS = 80


def test_the_difference_is_that_of_the_mean_squares():
    rng, x = np.random.default_rng(1), unit_rows(120)
    y = x[:, 0] + rng.standard_normal(120)
    first, second = Normal(x[:, 0] + 0.3, np.ones(120)), Normal(x[:, 1], np.full(120, 1.2))
    prepared = prepare(x, input_kernel=CUBIC)
    results = prepared.evaluate(y, {"a": first, "b": second}, draws=0)
    item = prepared.compare(y, first, second)
    assert item.difference == pytest.approx(np.mean(results["a"].values ** 2) - np.mean(results["b"].values ** 2))
    assert item.mean_difference == pytest.approx(results["a"].mean - results["b"].mean)
    for side in (item.difference - item.low, item.high - item.difference):
        assert side == pytest.approx(1.96 * item.standard_error, rel=1e-3)
    reverse = prepared.compare(y, second, first)
    assert reverse.difference == pytest.approx(-item.difference)
    assert reverse.p_value == pytest.approx(item.p_value)


@pytest.mark.parametrize("points", [None, 40])
def test_the_standard_error_is_that_of_the_linear_statistic(points):
    # The definition: D = sum_i <w_i, psi(y_i)> + const, w_i = (2/m) sum_j a_ij d_j, and SE^2 = sum_i <w_i, r_i>^2, here
    # with the true residuals r_i = psi(y_i) - E psi(Y_i).
    rng, n = np.random.default_rng(2), 300
    x, query = unit_rows(n), None if points is None else unit_rows(points, seed=3)
    mean, kernel = x[:, 0] * 0.3, RBF(0.5)
    y = mean + rng.standard_normal(n)
    first, second = Normal(mean + 0.4 * x[:, 1], np.ones(n)), Normal(mean, np.full(n, 1.5))
    item = prepare(x, query=query, input_kernel=CUBIC).compare(y, first, second, output_kernel=kernel)
    at = x if query is None else query
    weights = CUBIC(at, x) @ np.linalg.inv(CUBIC(x) + 0.1 * n * np.eye(n))
    features = output_features(kernel, y, Normal(mean, np.full(n, 1.5)))
    d = weights @ (features.expectation(second) - features.expectation(first))
    w = 2.0 / len(at) * weights.T @ d
    residual = features(y) - features.expectation(Normal(mean, np.ones(n)))
    expected = np.sqrt(np.sum(np.einsum("ij,ij->i", w, residual) ** 2))
    assert item.standard_error == pytest.approx(expected, rel=0.1)


def equally_far(kind, x, rng):
    """Targets of a split and two versions that are as far from their law as each other."""
    zero, n = np.zeros(len(x)), len(x)
    if kind == "counts":
        rate = 4.0 + 2.0 * x[:, 0]
        return rng.poisson(rate).astype(float), [Poisson(rate * np.exp(sign * 0.1 * x[:, 1])) for sign in (1.0, -1.0)]
    if kind == "normals":
        return rng.standard_normal(n), [Normal(zero + shift, zero + 1.0) for shift in (0.2, -0.2)]
    # Of the truth: the Monte-Carlo term is taken off, so that they differ by their own error alone.
    members = [Samples(rng.standard_normal((n, size))) for size in (5, 10)]
    return rng.standard_normal(n), members


@pytest.mark.parametrize(
    ("kind", "n", "seed", "kernel", "near"),
    [("normals", 150, 4, RBF(0.5), 0.25), ("counts", 100, 5, None, 0.25), ("ensembles", 150, 6, RBF(0.5), 0.3)],
)
def test_versions_as_far_from_the_truth_are_told_apart_as_often_as_the_level_says(kind, n, seed, kernel, near):
    rng, x, found = np.random.default_rng(seed), unit_rows(n), []
    prepared = prepare(x, input_kernel=CUBIC)
    for _ in range(SPLITS):
        y, versions = equally_far(kind, x, rng)
        item = prepared.compare(y, *versions, output_kernel=kernel)
        found.append((item.difference, item.standard_error, item.p_value))
    differences, errors, p_values = np.transpose(found)
    assert np.mean(p_values < 0.05) <= 0.125  # 400 splits: .05; this many: four standard errors above
    assert np.std(differences) == pytest.approx(np.mean(errors), rel=near)
    if kind == "ensembles":
        assert abs(np.mean(differences)) < 4.0 * np.std(differences) / np.sqrt(SPLITS)


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.1, 1.1), (0.8, 0.6)])
def test_intervals_of_the_mean_cover_what_new_targets_give_on_average(shift, scale):
    n, rng, x = 200, np.random.default_rng(8), unit_rows(200)
    mean = np.sin(2.0 * x[:, 0])
    prepared = prepare(x, input_kernel=CUBIC)
    model = Normal(mean + shift * x[:, 1], np.full(n, scale))
    found = []
    for _ in range(SPLITS):
        y = mean + rng.standard_normal(n)
        result = prepared.evaluate(y, model, output_kernel=RBF(0.4), draws=0)
        found.append((result.mean, *result.interval(), *result.excess_interval()))
    means, low, high, excess_low, _ = np.transpose(found)
    covered = np.mean((low <= np.mean(means)) & (np.mean(means) <= high))
    assert covered >= 0.88
    assert np.mean((high - low) / (2.0 * ndtri(0.975))) == pytest.approx(np.std(means), rel=0.25)
    if scale == 1.0:
        assert np.mean(excess_low == 0.0) >= 0.9


def test_influences_of_two_splits_do_not_compare():
    zero = np.zeros(60)
    results = [
        prepare(unit_rows(n), input_kernel=CUBIC).conditional_congruence_error(
            np.random.default_rng(n).standard_normal(n), Normal(zero[:n], zero[:n] + 1.0)
        )
        for n in (50, 60)
    ]
    influences = [result.uncertainty.influence for result in results]
    with pytest.raises(InvalidInputError, match="50 and 60 reference rows"):
        difference_of_influences(*influences)


def test_errors_of_many_directions_are_known_by_the_leading_ones(monkeypatch):
    # Ten targets fill hundreds of directions, of which the last vary too little to be drawn.
    n, rng, x = 320, np.random.default_rng(9), unit_rows(320)
    y = rng.standard_normal((n, 10))
    model = MultivariateNormal(np.full((n, 10), 0.1), np.ones((n, 10)))
    prepared = prepare(x, input_kernel=CUBIC)
    found = []
    for axes in (128, 1000):
        monkeypatch.setattr(uncertainty, "MAX_AXES", axes)
        result = prepared.evaluate(y, model, output_kernel=RBF(0.1), draws=0)
        found.append(result.uncertainty)
    few, whole = found
    assert few.standard_error == pytest.approx(whole.standard_error, rel=0.1)
    assert few.squared_standard_error == pytest.approx(whole.squared_standard_error, rel=0.1)
    assert np.mean(few.influence.noise) == pytest.approx(np.mean(whole.influence.noise), rel=0.02)


def test_versions_of_stated_cells_are_compared_without_the_noise_of_their_own_targets():
    """Targets are put into each version's own cells: right quantiles at 3 levels were above right ones at 9."""
    rng, n, splits = np.random.default_rng(0), 300, 40
    x = rng.standard_normal((n, 2))
    split, spread = prepare(x, input_kernel=RBF(0.5), regularization=0.01), np.exp(0.3 * x[:, 1:])

    def quantiles(levels, factor=1.0):
        return Quantiles(levels, x[:, :1] + factor * spread * ndtri(np.array(levels)))

    few, more, found = [0.05, 0.5, 0.95], np.arange(1, 10) / 10, []
    for seed in range(splits):
        y = (x[:, :1] + spread * rng.standard_normal((n, 1)))[:, 0]
        pairs = ((quantiles(few), quantiles(more)), (quantiles(few, 0.7), quantiles(few)))
        results = [split.compare(y, *pair, seed=seed) for pair in pairs]
        found.append([(each.difference / each.standard_error, each.p_value) for each in results])
    right, narrow = np.array(found).transpose(1, 2, 0)
    assert abs(np.mean(right[0])) < 3.0 / np.sqrt(splits)
    assert np.mean(right[1] <= 0.05) <= 0.15
    assert np.mean(narrow[0]) > 1.0
    same = split.compare(y, quantiles(few), quantiles(few))
    assert (same.difference, same.p_value) == (0.0, 1.0)
