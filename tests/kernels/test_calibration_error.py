"""SKCE and UCME against their definitions: closed forms, quadrature, the published values."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from congruence.kernels import RBF, Linear
from congruence.kernels.distributions import (
    Deterministic,
    Laplace,
    Mixture,
    MultivariateNormal,
    Normal,
    Poisson,
    Samples,
)
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_calibration import pairs
from congruence.kernels.kernel_calibration.estimators import (
    block_test,
    calibration_test,
    pair_estimate,
    squared_kernel_calibration_error,
    unnormalized_calibration_mean_embedding,
)
from congruence.kernels.kernel_calibration.pairs import pair_terms
from congruence.kernels.kernel_calibration.prediction_kernels import MaximumMeanDiscrepancy, Wasserstein
from congruence.kernels.rng import stream

SQUARED_EXPONENTIAL = RBF(0.5)


def definition(predictive: Normal, y: np.ndarray, gamma: float, k_p: np.ndarray) -> np.ndarray:
    """h_ij for normals and k_Y = exp(-gamma d^2) from the four expectations of the paper."""
    v, mu, s2 = 1 / (2 * gamma), predictive.loc, predictive.scale**2

    def expectation(distance: np.ndarray, spread: np.ndarray | float) -> np.ndarray:
        return np.sqrt(v / (v + spread)) * np.exp(-(distance**2) / (2 * (v + spread)))

    target = (
        expectation(y[:, None] - y, 0.0)
        - expectation(mu[:, None] - y, s2[:, None])
        - expectation(y[:, None] - mu, s2[None, :])
        + expectation(mu[:, None] - mu, s2[:, None] + s2)
    )
    return k_p * target


def normal_data(n: int, seed: int = 0) -> tuple[Normal, np.ndarray]:
    rng = np.random.default_rng(seed)
    loc, scale = rng.normal(size=n), rng.uniform(0.3, 2, size=n)
    return Normal(loc, scale), loc + 0.5 + scale * rng.normal(size=n)


@pytest.mark.parametrize(
    ("loc", "scale", "y", "unbiased", "biased"),
    [
        ([0, 0], [1, 1], [0, 0], 0.1631367068165, 0.1631367068165),
        ([0, 1], [1, 2], [1, 0], -0.04186060698828, 0.22906514215363),
        ([0, 1], [1, 2], [0, 1], 0.00651220001294, 0.15376681229396),
    ],
)
def test_published_values(loc, scale, y, unbiased, biased):
    predictive = Normal(np.array(loc, float), np.array(scale, float))
    for estimator, value in (("unbiased", unbiased), ("biased", biased), ("block", unbiased)):
        options = {"block_size": 2} if estimator == "block" else {}
        result = squared_kernel_calibration_error(
            np.array(y, float), predictive, output_kernel=SQUARED_EXPONENTIAL, estimator=estimator, **options
        )
        assert result == pytest.approx(value, abs=2e-13)


@pytest.mark.parametrize(("size", "value"), [(2, 0.025842508143307), (10, 0.013163914212319)])
def test_blocks_of_consecutive_rows_have_the_published_values(size, value):
    numbers = random.Random(1234)
    loc, scale = np.transpose([(numbers.gauss(0, 1), numbers.random()) for _ in range(100)])
    y = np.array([numbers.gauss(0, 1) for _ in range(100)])
    options = {"prediction_kernel": Wasserstein(), "output_kernel": RBF(0.5), "estimator": "block", "block_size": size}
    result = squared_kernel_calibration_error(y, Normal(loc, scale), shuffle=False, **options)
    assert result == pytest.approx(value, abs=1e-14)
    assert result != squared_kernel_calibration_error(y, Normal(loc, scale), **options)
    terms = pair_terms(Normal(loc, scale), y, Wasserstein(), RBF(0.5))
    assert block_test(terms, size, shuffle=False).estimate == pytest.approx(value, abs=1e-14)
    test = calibration_test(
        y, Normal(loc, scale), method="block", block_size=size, output_kernel=RBF(0.5), shuffle=False
    )
    assert test.estimate == pytest.approx(value, abs=1e-14)
    with pytest.raises(InvalidInputError, match="no meaning"):
        squared_kernel_calibration_error(y, Normal(loc, scale), shuffle=False)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_estimators_equal_their_definitions(exponent):
    predictive, y = normal_data(40)
    parameters = np.column_stack([predictive.loc, predictive.scale])
    h = definition(predictive, y, 0.7, np.exp(-0.8 * cdist(parameters, parameters) ** exponent))
    options = {"prediction_kernel": Wasserstein(0.8, exponent), "output_kernel": RBF(0.7)}
    off = h - np.diag(np.diag(h))
    assert squared_kernel_calibration_error(y, predictive, **options) == pytest.approx(off.sum() / (40 * 39), abs=1e-13)
    biased = squared_kernel_calibration_error(y, predictive, estimator="biased", **options)
    assert biased == pytest.approx(h.mean(), abs=1e-13)
    order = stream(3, "blocks of rows").permutation(40)
    blocks = [off[np.ix_(rows, rows)].sum() / 12 for rows in order.reshape(10, 4)]
    block = squared_kernel_calibration_error(y, predictive, estimator="block", block_size=4, seed=3, **options)
    assert block == pytest.approx(np.mean(blocks), abs=1e-13)


def test_blocks_and_tiles_change_nothing(monkeypatch):
    predictive, y = normal_data(120)
    whole = squared_kernel_calibration_error(y, predictive)
    monkeypatch.setattr(pairs, "TILE", 7)
    assert squared_kernel_calibration_error(y, predictive) == pytest.approx(whole, rel=1e-12, abs=1e-16)


@given(st.integers(2, 30), st.integers(0, 10**6), st.floats(0.05, 5.0), st.sampled_from([0.7, 1.0, 2.0]))
@settings(max_examples=25, deadline=None)
def test_biased_is_never_negative_and_rows_have_no_order(n, seed, scale, exponent):
    predictive, y = normal_data(n, seed)
    kernel = Wasserstein(scale, exponent)
    order = np.random.default_rng(seed).permutation(n)
    biased = squared_kernel_calibration_error(y, predictive, prediction_kernel=kernel, estimator="biased")
    assert biased >= 0.0
    assert squared_kernel_calibration_error(y[order], predictive[order], prediction_kernel=kernel) == pytest.approx(
        squared_kernel_calibration_error(y, predictive, prediction_kernel=kernel), rel=1e-9, abs=1e-13
    )


def test_unbiased_estimates_of_a_calibrated_model_average_to_zero():
    rng = np.random.default_rng(0)
    loc, scale = rng.normal(size=(200, 20)), rng.uniform(0.5, 2, size=(200, 20))
    y = loc + scale * rng.normal(size=(200, 20))
    estimates = [
        squared_kernel_calibration_error(row[2], Normal(*row[:2]), output_kernel=SQUARED_EXPONENTIAL)
        for row in zip(loc, scale, y, strict=True)
    ]
    assert abs(np.mean(estimates)) < 4 * np.std(estimates) / np.sqrt(200)


def wasserstein(a, b) -> np.ndarray:
    first, second = Wasserstein().coordinates([a, b], RBF(1.0))
    return np.linalg.norm(first - second, axis=1)


def test_wasserstein_distances_of_closed_families():
    a, b = Normal(np.array([1.0, 0]), np.array([2.0, 1])), Normal(np.array([4.0, 0]), np.array([6.0, 3]))
    np.testing.assert_allclose(wasserstein(a, b), [5.0, 2.0], rtol=1e-12)
    a, b = Laplace(np.array([1.0]), np.array([2.0])), Laplace(np.array([0.0]), np.array([5.0]))
    np.testing.assert_allclose(wasserstein(a, b), np.sqrt(1 + 2 * 9), rtol=1e-12)


def test_wasserstein_distances_by_quantiles():
    """A mixture of one component is that component; families mix; samples are sorted; points are points."""
    rng = np.random.default_rng(0)
    a = Normal(rng.normal(size=5), rng.uniform(0.5, 2, 5))
    b = Normal(rng.normal(size=5), rng.uniform(0.5, 2, 5))
    lifted = [Mixture(np.ones((5, 1)), (part,)) for part in (a, b)]
    np.testing.assert_allclose(wasserstein(*lifted), wasserstein(a, b), rtol=1e-4)
    draws = rng.normal(size=(2, 3, 8))
    expected = np.sqrt(np.mean((np.sort(draws[0]) - np.sort(draws[1])) ** 2, axis=1))
    np.testing.assert_allclose(wasserstein(Samples(draws[0]), Samples(draws[1])), expected, rtol=1e-8)
    points = Deterministic(np.array([0.0, 3.0, 1.0, 2.0, 5.0]))
    np.testing.assert_allclose(wasserstein(a, points), np.hypot(a.loc - points.mean(), a.scale), rtol=1e-4)


@pytest.mark.parametrize(
    "kernel",
    [
        Wasserstein(),
        Wasserstein(None),
        MaximumMeanDiscrepancy(),
        MaximumMeanDiscrepancy(kernel=RBF(2.0), scale=3.0, exponent=2.0),
    ],
    ids=["wasserstein", "median scale", "mmd", "own mmd"],
)
def test_every_kernel_works_for_every_kind_of_prediction(kernel):
    rng = np.random.default_rng(0)
    n, rates = 25, rng.uniform(1, 9, 25)
    normal = Normal(rng.normal(size=n), rng.uniform(0.5, 2, n))
    kinds = [
        normal,
        Laplace(normal.loc, normal.scale),
        Poisson(rates),
        Samples(rng.normal(size=(n, 6))),
        Mixture(np.full((n, 2), 0.5), (normal, Normal(normal.loc + 2, normal.scale))),
    ]
    for predictive in kinds:
        y = predictive.sample(1, seed=1)[:, 0]
        biased = squared_kernel_calibration_error(y, predictive, prediction_kernel=kernel, estimator="biased")
        assert 0.0 < biased < 1.0
        assert np.isfinite(squared_kernel_calibration_error(y, predictive, prediction_kernel=kernel))


def test_vector_normals_equal_the_definition():
    """One target: the scalar family. More: every expectation is the product over the targets."""
    predictive, y = normal_data(30)
    lifted = MultivariateNormal(predictive.loc[:, None], predictive.scale[:, None])
    terms = pair_terms(lifted, y[:, None], output_kernel=RBF(0.7) + RBF(3.0))
    parameters = np.column_stack([predictive.loc, predictive.scale])
    k_p = np.exp(-cdist(parameters, parameters))
    h = definition(predictive, y, 0.7, k_p) + definition(predictive, y, 3.0, k_p)
    np.testing.assert_allclose(terms.h(slice(None), slice(None)), h, atol=1e-13)
    np.testing.assert_allclose(terms.diagonal(), np.diag(h), atol=1e-13)
    second, z = normal_data(30, seed=9)
    loc, scale = (np.column_stack([getattr(part, name) for part in (predictive, second)]) for name in ("loc", "scale"))
    pair = MultivariateNormal(loc, scale)
    draws = pair.sample(20_000, seed=0)
    targets = np.column_stack([y, z])
    i, j = 3, 8

    def gram(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.exp(-0.7 * np.sum((a - b) ** 2, axis=-1)).mean())

    expected = (
        gram(targets[i], targets[j])
        - gram(draws[i], targets[j])
        - gram(targets[i], draws[j])
        + gram(draws[i], draws[j])
    )
    near = np.exp(-np.linalg.norm(np.hstack([loc[i] - loc[j], scale[i] - scale[j]])))
    found = pair_terms(pair, targets, output_kernel=RBF(0.7)).h([i], [j])[0, 0]
    assert found == pytest.approx(near * expected, abs=0.01)
    exact = squared_kernel_calibration_error(targets, pair, output_kernel=RBF(0.7), estimator="biased")
    assert 0 < exact < 1


def test_pairs_of_near_tiles_are_an_unbiased_part_of_all(monkeypatch):
    """Of rows in random order each is compared with some others, by the same h."""
    monkeypatch.setattr(pairs, "TILE", 8)
    predictive, y = normal_data(100)
    terms = pair_terms(predictive, y)
    met = np.zeros((100, 100))
    for i, j in pairs.tile_pairs(100, 32):
        met[i, j] += 1
        met[j, i] = met[i, j].T
    assert set(met.ravel()) == {0.0, 1.0}
    np.fill_diagonal(met, 0.0)
    assert 32 <= met.sum(axis=1).min() <= met.sum(axis=1).max() <= 39
    h = terms.h(slice(None), slice(None))
    assert pair_estimate(terms, reach=32) == pytest.approx((h * met).sum() / met.sum(), abs=1e-14)
    weights = np.random.default_rng(0).uniform(size=100)
    counted = np.outer(weights, weights) * met
    found = pair_estimate(terms, reach=32, weights=weights)
    assert found == pytest.approx((h * counted).sum() / counted.sum(), abs=1e-14)
    signs = np.random.default_rng(1).choice(np.array([-1, 1], dtype=np.int8), (100, 3))
    total, count, sums = pairs.signed_sums(terms, signs, 32)
    assert total == pytest.approx((h * met).sum(), abs=1e-12)
    assert count == met.sum()
    expected = np.einsum("ik,ij,jk->k", signs, h * met, signs)
    np.testing.assert_allclose(sums, expected, atol=1e-12)
    _, _, rounded = pairs.signed_sums(terms, signs, 32, np.float32)
    np.testing.assert_allclose(rounded, expected, atol=1e-6 * np.abs(h * met).sum())


def test_a_p_value_does_not_change_with_the_unit_of_the_targets():
    rng = np.random.default_rng(2)
    x, noise = rng.normal(size=300), rng.normal(size=300)

    def p_value(unit: float) -> float:
        law = Normal(unit * x, np.full(300, 1.02 * unit))
        options = {"prediction_kernel": Wasserstein(scale=None), "output_kernel": Linear(), "replicates": 199}
        return calibration_test(unit * (x + noise), law, **options).p_value

    assert 0.0 < p_value(1.0) < 1.0
    assert p_value(1e30) == p_value(1e-15) == p_value(1.0)


def test_vector_targets():
    rng = np.random.default_rng(0)
    center = rng.normal(size=(60, 1, 3))
    predictive = Samples(center + rng.normal(size=(60, 20, 3)))
    good, bad = center[:, 0] + rng.normal(size=(60, 3)), center[:, 0] + 1.0 + rng.normal(size=(60, 3))
    options = {"prediction_kernel": MaximumMeanDiscrepancy(scale=None), "output_kernel": RBF(0.1)}
    calibrated = squared_kernel_calibration_error(good, predictive, **options)
    assert abs(calibrated) < 0.01 < squared_kernel_calibration_error(bad, predictive, **options)
    with pytest.raises(InvalidInputError, match="MaximumMeanDiscrepancy"):
        squared_kernel_calibration_error(good, predictive)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, y: squared_kernel_calibration_error(y[:-1], p), "9 rows"),
        (lambda p, y: squared_kernel_calibration_error(np.full(10, 3.0), p), "all 10 values"),
        (lambda p, y: squared_kernel_calibration_error(np.where(y == y[4], np.nan, y), p), "row 4"),
        (lambda p, y: squared_kernel_calibration_error(y[:1], p[:1], output_kernel=RBF(1.0)), "at least two"),
        (lambda p, y: squared_kernel_calibration_error(y, p, estimator="linear"), "unknown"),
        (lambda p, y: squared_kernel_calibration_error(y, p, block_size=4), "no meaning"),
        (lambda p, y: squared_kernel_calibration_error(y, p, estimator="block", block_size=11), "2 to the 10"),
        (lambda p, y: Wasserstein(scale=0.0), "scale is 0"),
        (lambda p, y: Wasserstein(exponent=2.5), r"\(0, 2\]"),
        (lambda p, y: unnormalized_calibration_mean_embedding(y, p, y[:2], p[:3]), "2 rows"),
    ],
)
def test_bad_input_is_named(call, message):
    predictive, y = normal_data(10)
    with pytest.raises(InvalidInputError, match=message):
        call(predictive, y)
