"""The metrics of a version: which exist for what, their intervals, the slices, and what each logged number means."""

from dataclasses import astuple

import numpy as np
import pandas as pd
import pytest

from congruence.kernels import (
    EXACT,
    CongruenceTest,
    Distribution,
    Gamma,
    Mixture,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    Quantiles,
    Samples,
    StudentT,
    ZeroInflated,
)
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.engine.blocks import FoundBlocks
from congruence.kernels.pit import pit_values
from congruence.kernels.rng import hashed_keys, stream
from congruence.kernels.score_parts import marginal_crps
from congruence.kernels.scores import point_scores
from congruence.tasks.scores import summary
from congruence.tasks.scores.evaluation import MetricValue
from congruence.tasks.scores.metrics import metric as metric_module
from congruence.tasks.scores.metrics.definitions import NEW_TARGETS
from congruence.tasks.scores.metrics.definitions import ROWS as OTHER_ROWS
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.scores.metrics.registry import METRICS, metric_names, metric_of, requested_metrics, shown
from congruence.tasks.scores.points import score_points, slice_groups
from congruence.tasks.scores.summary import CLASSIFIER, MeanMetrics, coverage_risk, version_metrics
from congruence.tasks.sentences.calibration import probability
from congruence.tasks.solving.solve import measure

ROWS = 120
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 5))


def summary_of(law: Distribution, y: np.ndarray, x: np.ndarray) -> tuple[dict[str, MetricValue], dict[str, np.ndarray]]:
    found = measure(EXACT, x, y, {"": law})[""]
    points = score_points(found, Rows({}, y, law))
    return version_metrics(metric_names(), Rows(points, y, law), found)[0], points


def metrics_of(predictive: Distribution, y: np.ndarray) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    metrics, points = summary_of(predictive, y, X)
    for name, metric in metrics.items():
        assert np.isfinite(metric.value), name
        if metric.low is not None and metric.high is not None:
            assert metric.low <= metric.value <= metric.high, name
    return {name: metric.value for name, metric in metrics.items()}, points


@pytest.fixture(scope="module")
def normal() -> tuple[Normal, np.ndarray, dict[str, float], dict[str, np.ndarray]]:
    """A true version, its targets, metrics and points."""
    law, y = Normal(X[:, 0], np.ones(ROWS)), X[:, 0] + RNG.normal(size=ROWS)
    return law, y, *metrics_of(law, y)


@pytest.mark.parametrize("rows", [2, 3, 9])
def test_few_rows_have_the_metrics_that_they_can_have(rows: int) -> None:
    """The chi-squared test of the PIT takes ten; its refusal failed the version."""
    y = X[:rows, 0] + RNG.normal(size=rows)
    metrics, _ = summary_of(Normal(X[:rows, 0], np.ones(rows)), y, X[:rows])
    assert {"cce_mean", "crps_mean", "pit_cvm_p_value"} <= metrics.keys()
    assert "pit_chi2_p_value" not in metrics


def test_every_metric_exists_for_a_normal_version_and_equals_its_definition(normal) -> None:
    _, y, metrics, points = normal
    assert metrics["cce_mean"] == pytest.approx(points["cce"].mean())
    assert metrics["rmse"] == pytest.approx(np.sqrt(np.mean((y - X[:, 0]) ** 2)))
    assert metrics["nll_mean"] == pytest.approx(points["nll"].mean())
    assert metrics["coverage_90"] == pytest.approx(np.mean(np.abs(y - X[:, 0]) <= 1.6448536269514722))
    expected = {"skce", "skce_p_value", "pit_ks_p_value", "cce_p_value", "cce_significant_share", "ece", "sharpness"}
    assert expected <= set(metrics)


@pytest.mark.parametrize(
    ("predictive", "y"),
    [
        (Poisson(np.exp(X[:, 0])), RNG.poisson(np.exp(X[:, 0])).astype(float)),
        (Samples(X[:, :1] + RNG.normal(size=(ROWS, 20))), X[:, 0] + RNG.normal(size=ROWS)),
        (
            Mixture(
                np.tile([0.5, 0.5], (ROWS, 1)), [Normal(X[:, 0] - 1, np.ones(ROWS)), Normal(X[:, 0], np.ones(ROWS))]
            ),
            X[:, 0] + RNG.normal(size=ROWS),
        ),
        (Normal(np.zeros(ROWS), np.ones(ROWS)), RNG.normal(size=ROWS)),  # says the same of every row
        (MultivariateNormal(X[:, :2], np.ones((ROWS, 2))), X[:, :2] + RNG.normal(size=(ROWS, 2))),
        (Samples(X[:, None, :2] + RNG.normal(size=(ROWS, 10, 2))), X[:, :2] + RNG.normal(size=(ROWS, 2))),
    ],
    ids=["counts", "samples", "mixture", "constant", "vectors", "vector samples"],
)
def test_what_applies_is_there_for_every_kind_of_prediction(predictive: Distribution, y: np.ndarray) -> None:
    metrics, _ = metrics_of(predictive, y)
    assert {"cce_mean", "cce_noise_floor", "crps_mean", "mae", "skce"} <= set(metrics)
    assert ("ece" in metrics) == (y.ndim == 1)


def test_the_excess_is_never_above_the_cce_that_it_is_a_part_of() -> None:
    """A version that is wrong in one place: the root of a mean of squares lay above the mean of the norms beside it."""
    y = X[:, 0] + RNG.normal(size=ROWS)
    wrong = X[:, 1] > 1.0
    predictive = Normal(X[:, 0] + 6.0 * wrong, np.ones(ROWS))
    metrics, points = metrics_of(predictive, y)
    assert np.sqrt(np.mean(points["cce"] ** 2 - points["cce_noise_floor"] ** 2)) > metrics["cce_mean"]
    assert 0.0 < metrics["cce_excess"] < metrics["cce_mean"]
    blocks = MeanMetrics(requested_metrics([]), Rows(points, y, predictive, floor_share=0.93))
    table = blocks.slice_table(pd.DataFrame({"side": np.where(wrong, "wrong", "right")}))
    assert (table["cce_excess"] <= table["cce_mean"]).all()
    expected = 0.93 * table["cce_noise_floor"]
    np.testing.assert_allclose(table["cce_excess"] ** 2, np.maximum(table["cce_mean"] ** 2 - expected**2, 0.0))


def test_slices_have_the_metrics_of_their_rows(normal) -> None:
    predictive, y, _, points = normal
    labels = pd.DataFrame({"side": np.where(X[:, 1] > 0, "right", "left"), "height": X[:, 2]})
    table = MeanMetrics(requested_metrics(["crps"]), Rows(points, y, predictive)).slice_table(labels)
    right = table[(table["slice"] == "side") & (table["value"] == "right")].iloc[0]
    assert right["rows"] == np.sum(X[:, 1] > 0)
    assert right["crps_mean"] == pytest.approx(points["crps"][X[:, 1] > 0].mean())
    assert np.sum(table["slice"] == "height") == 10


def test_a_missing_slice_value_is_a_group_of_its_own_and_rare_ones_are_gathered() -> None:
    def shown(values: list[object]) -> list[str]:
        codes, names = slice_groups(pd.Series(values))
        return [str(name) for name in names[codes]]

    assert shown(["a", None, "a"]) == ["a", "missing", "a"]
    assert shown([2.0, np.nan, 10.0]) == ["2", "missing", "10"]  # whole numbers, of which one is missing
    assert shown([0.5, 1.0, 5.0]) == ["0.5", "1.0", "5.0"]
    assert shown([1, "1", "missing", None]) == ["1", "1", "missing", "missing"]
    many = shown([*(f"v{i}" for i in range(100)), *(["v1"] * 5), *(["v2"] * 5), None])
    assert len(set(many)) == 31
    assert many[1] == "v1"
    assert many[99] == "other"
    assert many[-1] == "missing"
    tenths = shown([*range(100), None])
    assert len(set(tenths)) == 11
    assert tenths[:10] == ["(-0.001, 9.9]"] * 10
    assert tenths[-1] == "missing"
    assert shown([*range(100), np.inf]) == tenths


def estimated(
    requested: tuple[str, ...], points: dict[str, np.ndarray], law: Distribution, y: np.ndarray
) -> dict[str, MetricValue]:
    return MeanMetrics(requested, Rows(points, y, law)).values()


def test_the_interval_of_a_calibrated_models_ece_begins_at_zero_not_at_its_own_value() -> None:
    rng = np.random.default_rng(0)
    rate = rng.uniform(0.5, 3.0, 2000)
    predictive, y = Poisson(rate), rng.poisson(rate).astype(float)
    points = {"cce": np.ones(2000), "cce_noise_floor": np.ones(2000), "pit": pit_values(y, predictive)}
    found = estimated(("ece",), points, predictive, y)["ece"]
    assert found.low == 0.0 < found.value < found.high


def test_the_crps_is_taken_apart_and_set_beside_that_of_the_marginal_law(normal) -> None:
    _, y, metrics, points = normal
    parts = [metrics[f"crps_{name}"] for name in ("miscalibration", "discrimination", "uncertainty")]
    assert parts[0] - parts[1] + parts[2] == pytest.approx(metrics["crps_mean"], rel=0.05)
    assert metrics["crps_skill"] == pytest.approx(1.0 - points["crps"].mean() / marginal_crps(y).mean(), rel=1e-12)
    assert {f"{kind}_{level}" for kind in ("coverage", "width") for level in (50, 80, 90, 95)} <= set(metrics)


def test_the_kernel_calibration_error_of_a_large_split_is_that_of_a_sample(monkeypatch) -> None:
    """Calibrated: not significant, wherever the sample falls; too narrow: significant."""
    monkeypatch.setattr(metric_module, "PAIRED_ROWS", 1_600)
    rng = np.random.default_rng(4)
    loc, n = rng.normal(size=4_000), 4_000
    y = rng.normal(loc, 1.0)
    right, narrow = Normal(loc, np.ones(n)), Normal(loc, np.full(n, 0.5))
    found = [Rows({}, y, right, seed=seed).kernel_calibration["skce"] for seed in range(4)]
    assert len(set(found)) == 4
    assert Rows({}, y, right).kernel_calibration["skce_p_value"] > 0.01
    assert Rows({}, y, narrow).kernel_calibration["skce_p_value"] == 0.001


def test_statistics_by_blocks_are_those_of_all_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    n = 2000
    law, targets, keys = Normal(rng.normal(size=n), np.ones(n)), rng.normal(size=n), hashed_keys(np.arange(n))
    requested = ("cce", "nll", "crps", "pit", "ece", "coverage", "mae", "rmse")
    points = {
        "cce": rng.random(n),
        "cce_noise_floor": rng.random(n),
        "pit": law.cdf(targets),
        **point_scores(law, targets),
    }
    labels = pd.DataFrame({"side": np.where(rng.random(n) < 0.3, "left", "right"), "part": np.arange(n) % 4})
    blocks = MeanMetrics(requested, Rows(points, targets, law, floor_share=0.9, keys=keys))
    whole, slices = blocks.values(), blocks.slice_table(labels)
    monkeypatch.setattr(summary, "BLOCK_ROWS", 700)
    merged = blocks.values()
    assert {"nll_mean", "crps_skill", "ece", "coverage_90", "rmse"} <= merged.keys() == whole.keys()
    for name, metric in whole.items():
        np.testing.assert_allclose(astuple(merged[name]), astuple(metric), rtol=1e-12)
    pd.testing.assert_frame_equal(blocks.slice_table(labels), slices, rtol=1e-12)


def test_targets_without_a_total_have_none_in_any_block_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative target in one block of rows: the others would have one, and not merge with it."""
    monkeypatch.setattr(summary, "BLOCK_ROWS", 40)
    law, y = Poisson(np.full(ROWS, 2.0)), np.full(ROWS, 2.0)
    y[-1] = -1.0
    points = {"cce": np.ones(ROWS), "cce_noise_floor": np.ones(ROWS), "mean": law.mean()}
    assert estimated(("cce", "deviance", "actual_over_expected"), points, law, y) == {}


_N = 2_000
_PART = Normal(np.zeros(_N), np.ones(_N)), Normal(np.full(_N, 3.0), np.full(_N, 0.5))


@pytest.mark.parametrize(
    "law",
    [
        Normal(np.zeros(_N), np.ones(_N)),
        StudentT(np.full(_N, 4.0), np.zeros(_N), np.ones(_N)),
        Gamma(np.full(_N, 2.0), np.ones(_N)),
        Mixture(np.array([0.4, 0.6]), _PART),
        Quantiles(np.arange(1, 40) / 40.0, _PART[0].quantile((np.arange(1, 40) / 40.0)[None, :])),
        Samples(_PART[0].sample(199, seed=3)),
        Poisson(np.full(_N, 3.0)),
        NegativeBinomial(np.full(_N, 3.0), np.full(_N, 0.5)),
        ZeroInflated(Poisson(np.full(_N, 4.0)), np.full(_N, 0.3)),
    ],
    ids=lambda law: type(law).__name__,
)
def test_every_family_has_coverage_and_width_at_four_levels(law: Distribution) -> None:
    """Of a true version the share inside is the level, of counts at least; wider intervals for higher levels."""
    y = (law if not isinstance(law, (Samples, Quantiles)) else _PART[0]).sample(1, seed=5)[:, 0]
    found = estimated(("coverage",), {"cce": y, "cce_noise_floor": y}, law, y)
    for level in (50, 80, 90, 95):
        inside = found[f"coverage_{level}"].value - level / 100.0
        assert inside > -0.03
        assert law.is_discrete or inside < 0.03
    widths = [found[f"width_{level}"].value for level in (50, 80, 90, 95)]
    assert widths == sorted(widths)
    assert widths[0] >= 0.0
    assert widths[-1] > 0.0


def test_draws_too_few_to_hold_an_interval_have_no_width(table: pd.DataFrame) -> None:
    """Of five right draws the 90 % interval was as wide as one of 67 %, and its excess risk .23."""
    y, draws = np.zeros(N), np.random.default_rng(0).normal(size=(N, 39))
    for members, held in ((5, [50]), (19, [50, 80, 90]), (39, [50, 80, 90, 95])):
        law = Samples(draws[:, :members])
        found = estimated(("coverage",), {"cce": y, "cce_noise_floor": y}, law, y)
        assert [level for level in (50, 80, 90, 95) if f"width_{level}" in found] == held
        assert {f"coverage_{level}" for level in (50, 80, 90, 95)} <= set(found)
        assert bool(coverage_risk(table, y, law, 0)) == (90 in held)
        rows = Rows({"crps": law.crps(y)}, y, law)
        of_all = {part: METRICS[f"crps_{part}"].value(rows) for part in ("miscalibration", "uncertainty")}
        assert (of_all["miscalibration"] is None) == (members < 39)
        assert of_all["uncertainty"] is not None


@pytest.mark.parametrize("rate", [0.001 * np.exp(0.05 * X[:, 0]), 2.0 + 1e-9 * X[:, 0], np.full(ROWS, 0.5)])
def test_counts_whose_rates_hardly_differ_have_a_kernel_calibration_error(rate: np.ndarray) -> None:
    """Their quantiles are the same, though their means are not: the version failed for want of a median distance."""
    found = Rows({}, stream(0, "counts").poisson(np.maximum(rate, 0.2)).astype(float), Poisson(rate)).kernel_calibration
    assert 0.0 < found["skce_p_value"] <= 1.0


@pytest.mark.parametrize(("rows", "groups"), [(20, 0), (50, 0), (60, 20)])
def test_intervals_of_coverage_hold_the_level_where_every_target_lies_inside(rows: int, groups: int) -> None:
    """Nothing varies then, and the interval was [1, 1]: of 20 rows .64 of the intervals held .95."""
    law, drawn = Normal(np.zeros(rows), np.ones(rows)), np.random.default_rng(4)
    blocks = DependentBlocks(np.arange(rows) % groups, groups, "groups") if groups else None
    held = []
    for _ in range(200):
        y = drawn.normal(size=groups)[np.arange(rows) % groups] if groups else drawn.normal(size=rows)
        found = MeanMetrics(("coverage",), Rows({}, y, law), FoundBlocks("groups", blocks)).values()
        held.append(
            [found[f"coverage_{level}"].low <= level / 100 <= found[f"coverage_{level}"].high for level in (90, 95)]
        )
    assert np.mean(held, axis=0) == pytest.approx([1.0, 1.0], abs=0.07)


@pytest.fixture(scope="module")
def metrics():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((150, 3))
    rate = np.exp(0.5 * x[:, 0])
    laws = {
        "normal": (Normal(x[:, 0], np.ones(150)), x[:, 0] + rng.standard_normal(150)),
        "biased": (Normal(x[:, 0] + 2.0, np.ones(150)), x[:, 0] + rng.standard_normal(150)),
        "counts": (Poisson(rate), rng.poisson(rate).astype(float)),
    }
    return {name: summary_of(law, y, x)[0] for name, (law, y) in laws.items()}


def test_every_logged_number_has_a_meaning(metrics):
    for found in metrics.values():
        for name, metric in found.items():
            means = metric_of(name)
            assert means.reading, name
            assert means.label, name
            if metric.low is not None:
                assert means.interval, name
    assert set(shown("headlines")) <= set(METRICS)


def test_intervals_of_cce_are_of_new_targets_and_those_of_scores_of_rows(metrics):
    for name in ("cce_mean", "cce_excess", "cce_squared_mean"):
        assert metric_of(name).interval == NEW_TARGETS
    for name in ("nll_mean", "crps_mean", "mae", "rmse", "ece", "coverage_90", "width_90"):
        assert metric_of(name).interval == OTHER_ROWS
    found = metrics["normal"]
    # What other targets would give is wider than what other points would, given these targets.
    assert found["cce_mean"].low < found["cce_mean"].value < found["cce_mean"].high
    assert found["cce_noise_floor"].low is None


def test_the_band_of_a_true_version_holds_its_cce(metrics):
    true, biased = metrics["normal"], metrics["biased"]
    assert true["cce_expected"].low < true["cce_mean"].value < true["cce_expected"].high
    assert biased["cce_mean"].value > biased["cce_expected"].high


def test_what_is_found_at_a_point_is_said_of_its_neighbourhood():
    # A point is smoothed from its neighbours' targets: beside a wrong region it is found, though the model is right.
    assert "Neighbours share their targets" in METRICS["cce_significant_share"].reading
    assert "*everywhere*" in CongruenceTest.significant_points.__doc__


def test_digits_of_a_p_value_that_say_nothing_are_not_said():
    assert [probability(value) for value in (None, 0.0, 1e-9, 0.0321)] == ["–", "< 0.001", "< 0.001", "0.032"]


def test_what_is_expected_if_true_stands_beside_every_mean():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((100, 3))
    found = measure(EXACT, x, x[:, 0] + rng.standard_normal(100), {"": Normal(x[:, 0], np.ones(100))}, metrics=["cce"])
    result = found[""].result
    assert result.test is None
    assert result.band.low < result.band.mean < result.band.high


N = 2_000


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"age": rng.uniform(-1, 1, N), "city": rng.choice(list("abc"), N)})


def test_the_excess_risk_of_coverage_is_that_of_mapie(table: pd.DataFrame) -> None:
    conditional = pytest.importorskip("mapie.metrics.conditional")
    rng = np.random.default_rng(1)
    y = rng.standard_normal(N) * np.exp(0.8 * table["age"].to_numpy())
    ends = Normal(np.zeros(N), np.ones(N)).quantile(np.tile([0.05, 0.95], (N, 1)))
    order = stream(3, "rows of the excess risk of coverage").permutation(N)
    x = np.column_stack([table["age"], pd.factorize(table["city"], sort=True)[0]])[order]
    asked = {"y_intervals": ends, "model_kwargs": CLASSIFIER, "random_state": 0}
    theirs = conditional.excess_risk_target_coverage(x, y[order], 0.9, **asked)
    found = coverage_risk(table, y, Normal(np.zeros(N), np.ones(N)), 3)["ert_90"].value
    assert found == pytest.approx(theirs, abs=1e-12)


def test_intervals_that_cover_everything_or_nothing_are_so_far_from_their_level(table: pd.DataFrame) -> None:
    y = np.zeros(N)
    assert coverage_risk(table, y, Normal(y, np.ones(N)), 0)["ert_90"].value == pytest.approx(0.1)
    assert coverage_risk(table, y + 9.0, Normal(y, np.ones(N)), 0)["ert_90"].value == pytest.approx(0.9)


def test_it_is_0_if_right_and_below_the_distance_of_the_coverage_if_wrong(table: pd.DataFrame) -> None:
    scale = np.exp(0.8 * table["age"].to_numpy())
    y = Normal(np.zeros(N), scale).sample(1, seed=1)[:, 0]
    blind = Normal(np.zeros(N), np.ones(N))
    right = coverage_risk(table, y, Normal(np.zeros(N), scale), 0)["ert_90"].value
    wrong = coverage_risk(table, y, blind, 0)["ert_90"].value
    ends = blind.quantile(np.array([[0.05, 0.95]]))
    inside = Normal(np.zeros(N), scale).cdf(ends) @ np.array([-1.0, 1.0])
    distance = float(np.mean(np.abs(inside - 0.9)))
    assert abs(right) < 0.015
    assert 0.5 * distance < wrong < distance + 0.015
    gaps = table.assign(age=table["age"].where(table["age"] > -0.9))
    assert coverage_risk(gaps, y, blind, 0)["ert_90"].value == pytest.approx(wrong, abs=0.02)
    assert coverage_risk(table, np.zeros(N), Poisson(np.ones(N)), 0) == {}
    for levels, known in (([0.05, 0.5, 0.95], True), ([0.1, 0.5, 0.9], False)):
        stated = Quantiles(levels, Normal(np.zeros(N), scale).quantile(np.array([levels])))
        assert bool(coverage_risk(table, y, stated, 0)) == known, "an interval that is not stated is ours"
    assert coverage_risk(table.head(100), y[:100], blind[slice(0, 100)], 0) == {}
