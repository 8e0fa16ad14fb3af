"""The congruence test: valid at any n under a true model, powerful under wrong ones, with control over its points."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from unit_splits import CUBIC, unit_rows

from congruence.kernels import (
    RBF,
    Deterministic,
    Distribution,
    Gamma,
    Mixture,
    MultivariateNormal,
    Normal,
    Poisson,
    Samples,
    StudentT,
    prepare,
    variance_gamma,
)
from congruence.kernels.engine import null as significance
from congruence.kernels.engine.congruence_test import benjamini_hochberg
from congruence.kernels.engine.null import drawn_targets, features_of_split
from congruence.kernels.engine.plan import model_output_kernel
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.measures import congruence_test


def regression(n=400, seed=0):
    x = unit_rows(n, 6, seed)
    mean = 10.0 + 3.0 * x[:, 0]
    return x, np.random.default_rng(seed + 1).normal(mean, 1.0), mean


def model(family, x):
    mean = 10.0 + 3.0 * x[:, 0]
    ones = np.ones(len(x))
    return {
        "normal": Normal(mean, np.exp(x[:, 1])),
        "poisson": Poisson(mean),
        "heavy tails": StudentT(1.5 * ones, mean, ones),
        "mixture": Mixture(np.array([0.3, 0.7]), (Normal(mean, ones), Normal(mean + 5.0, ones))),
    }[family]


@pytest.mark.parametrize("family", ["normal", "poisson"])
def test_p_values_are_uniform_when_the_model_is_the_truth(family):
    x = unit_rows(40, 6)
    predictive = model(family, x)
    prepared = prepare(x, input_kernel=CUBIC)
    targets = predictive.sample(200, seed=3)
    tests = [prepared.congruence_test(y, predictive, draws=99, seed=i) for i, y in enumerate(targets.T)]
    # Uniform on {.01, .02, ..., 1}: minus a uniform share of a step, it is uniform on [0, 1].
    share = np.random.default_rng(0).uniform(size=len(tests))
    p_values = np.array([test.p_value for test in tests])
    assert scipy.stats.kstest(p_values - 0.01 * share, "uniform").pvalue > 0.001
    assert np.mean(p_values <= 0.05) < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 200)
    points = np.array([test.point_p_values for test in tests])
    assert np.mean(points) == pytest.approx(0.505, abs=0.03)
    assert np.max(np.mean(points <= 0.05, axis=0)) < 0.05 + 6 * np.sqrt(0.05 * 0.95 / 200)


@pytest.mark.parametrize("members", [1, 8])
def test_p_values_are_uniform_when_the_ensemble_and_the_target_come_from_one_law(members):
    x = unit_rows(40, 6)
    mean = 3.0 * x[:, 0]
    prepared = prepare(x, input_kernel=CUBIC)
    rng = np.random.default_rng(5)
    p_values = []
    for seed in range(200):
        values = rng.normal(mean[:, None], 1.0, size=(len(x), members + 1))
        test = prepared.congruence_test(values[:, 0], Samples(values[:, 1:]), draws=99, seed=seed)
        p_values.append(test.p_value)
    shifted = np.array(p_values) - 0.01 * rng.uniform(size=200)
    assert scipy.stats.kstest(shifted, "uniform").pvalue > 0.001


WRONG = {
    "biased": lambda mean: Normal(mean + 1.0, np.ones(len(mean))),
    "overconfident": lambda mean: Normal(mean, np.full(len(mean), 0.3)),
    "underconfident": lambda mean: Normal(mean, np.full(len(mean), 3.0)),
    "wrong shape": lambda mean: Gamma(0.2 * np.ones(len(mean)), mean / 0.2),
    "ignores the input": lambda mean: Normal(np.full(len(mean), mean.mean()), np.ones(len(mean))),
    "another unit": lambda mean: Normal(mean / 1e6, np.full(len(mean), 1e-6)),
    "a point": lambda mean: Deterministic(mean),
    "biased ensemble": lambda mean: Samples(np.random.default_rng(9).normal(mean[:, None] + 1.0, 1.0, (len(mean), 20))),
}


@pytest.mark.parametrize("family", ["mixture", "heavy tails"])
def test_a_law_without_variance_and_one_with_two_modes_are_tested_like_any_other(family):
    x = unit_rows(100, 6)
    predictive = model(family, x)
    prepared = prepare(x, input_kernel=CUBIC)
    y = predictive.sample(1, seed=8)[:, 0]
    assert prepared.congruence_test(y, predictive, draws=99).p_value > 0.01
    assert prepared.congruence_test(y + 4.0, predictive, draws=99).p_value == 0.01


def test_wrong_models_are_found_out_every_time_and_the_true_one_is_not():
    found: dict[str, list[float]] = {name: [] for name in WRONG}
    for seed in range(3):
        x, y, mean = regression(seed=10 * seed)
        versions: dict[str, Distribution] = {name: make(mean) for name, make in WRONG.items()}
        prepared = prepare(x, input_kernel=CUBIC)
        for name, law in versions.items():
            found[name].append(prepared.congruence_test(y, law, draws=199, seed=seed).p_value)
    assert {name: max(p_values) for name, p_values in found.items()} == dict.fromkeys(WRONG, 0.005)


@pytest.mark.parametrize("at", ["reference", "query"])
def test_the_statistic_is_close_to_the_mean_error(at):
    x, y, mean = regression(150)
    query = None if at == "reference" else unit_rows(30, 6, seed=7)
    predictive, kernel = Normal(mean + 0.4, np.ones(len(y))), RBF(variance_gamma(y))
    found = prepare(x, query=query, input_kernel=CUBIC).evaluate(y, {"": predictive}, output_kernel=kernel)[""]
    assert found.test.statistic == pytest.approx(found.mean, rel=0.03)
    assert found.test.expected == pytest.approx(found.expected, rel=0.05)


def test_a_scale_wrong_by_two_is_seen_however_heavy_the_tails():
    rng, n, found = np.random.default_rng(11), 500, []
    for seed in range(8):
        x = rng.standard_normal((n, 2))
        truth = StudentT(np.full(n, 1.2), x[:, 0], np.ones(n))
        y = truth.sample(1, seed=seed)[:, 0]
        laws = truth, StudentT(np.full(n, 1.2), x[:, 0], np.full(n, 2.0))
        prepared = prepare(x, input_kernel=RBF(0.2))
        found.append([prepared.congruence_test(y, law, draws=199, seed=seed).p_value for law in laws])
    right, wrong = np.transpose(found)
    assert np.sum(wrong <= 0.05) >= 5, wrong
    assert np.sum(right <= 0.05) <= 2, right


def test_it_finds_the_region_where_a_model_is_wrong():
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0.0, 1.0, 1000))
    wrong = x > 0.7
    y = rng.normal(np.where(wrong, 1.5, 0.0), 1.0)
    test = congruence_test(x[:, None], y, Normal(np.zeros(1000), np.ones(1000)), input_kernel=RBF(200.0), draws=999)
    significant = test.significant_points(0.05)
    assert np.mean(significant[x > 0.75]) > 0.95
    assert np.mean(significant[x < 0.5]) < 0.1


def test_vector_targets_are_tested_jointly():
    x, _, mean = regression(500)
    rng = np.random.default_rng(2)
    centre = np.stack([mean, -mean], axis=1)
    noise = rng.multivariate_normal([0.0, 0.0], [[1.0, 0.9], [0.9, 1.0]], size=len(x))
    independent = MultivariateNormal(centre, np.ones_like(centre))
    prepared = prepare(x, input_kernel=CUBIC)
    arguments = {"draws": 199, "output_kernel": RBF(0.5)}
    assert prepared.congruence_test(independent.sample(1)[:, 0], independent, **arguments).p_value > 0.01
    assert prepared.congruence_test(centre + noise, independent, **arguments).p_value == 0.005


def test_the_same_seed_gives_the_same_test_and_versions_share_one_preparation():
    x, y, mean = regression(100)
    versions = {"a": Normal(mean, np.ones(100)), "b": Normal(mean + 0.3, np.ones(100))}
    prepared = prepare(x, input_kernel=CUBIC)
    together = prepared.evaluate(y, versions, draws=49, seed=4)["b"].test
    alone = prepared.congruence_test(y, versions["b"], draws=49, seed=4)
    np.testing.assert_array_equal(together.null_statistics, alone.null_statistics)
    np.testing.assert_array_equal(together.point_p_values, alone.point_p_values)


def test_a_long_split_is_smoothed_in_fewer_directions_which_tell_the_same(monkeypatch):
    x, y, mean = regression(400)
    prepared, model = prepare(x, input_kernel=CUBIC), Normal(mean, np.ones(400))
    every = prepared.congruence_test(y, model, draws=199)
    monkeypatch.setattr(significance, "MANY_ROWS", 300)
    fewer = prepared.congruence_test(y, model, draws=199)
    filters = prepared.smoother.filters
    assert filters[: significance.tested_directions(filters, 400)].min() >= 0.05 > filters.min()
    assert np.mean(np.abs(fewer.point_p_values - every.point_p_values)) < 0.02
    assert abs(fewer.p_value - every.p_value) < 0.1


def test_simulated_errors_have_no_mean_and_the_observed_one_is_in_the_same_coordinates():
    x = unit_rows(50, 6)
    predictive = Normal(3.0 * x[:, 0], np.full(50, 0.5))
    y = predictive.sample(1)[:, 0]
    features = features_of_split(y, predictive, model_output_kernel(y, predictive))
    delta, rank = features.against(y, predictive), features.directions.shape[1]
    drawn = delta(drawn_targets(y, predictive, np.arange(50), 4000, 0))
    assert drawn.shape == (50, 4000, rank)
    assert delta(y[:, None]).shape == (50, 1, rank)
    error = np.std(drawn, axis=1) / np.sqrt(4000) + 1e-6
    assert np.all(np.abs(np.mean(drawn, axis=1)) < 5.0 * error)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=60))
def test_benjamini_hochberg_is_the_one_of_scipy(p_values):
    np.testing.assert_allclose(
        benjamini_hochberg(np.array(p_values)), scipy.stats.false_discovery_control(p_values), rtol=1e-12
    )


def test_bad_input_is_named():
    x, y, mean = regression(30)
    with pytest.raises(InvalidInputError, match="draws: 0"):
        congruence_test(x, y, Normal(mean, np.ones(30)), input_kernel=CUBIC, draws=0)
    with pytest.raises(InvalidInputError, match="probabilities"):
        benjamini_hochberg(np.array([0.5, np.nan]))


def test_one_long_row_does_not_blind_the_test():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1000, 8))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    mean = np.sin(x[:, 0])
    y, model = rng.normal(mean, 1.0), Normal(mean + 1.2 * x[:, 1], np.ones(1000))
    x[0] *= 10.0
    test = congruence_test(x.astype(np.float32), y, model, draws=99, input_kernel=CUBIC)
    assert test.p_value == 0.01


def test_fewer_draws_are_the_first_of_more():
    x, y, mean = regression(300)
    prepared, model = prepare(x, input_kernel=CUBIC), Normal(mean + 0.1, np.ones(300))
    few, many = (prepared.congruence_test(y, model, draws=draws, seed=3) for draws in (199, 999))
    np.testing.assert_allclose(few.null_statistics, many.null_statistics[:199], rtol=1e-7)
    assert few.statistic == pytest.approx(many.statistic, rel=1e-7)
    assert abs(few.p_value - many.p_value) < 3.0 * np.sqrt(many.p_value / 200)
