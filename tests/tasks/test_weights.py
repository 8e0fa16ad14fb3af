"""Weights: in every mean of what rows have, weight 2 is that row twice; in errors two copies are one observation."""

from collections.abc import Mapping
from dataclasses import astuple, replace

import numpy as np
import pandas as pd
import pytest

from congruence.kernels import (
    RBF,
    Distribution,
    InvalidInputError,
    Normal,
    Poisson,
    Polynomial,
    conditional_calibration_test,
    pit_values,
    prepare,
    reliability_curve,
    squared_kernel_calibration_error,
)
from congruence.kernels.conditional_calibration.effects import Effect, LeaveOneOut
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.engine.blocks import BlockSums
from congruence.kernels.kernel_calibration.prediction_kernels import Wasserstein
from congruence.kernels.resampling import PairedResampling, ScoreStatistics, mean_of, root_of
from congruence.kernels.rng import hashed_keys
from congruence.kernels.scores import point_scores
from congruence.tasks.plots import pit_histogram
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.scores.metrics.registry import metric_names
from congruence.tasks.scores.summary import MeanMetrics, values_of

ROWS = 400
TESTS_OF_ROWS = ("skce_p_value", "pit_ks_p_value", "pit_cvm_p_value", "pit_chi2_p_value")


def version(kind: str, seed: int = 0) -> tuple[Distribution, np.ndarray, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=ROWS)
    if kind == "normal":
        law: Distribution = Normal(mean, np.exp(0.3 * rng.normal(size=ROWS)))
        y = rng.normal(mean + 0.2, 1.0)
    else:
        law, y = Poisson(np.exp(mean - 1.0)), rng.poisson(np.exp(mean - 0.8)).astype(float)
    points = {"cce": rng.random(ROWS), "cce_noise_floor": rng.random(ROWS), **point_scores(law, y)}
    points["pit"] = pit_values(y, law, seed=0, keys=np.arange(ROWS))
    return law, y, points


@pytest.mark.parametrize("kind", ["normal", "counts"])
def test_weight_two_is_the_row_twice_in_every_metric(kind: str) -> None:
    law, y, points = version(kind)
    weights = np.random.default_rng(1).integers(0, 4, ROWS).astype(float)
    labels = pd.DataFrame({"part": np.arange(ROWS) % 5})
    copies = np.repeat(np.arange(ROWS), weights.astype(int))
    keys = hashed_keys(np.arange(ROWS))

    whole = Rows(points, y, law, weights, keys=keys)
    copied = Rows({k: v[copies] for k, v in points.items()}, y[copies], law[copies], keys=keys[copies])
    weighted = MeanMetrics(metric_names(), whole)
    repeated = MeanMetrics(metric_names(), copied)
    found, expected = weighted.values(), repeated.values()
    assert found.pop("effective_rows").value == pytest.approx(weights.sum() ** 2 / (weights**2).sum())
    assert {"nll_mean", "crps_mean", "crps_skill", "mae", "rmse", "ece", "coverage_50", "width_90"} <= set(found)
    assert ("actual_over_expected" in found) == ("deviance" in found) == (kind == "counts")
    found |= values_of(metric_names(), whole)
    expected |= values_of(metric_names(), copied)
    assert found.keys() == expected.keys()
    found.pop("skce"), expected.pop("skce")  # of pairs of different rows: two copies are a pair
    for name in set(expected) - set(TESTS_OF_ROWS):
        assert found[name].value == pytest.approx(expected[name].value, rel=1e-9, abs=1e-12), name
    means, there = weighted.statistics().means(), repeated.statistics().means()
    assert means["cce_mean"] == pytest.approx(there["cce_mean"], rel=1e-12)

    slices = weighted.slice_table(labels).drop(columns="effective_rows")
    assert slices["rows"].tolist() == [ROWS // 5] * 5
    expected_slices = repeated.slice_table(labels.iloc[copies])
    columns = [name for name in expected_slices.columns if name != "rows"]
    pd.testing.assert_frame_equal(slices[columns], expected_slices[columns], rtol=1e-9)


def test_intervals_are_those_of_the_observations_and_not_of_copies() -> None:
    _, _, points = version("normal")
    weights = np.random.default_rng(2).exponential(size=ROWS)
    found = ScoreStatistics.of({"mae": points["absolute_error"]}, weights=weights).estimates()["mae"]
    apart = points["absolute_error"] - np.average(points["absolute_error"], weights=weights)
    error = float(np.linalg.norm(weights * apart) / np.sum(weights))
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(error, rel=0.08)
    times_nine = ScoreStatistics.of({"mae": points["absolute_error"]}, weights=9.0 * weights).estimates()["mae"]
    same = ScoreStatistics.of({"mae": points["absolute_error"]}, weights=weights).estimates()["mae"]
    assert astuple(times_nine) == pytest.approx(astuple(same), rel=1e-12)


def test_a_row_of_weight_zero_counts_nothing_even_where_its_score_is_infinite() -> None:
    scores = np.array([np.inf, 1.0, 3.0])
    found = ScoreStatistics.of({"nll": scores}, weights=np.array([0.0, 1.0, 1.0]))
    assert found.means() == {"nll": 2.0}
    assert (found.rows, found.effective_rows) == (3, 2.0)


@pytest.mark.parametrize("summary", [mean_of, root_of])
def test_paired_differences_are_weighted(summary: object) -> None:
    rng = np.random.default_rng(4)
    first, second = rng.random((ROWS, 1)), rng.random((ROWS, 1))
    weights = rng.integers(0, 3, ROWS).astype(float)
    copies = np.repeat(np.arange(ROWS), weights.astype(int))
    found = PairedResampling(ROWS, weights=weights / weights.mean()).compare(first, second, summary)  # type: ignore[arg-type]
    there = PairedResampling(len(copies)).compare(first[copies], second[copies], summary)  # type: ignore[arg-type]
    assert (found.first, found.second) == pytest.approx((there.first, there.second), rel=1e-12)
    assert found.high - found.low > there.high - there.low  # copies are no observations


def test_a_mean_cce_under_weights_of_0_and_1_is_that_over_the_rows_that_count() -> None:
    rng = np.random.default_rng(5)
    n = 300
    x = rng.normal(size=(n, 3))
    y = rng.normal(x[:, 0], 1.0)
    law = Normal(x[:, 0] + 0.4 * (x[:, 1] > 0), np.ones(n))
    counts = (x[:, 1] > 0.3).astype(float)
    kernel = Polynomial(3, 1.0, 1.0)
    weighted = prepare(x, input_kernel=kernel, weights=counts).evaluate(y, {"": law}, draws=99)[""]
    some = prepare(x, query=x[counts > 0], input_kernel=kernel).evaluate(y, {"": law}, draws=0)[""]
    equal = prepare(x, input_kernel=kernel).evaluate(y, {"": law}, draws=99)[""]

    np.testing.assert_array_equal(weighted.values, equal.values)  # the estimate of the law is what it was
    assert weighted.p_value == equal.p_value
    assert weighted.mean == pytest.approx(some.mean, rel=1e-9)
    assert weighted.noise_floor == pytest.approx(some.noise_floor, rel=1e-9)
    assert weighted.squared_mean_interval() == pytest.approx(some.squared_mean_interval(), rel=1e-3)
    assert weighted.interval() == pytest.approx(some.interval(), rel=1e-3)
    assert astuple(weighted.band) == pytest.approx(astuple(some.band), rel=1e-3)
    for name in ("root", "squared"):
        one, two = (getattr(each.uncertainty.influence, name) for each in (weighted, some))  # type: ignore[union-attr]
        np.testing.assert_allclose(one, two, atol=1e-4 * np.abs(two).max())
    assert weighted.mean_error_bound >= abs(weighted.mean - some.mean)
    twice = replace(weighted, weights=None if weighted.weights is None else 2.0 * weighted.weights)
    assert twice.mean == pytest.approx(weighted.mean, rel=1e-12)


@pytest.mark.parametrize("kind", ["normal", "counts"])
def test_weight_two_is_the_row_twice_in_numbers_of_the_pit_and_of_pairs(kind: str) -> None:
    law, y, points = version(kind)
    weights = np.random.default_rng(1).integers(0, 4, ROWS).astype(float)
    copies = np.repeat(np.arange(ROWS), weights.astype(int))
    pit, kernel, scale = points["pit"], RBF(0.5), Wasserstein(1.0)
    found, there = reliability_curve(pit, row_weights=weights), reliability_curve(pit[copies])
    np.testing.assert_allclose(found[1], there[1], rtol=1e-12)
    axes = [pit_histogram(pit, weights=weights), pit_histogram(pit[copies])]
    bars, others = (each.patches[0].get_data().values for each in axes)
    np.testing.assert_allclose(bars, others, rtol=1e-12)

    def pairs(rows: np.ndarray, **settings: object) -> float:
        chosen = {"prediction_kernel": scale, "output_kernel": kernel, "estimator": "biased"}
        return squared_kernel_calibration_error(y[rows], law[rows], **(chosen | settings))  # type: ignore[arg-type]

    every = np.arange(ROWS)
    assert pairs(every, weights=weights) == pytest.approx(pairs(copies), rel=1e-8)  # at a distance of rounding
    ones = np.ones(ROWS)
    for estimator in ("biased", "unbiased"):
        equal = pairs(every, estimator=estimator)
        assert pairs(every, weights=2.0 * ones, estimator=estimator) == pytest.approx(equal, rel=1e-9)
    some = (np.arange(ROWS) % 3 == 0).astype(float)
    counted = pairs(np.flatnonzero(some), estimator="unbiased")
    assert pairs(every, weights=some, estimator="unbiased") == pytest.approx(counted, rel=1e-9)


def test_an_effect_under_weights_is_the_weighted_mean_with_the_error_of_the_rows_as_they_are() -> None:
    """Against the definition by matrices; the regression on the other rows stays as it was."""
    rng = np.random.default_rng(0)
    vectors, eigenvalues = np.linalg.qr(rng.standard_normal((200, 12)))[0], np.geomspace(1.0, 1e-3, 12)
    scores, weights = rng.standard_normal((200, 4)) + 0.3, rng.exponential(size=200)
    weights /= weights.mean()
    kept = LeaveOneOut.of(eigenvalues, 1e-2).weights
    H = (vectors[:, : len(kept)] * kept) @ vectors[:, : len(kept)].T
    lift = 1.0 / (1.0 - np.diag(H))
    predicted = lift[:, None] * (H @ scores - np.diag(H)[:, None] * scores)

    def explained_shares(weights: np.ndarray | None) -> Mapping[str, Effect]:
        regression, known, sums = LeaveOneOut.of(eigenvalues, 1e-2), BlockSums(), BlockSums()
        regression.add_scores(known, vectors, scores, weights)
        regression.add_effects(sums, known, vectors, scores, weights)
        return regression.effects(sums)

    effects = explained_shares(weights)
    for j, effect in enumerate(effects.values()):
        assert effect.estimate == pytest.approx(np.average(scores[:, j] * predicted[:, j], weights=weights), rel=1e-6)
    plain, equal = (explained_shares(w) for w in (None, np.ones(200)))
    assert plain == equal
    A = (H - np.diag(np.diag(H))) * ((weights * lift)[:, None] + weights * lift) / 2.0
    sums, regression = BlockSums(), LeaveOneOut.of(eigenvalues, 1e-2)
    variance = rng.uniform(0.5, 2.0, 200)
    regression.add_variances(sums, vectors, variance[:, None], weights)
    sums.added |= {"signal": np.zeros(1), "products": np.zeros(1)}
    assert regression.quadratic(0, sums) == pytest.approx(2.0 * variance @ A**2 @ variance, rel=1e-6)


def test_where_five_rows_have_all_the_weight_effects_have_intervals() -> None:
    """The weighted form may lie below what its diagonal leaves of an unweighted one: no law had such a value."""
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(400, 2)), np.zeros(400)
    weights[rng.choice(400, 5, replace=False)] = 1.0
    prepared = prepare_calibration(x, settings=CalibrationSettings(draws=9, directions=20, own_directions=5))
    law = Normal(np.full(400, 0.6), 1.0)
    tests = (prepared.test_version(rng.standard_normal(400), law, weights=weights) for _ in range(80))
    effects = np.array([[astuple(effect)[:3] for effect in test.effects.values()] for test in tests])
    estimate, low, high = np.moveaxis(effects, 2, 0)
    mean = np.maximum(estimate.mean(axis=0), 0.0)
    assert np.all(np.mean((low <= mean) & (mean <= high), axis=0) >= 0.88)


def test_intervals_of_weighted_effects_hold_what_the_rows_have_under_their_weights() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 2))
    weights = np.exp(rng.normal(size=300))
    prepared = prepare_calibration(x, settings=CalibrationSettings(draws=99, directions=20, own_directions=5))
    law = Normal(np.where(x[:, 0] > 0, 0.6, 0.0), 1.0)
    found = []
    for _ in range(60):
        effect = prepared.test_version(rng.standard_normal(300), law, weights=weights).effects["bias"]
        found.append((effect.estimate, effect.low, effect.high))
    estimate, low, high = np.array(found).T
    assert np.mean((low <= estimate.mean()) & (estimate.mean() <= high)) >= 0.88
    heavy = weights * np.where(x[:, 0] > 0, 9.0, 1.0)
    y = rng.standard_normal(300)
    one, other = (prepared.test_version(y, law, weights=w) for w in (weights, heavy))
    assert other.effects["bias"].estimate > 1.3 * one.effects["bias"].estimate
    assert other.p_value == one.p_value  # the test takes rows as they are
    triples = RowDependence.of(300, groups=np.arange(300) // 3)
    blocks = prepared.test_version(y, law, weights=weights, dependence=triples).effects["bias"]
    assert blocks.estimate == one.effects["bias"].estimate


@pytest.mark.parametrize(
    ("wrong", "said"),
    [([1.0, -2.0], "row 1 is -2"), ([1.0, np.nan], "row 1 is nan"), ([0.0, 0.0], r"all \d+ are 0"), ([1.0], "shape")],
)
def test_weights_that_cannot_be_used_are_refused_by_every_function(wrong: list[float], said: str) -> None:
    y, law, x = np.array([0.1, 0.2]), Normal(np.zeros(2), np.ones(2)), np.arange(40.0)[:, None]
    for call in (
        lambda: squared_kernel_calibration_error(y, law, weights=wrong),
        lambda: reliability_curve(y, row_weights=wrong),
        lambda: conditional_calibration_test(x, np.zeros(40), Normal(np.zeros(40), 1.0), weights=wrong * 20),
        lambda: prepare(x[1:3], input_kernel=Polynomial(2, 1.0, 1.0), weights=wrong),
    ):
        with pytest.raises(InvalidInputError, match=f"weights: .*{said}"):
            call()
