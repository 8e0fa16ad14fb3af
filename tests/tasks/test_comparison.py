"""Versions against each other, the gate, and what of it MLflow keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import mlflow
import numpy as np
import pytest
from mlflow import MlflowClient
from pydantic import ValidationError

from congruence.kernels.errors import InvalidInputError, ProtocolError
from congruence.kernels.protocols import PREPRINT
from congruence.tasks import tracking
from congruence.tasks.comparison import ComparedVersion, GateSettings, apply_gate, compare_pair, compare_versions
from congruence.tasks.evaluation import Metric
from congruence.tasks.registry import ModelVersion
from congruence.tasks.report.comparison import comparison_report


def model(version):
    return ModelVersion("angle", version, f"models:/angle/{version}")


@pytest.fixture(scope="module")
def compared(make_evaluation):
    """The truth, an overconfident version and a biased one, on 400 points."""
    changes = {"1": {}, "2": {"scale": 0.5}, "3": {"bias": 1.0}}
    return [
        ComparedVersion.of(make_evaluation(model=model(version), rows=400, **change), run_id=f"run-{version}")
        for version, change in changes.items()
    ]


def test_the_truth_wins_and_the_numbers_are_the_scores_own(compared):
    comparison = compare_versions(compared)
    assert comparison.versions[0].label == "angle/1"
    assert comparison.baseline.label == "angle/1"
    pair = comparison.pairs["angle/3"]
    first, second = (version.scores[version.scores["valid"]] for version in (compared[2], compared[0]))
    for name, column in (("cce_mean", "cce"), ("nll_mean", "nll"), ("crps_mean", "crps"), ("mae", "absolute_error")):
        item = pair.differences[name]
        assert item.difference == pytest.approx(first[column].mean() - second[column].mean(), rel=1e-9)
        assert 0 < item.low < item.difference < item.high
        assert item.p_value < 0.01
        assert pair.points[name].won == (first[column] < second[column]).sum()
    assert pair.differences["rmse"].first == pytest.approx(np.sqrt(first["squared_error"].mean()))
    assert pair.differences["ece"].first == pytest.approx(compared[2].metrics["ece"].value, abs=1e-6)
    assert pair.rows == 398


def test_what_is_the_same_is_not_called_different(compared):
    pair = compare_pair(compared[1], compared[0])
    assert pair.differences["mae"].difference == 0  # half the scale leaves the mean alone
    assert pair.differences["mae"].p_value == 1
    assert pair.points["mae"].tied == pair.rows


def test_the_inputs_they_differ_most_on_come_first(compared):
    largest = compare_pair(compared[2], compared[0]).largest
    size = largest["cce_difference"].abs()
    assert size.is_monotonic_decreasing
    every = (compared[2].scores["cce"] - compared[0].scores["cce"]).abs()
    assert size.iloc[0] == every.max()
    assert largest["key"].iloc[0] == compared[0].scores["key"].iloc[int(largest["row"].iloc[0])]


def test_other_digests_are_refused(compared, make_evaluation):
    other_protocol = ComparedVersion.of(make_evaluation(model=model("4"), rows=400, protocol=PREPRINT))
    other_split = ComparedVersion.of(make_evaluation(model=model("4"), rows=400, split_digest="t" * 64))
    with pytest.raises(ProtocolError, match="protocol differs"):
        compare_versions([compared[0], other_protocol])
    with pytest.raises(ProtocolError, match="split differs"):
        compare_versions([compared[0], other_split])
    renamed = replace(compared[1], scores=compared[1].scores.assign(key="x"))
    with pytest.raises(ProtocolError, match="other keys"):
        compare_pair(compared[0], renamed)


def test_what_is_not_a_comparison_is_refused(compared):
    with pytest.raises(InvalidInputError, match="at least two"):
        compare_versions(compared[:1])
    with pytest.raises(InvalidInputError, match="angle/9 is not among the compared versions angle/1"):
        compare_versions(compared, baseline="angle/9")
    with pytest.raises(InvalidInputError, match="twice"):
        compare_versions([compared[0], compared[0]])


def test_a_point_invalid_in_one_version_counts_in_neither(compared):
    scores = compared[1].scores.copy()
    scores.loc[:9, "valid"] = False
    scores.loc[:9, "cce"] = np.nan
    assert compare_pair(compared[0], replace(compared[1], scores=scores)).rows == 388


def test_the_gate_passes_and_fails_with_reasons(compared):
    truth, overconfident, biased = compared
    gate = GateSettings(maximum={"cce_mean": 0.2}, at_noise_floor=True, better_on=["crps_mean"])
    passed = apply_gate(truth, biased, gate)
    assert passed.passed
    assert all(check.passed for check in passed.checks)
    failed = apply_gate(biased, truth, gate)
    assert not failed.passed
    text = " | ".join(failed.reasons)
    assert "CCE is above what is expected if true" in text
    assert "cce_mean is significantly worse than angle/1's" in text
    assert "p = 0.0005" in text
    same = apply_gate(overconfident, truth, GateSettings(not_worse_on=["mae"]))
    assert same.passed
    assert not apply_gate(overconfident, truth, GateSettings(not_worse_on=[], better_on=["mae"])).passed


def test_a_first_version_meets_the_thresholds_alone(compared):
    assert apply_gate(compared[0], None, GateSettings(maximum={"cce_mean": 1.0})).passed


def test_a_metric_that_was_not_measured_is_an_error_with_a_remedy(compared):
    truth, other, _ = compared
    with pytest.raises(InvalidInputError, match=r"gate\.maximum: cce_men was not measured on angle/1.*mean cce_mean\?"):
        apply_gate(truth, None, GateSettings(maximum={"cce_men": 1.0}))
    bare = replace(truth, scores=truth.scores.drop(columns="nll"))
    with pytest.raises(InvalidInputError, match=r"gate\.not_worse_on: nll_mean was not measured on angle/1"):
        apply_gate(bare, other, GateSettings(not_worse_on=["nll_mean"]))
    unasked = apply_gate(bare, other, GateSettings())
    assert [check.metric for check in unasked.checks] == ["cce_mean"]


def test_a_margin_lets_small_losses_pass(compared):
    strict, lenient = (
        GateSettings(not_worse_on=["cce_mean"]),
        GateSettings(not_worse_on=["cce_mean"], margin={"cce_mean": 1.0}),
    )
    assert not apply_gate(compared[1], compared[0], strict).passed
    assert apply_gate(compared[1], compared[0], lenient).passed


def test_a_metric_that_has_no_points_cannot_gate():
    with pytest.raises(ValidationError, match="cannot be compared point by point"):
        GateSettings(better_on=["cce_noise_floor"])


def test_the_report_stands_alone(compared):
    hostile = replace(compared[1], metrics={**compared[1].metrics, "mae": Metric(1.0)},
                      model=ModelVersion("<script>alert(1)</script>", "2", "models:/x/2"))  # fmt: skip
    html = comparison_report(compare_versions([compared[0], hostile]), {"versions": b"png"})
    assert "<script" not in html
    assert "http://" not in html
    assert "https://" not in html
    assert "points better / worse / same" in html


def test_comparisons_and_decisions_in_mlflow(make_evaluation, tmp_path):
    before, uri = mlflow.get_tracking_uri(), f"sqlite:///{tmp_path}/mlflow.db"
    settings = tracking.TrackingSettings(uri=uri, report=False)
    client = MlflowClient(uri)
    client.create_registered_model("angle")
    for _ in range(2):
        client.create_model_version("angle", "file:///nowhere")
    mlflow.set_tracking_uri(uri)
    try:
        for version, scale in (("1", 3.0), ("2", 1.0)):
            tracking.log_evaluation(make_evaluation(model=model(version), scale=scale), settings)
        logged = tracking.logged_versions("test", settings, model="angle")
        comparison = compare_versions(logged, baseline="angle/1", resamples=200)
        run_id = tracking.log_comparison(comparison, settings)
        assert tracking.log_comparison(comparison, settings) == run_id
        run = client.get_run(run_id)
        assert run.data.metrics["angle-2/cce_mean_difference"] < 0
        assert {item.path for item in client.list_artifacts(run_id)} >= {"comparison.html", "versions.json"}
        gate = GateSettings(baseline="champion", better_on=["cce_mean"], set_alias="champion")
        assert tracking.gate_baseline(logged[1], gate.baseline, settings) is None
        decision = apply_gate(logged[1], tracking.gate_baseline(logged[1], "1", settings), gate)
        assert decision.passed
        decided = tracking.log_decision(decision, settings)
        assert tracking.log_decision(decision, settings) == decided
        assert client.get_registered_model("angle").aliases == {}
        tracking.log_decision(decision, settings, alias=gate.set_alias)
        assert client.get_registered_model("angle").aliases == {"champion": 2}
        assert client.get_model_version("angle", "2").tags["cce_gate"] == "passed"
        worse = apply_gate(logged[0], tracking.gate_baseline(logged[0], "champion", settings), gate)
        tracking.log_decision(worse, settings, alias="champion")
        assert client.get_registered_model("angle").aliases == {"champion": 2}
        tags = client.get_model_version("angle", "1").tags
        assert tags["cce_gate"] == "failed"
        (refused,) = client.search_runs(
            [client.get_experiment_by_name("congruence/gates/angle").experiment_id], "tags.cce_gate = 'failed'"
        )
        assert refused.info.run_id in tags["cce_gate_run"]
        assert refused.data.metrics == {"rules_failed": 3, "rules_passed": 0}
        table = json.loads(Path(client.download_artifacts(refused.info.run_id, "gate.json", tmp_path)).read_text())
        rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
        assert [(row["passed"], row["rule"]) for row in rows] == [
            ("NO", "not worse on cce_mean"),
            ("NO", "not worse on nll_mean"),
            ("NO", "better on cce_mean"),
        ]
        assert rows[0]["low"] < rows[0]["difference"] < rows[0]["high"]
        assert "| **failed** | not worse on cce_mean | test |" in refused.data.tags["mlflow.note.content"]
    finally:
        mlflow.set_tracking_uri(before)
