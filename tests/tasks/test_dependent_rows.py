"""Rows of a split that depend on each other: in memory and by row blocks alike, in verdicts, comparisons and halves."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from cut_rows import CutRows
from scipy.signal import lfilter

import congruence
from congruence.kernels import EXACT, Distribution, MultivariateNormal, Normal, Poisson
from congruence.kernels.dependence.blocks import FEWEST_BLOCKS, RowDependence
from congruence.kernels.dependence.correlation import Correlation
from congruence.kernels.engine.blocks import LocalPasses
from congruence.kernels.engine.driver import Driver
from congruence.kernels.engine.plan import Ask
from congruence.kernels.verdict import NO_FAULT
from congruence.tasks.scores.correction import preview, rows_to_try
from congruence.tasks.scores.evaluation import ROW_CORRELATION, MetricValue, WhatIsWrong, verdict_of
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.scores.points import correlated_rows, dependence_of, score_points
from congruence.tasks.scores.reading import with_inference
from congruence.tasks.scores.summary import remarks, version_metrics
from congruence.tasks.sentences.calibration import correlation_clause, inference_sentence
from congruence.tasks.solving.pass_runner import VersionMeasurement, calibration_of
from congruence.tasks.solving.solve import from_bytes, measure, to_bytes

N = 300
X = np.column_stack([np.sin(np.arange(N) / 50), np.cos(np.arange(N) / 75), np.ones(N)]).astype(np.float32)
X /= np.linalg.norm(X, axis=1, keepdims=True)
LAW = Normal(np.zeros(N), 1.0)


def hourly(seed: int, rho: float = 0.5) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(N)
    noise[1:] *= np.sqrt(1.0 - rho**2)
    return np.asarray(lfilter([1.0], [1.0, -rho], noise))


@dataclass(frozen=True)
class Dependent(CutRows):
    """Rows in three blocks, none of which begins where a group does."""

    dependence: RowDependence | None = None

    def row_dependence(self, block: int) -> RowDependence:
        return self.dependence.of_rows(self._of(block))


def driver_of(y: np.ndarray, dependence: RowDependence, law: Distribution = LAW) -> Driver:
    """Of the version ``a``, whose dependent rows have been looked for."""
    rows = Dependent(X, y, {"a": law}, cuts=(0, 100, 225, N), dependence=dependence)
    split = Driver(LocalPasses(rows), EXACT)
    split.look_at(["a"])
    split.find_dependent_rows(["a"])
    return split


def held(y: np.ndarray, dependence: RowDependence, law: Distribution = LAW, metrics: Any = None) -> VersionMeasurement:
    """The same in memory."""
    return measure(EXACT, X, y, {"a": law}, metrics=metrics, keys=np.arange(N), dependence=dependence)["a"]


@pytest.mark.parametrize("column", [{"time": np.arange(N)}, {"groups": np.arange(N) // 7}])
def test_row_blocks_say_of_dependent_rows_what_memory_says(column: dict[str, np.ndarray]) -> None:
    y, dependence = hourly(0) + 0.2, RowDependence.of(N, **column)
    here, split = held(y, dependence), driver_of(y, dependence)
    solved = split.solve(Ask(["a"]), N, lambda *_: None)
    found = split.finish(solved, lambda *_: None)["a"]
    calibration = calibration_of(split, ["a"], lambda *_: None, split.run)["a"]
    assert (found.test.p_value, found.test.blocks) == (here.result.test.p_value, here.result.test.blocks)
    assert found.uncertainty.standard_error == pytest.approx(here.result.standard_error, rel=1e-3)
    assert (found.band.low, found.band.high) == pytest.approx((here.result.band.low, here.result.band.high), rel=1e-3)
    assert calibration.test.p_value == here.calibration.test.p_value
    assert calibration.test.null == here.calibration.test.null == "blocks"
    bias, other = calibration.test.effects["bias"], here.calibration.test.effects["bias"]
    assert (bias.low, bias.high) == pytest.approx((other.low, other.high), abs=1e-4)
    assert "asymptotic in" in inference_sentence(here.result.inference)


def test_too_few_groups_are_said_in_the_place_of_p_values() -> None:
    dependence = RowDependence.of(N, groups=np.arange(N) // 100)
    found = from_bytes(to_bytes(held(hourly(0), dependence)))
    assert (found.result.test, found.calibration, found.result.band) == (None, None, None)
    assert "3 groups among 300 rows" in inference_sentence(found.result.inference)


def test_where_one_group_holds_half_of_the_rows_nothing_has_an_interval_and_tests_go_on() -> None:
    dependence = RowDependence.of(N, groups=np.r_[np.zeros(N // 2), 1 + np.arange(N // 2) // 10])
    y, asked = hourly(0), ("cce", "congruence_test", "crps", "nll", "coverage")
    found = held(y, dependence, metrics=asked)
    rows = Rows(score_points(found, Rows({}, y, LAW)), y, LAW, dependence=dependence)
    metrics, _ = version_metrics(asked, rows, found)
    assert metrics["largest_block"].value == 0.5
    assert {name for name, value in metrics.items() if value.low is not None} == {"cce_expected"}
    assert "cce_p_value" in metrics
    assert remarks(metrics, rows) == "No intervals: one group holds 50 % of the rows."


def test_counts_that_few_groups_hold_have_no_p_values_in_memory_and_by_row_blocks() -> None:
    y, law = (np.arange(N) % 90 == 0) * 1.0, Poisson(np.full(N, 0.02))
    dependence = RowDependence.of(N, groups=np.arange(N) // 20)
    found, split = held(y, dependence, law), driver_of(y, dependence, law)
    for inference in (found.result.inference, split.dependent["a"].inference):
        assert "4 of 15 groups hold a target other than 0" in inference_sentence(inference)
    assert (found.result.test, found.calibration, found.result.band) == (None, None, None)


def test_vector_targets_are_tested_by_their_groups() -> None:
    law, groups = MultivariateNormal(np.zeros((N, 2)), np.ones((N, 2))), RowDependence.of(N, groups=np.arange(N) // 10)
    y = np.column_stack([hourly(0), hourly(1)])
    calibration = held(y, groups, law, ["calibration"]).calibration
    assert (calibration.test.null, calibration.test.blocks) == ("blocks", 30)
    split = driver_of(y, groups, law)
    same = calibration_of(split, ["a"], lambda *_: None, split.run)["a"]
    assert same.test.p_value == pytest.approx(calibration.test.p_value, abs=0.02)
    assert same.test.blocks == 30


def test_correlation_that_nobody_named_is_found_but_not_where_rows_are_sorted_by_the_target() -> None:
    def looked(y: np.ndarray, **labels: np.ndarray) -> object:
        return correlated_rows(Rows({}, y, LAW, labels=pd.DataFrame(labels, index=range(N))), embeddings=X)

    independent = np.random.default_rng(1).standard_normal(N)
    assert looked(independent) is None
    assert looked(np.sort(independent)) is None
    assert "name `time:`" in correlation_clause(looked(hourly(0)))
    shop = np.random.default_rng(2).permutation(np.repeat(np.arange(100), 3))
    shared = np.sqrt(0.5) * (np.random.default_rng(3).standard_normal(100)[shop] + independent)
    assert "`groups: shop`" in correlation_clause(looked(shared, shop=shop))
    site = np.repeat(["a", "b"], N // 2)
    apart = independent + 2.0 * (site == "b")
    assert "name `time:`" in correlation_clause(looked(apart))
    assert looked(apart, site=site) is None
    assert "name `time:`" in correlation_clause(looked(apart + hourly(0), site=site))


def test_a_fault_of_a_part_is_found_in_whatever_order_the_rows_lie() -> None:
    rng, part = np.random.default_rng(0), np.repeat(["a", "b"], N)
    x = pd.DataFrame({"u": rng.standard_normal(2 * N), "v": rng.standard_normal(2 * N)})
    y = x["u"].to_numpy() + rng.standard_normal(2 * N) + (part == "b")
    for order in (np.arange(2 * N), rng.permutation(2 * N)):
        law = Normal(x["u"].to_numpy()[order], np.ones(2 * N))
        found = congruence.evaluate(x.iloc[order].reset_index(drop=True), y[order], law, slices={"site": part[order]})
        assert (found.verdict, "Where site is b (300 rows" in found.sentences[0]) == ("wrong", True)


def test_rows_of_a_table_that_share_their_inputs_share_its_faults_and_are_judged() -> None:
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"a": rng.integers(0, 4, 1000), "b": rng.integers(0, 4, 1000), "c": rng.integers(0, 3, 1000)})
    y = 2.0 * ((x["a"] + x["b"] + x["c"]) % 2) + rng.standard_normal(1000)
    found = congruence.evaluate(x, y, Normal(np.ones(1000), np.sqrt(2.0)))
    assert found.verdict != "not judged"
    assert not any("correlated" in sentence for sentence in found.sentences)


def test_no_version_is_called_wrong_by_p_values_that_do_not_hold() -> None:
    wrong = {"cce_mean": MetricValue(0.2), "cce_p_value": MetricValue(0.001), "calibration_p_value": MetricValue(0.5)}
    assert verdict_of(wrong).is_wrong
    correlated = wrong | {ROW_CORRELATION: MetricValue(0.6)}
    assert str(verdict_of(correlated)).startswith("not judged: rows are correlated")
    assert verdict_of(correlated).p_value is None
    assert verdict_of(correlated | {"cce_p_value": MetricValue(0.4)}).state == NO_FAULT


def test_correlation_is_said_first() -> None:
    found = with_inference(WhatIsWrong((), pd.DataFrame()), None, Correlation("time", 0.6, 0.001, True))
    assert found.sentences[0].startswith("Rows are correlated (lag 1: 0.6)")


@pytest.mark.parametrize("column", ["row_group", "row_time"])
def test_a_preview_judges_by_blocks_and_holds_out_rows_that_depend_on_none_of_the_fit(column: str) -> None:
    values = np.arange(N) % 60 if column == "row_group" else np.arange(N)[::-1]
    dependence = dependence_of(pd.DataFrame({column: values}))
    assert dependence is not None
    rows = Rows({}, hourly(2, 0.3) + 1.0, LAW, dependence=dependence)
    chosen, half = rows_to_try(rows)
    fitted, judged = values[chosen[half]], values[chosen[~half]]
    assert not set(fitted) & set(judged)
    assert column == "row_group" or judged.min() - fitted.max() >= N // FEWEST_BLOCKS
    tried, alone = (preview(EXACT, each[chosen], X[chosen], half) for each in (rows, Rows({}, rows.targets, LAW)))
    found, without = ({row.name: row for row in each.table} for each in (tried, alone))
    assert found["NLL"].now == without["NLL"].now
    assert found["NLL"].error != without["NLL"].error


def test_fewer_than_ten_groups_are_previewed_by_nobody() -> None:
    dependence = dependence_of(pd.DataFrame({"row_group": np.arange(N) % 12}))
    rows = Rows({}, hourly(2) + 1.0, LAW, dependence=dependence)
    chosen, half = rows_to_try(rows)
    assert preview(EXACT, rows[chosen], X[chosen], half) is None
