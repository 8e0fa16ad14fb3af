"""The gate: passed, failed or undecided, by intervals against margins; and what of it MLflow keeps."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from comparable import angle, as_compared, if_honest
from pydantic import ValidationError

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.comparison.gate import apply_gate
from congruence.tasks.comparison.gate_settings import GateSettings
from congruence.tasks.comparison.versions import best_of
from congruence.tasks.mlflow.comparisons import log_decision
from congruence.tasks.mlflow.connection import TrackingError
from congruence.tasks.mlflow.identity import finished_evaluations
from congruence.tasks.mlflow.reading import gate_baseline
from congruence.tasks.models.registry import RegistryError, baseline_version
from congruence.tasks.scores.evaluation import INFLUENCE, MetricValue
from congruence.tasks.scores.metrics.definitions import EFFECTS
from congruence.tasks.scores.metrics.registry import METRICS

MARGIN = {"baseline": "champion", "not_worse_on": ["cce_mean"]}


def with_cce(version: ComparedVersion, mean: float, error: float, rows: int = 100) -> ComparedVersion:
    """The version with that mean CCE, whose difference from another one's has that standard error."""
    influence = np.full(rows, error / np.sqrt(rows))
    table = pd.DataFrame(dict(zip(INFLUENCE, (np.arange(rows).astype(str), influence, influence), strict=True)))
    metrics = version.metrics | {"cce_squared_mean": MetricValue(mean**2), "cce_mean": MetricValue(mean)}
    return replace(version, metrics=metrics, influence=table, influence_noise=np.zeros(2))


def test_the_three_answers_by_where_the_interval_lies(compared):
    baseline = with_cce(compared[0], 0.2, 0.0)  # 5 % are .01
    gate = GateSettings(**MARGIN)
    for mean, error, expected in (
        (0.200, 0.0050, "passed"),  # upper end .0098
        (0.200, 0.0053, "undecided"),  # upper end .0104
        (0.220, 0.0050, "failed"),  # lower end .0102
        (0.220, 0.0053, "undecided"),  # lower end .0096
        (0.190, 0.0090, "passed"),
    ):
        decision = apply_gate(with_cce(compared[1], mean, error), baseline, gate)
        (check,) = decision.checks
        assert decision.outcome == check.outcome == expected, mean
        assert check.limit == pytest.approx(0.21)
        assert check.value == pytest.approx(mean), "the CCE of the table and of the metric"
        assert check.low < check.difference < check.high
        assert check.high == pytest.approx(mean - 0.2 + 1.959964 * error)
        assert (check.rows_needed is None) == (expected != "undecided")


def test_undecided_says_how_many_rows_would_decide(compared):
    baseline = with_cce(compared[0], 0.2, 0.0)
    (check,) = apply_gate(with_cce(compared[1], 0.2, 0.02), baseline, GateSettings(**MARGIN)).checks
    assert check.rows_needed == pytest.approx(100 * (1.959964 * 0.02 / 0.01) ** 2)  # 1,537
    assert check.reason.startswith("cce_mean may be more than 5 % (0.01) worse than angle/1's")
    assert check.reason.endswith(
        "about 1,600 rows would decide if the difference stays as it is, about 1,600 if the versions are equally good; "
        "there are 100"
    )
    (larger,) = apply_gate(with_cce(compared[1], 0.20122, 0.02), baseline, GateSettings(**MARGIN)).checks
    assert "about 2,000 rows" in larger.reason  # 100 (1.96 .02 / .00878)^2 = 1,993
    assert "about 1,600 if the versions are equally good" in larger.reason
    at_limit = with_cce(compared[1], 0.21, 0.001)
    (never,) = apply_gate(at_limit, baseline, GateSettings(**MARGIN | {"margin": {"cce_mean": 0.01}})).checks
    assert never.outcome == "undecided"
    assert "if the difference stays as it is" not in never.reason, "it is the limit"


def test_a_small_split_passes_nothing(make_evaluation):
    """One that asks for a significant loss passes a version twice as far from the truth on 30 points."""
    truth, worse = (
        as_compared(make_evaluation(model=angle(version), rows=32, bias=bias))
        for version, bias in (("1", 0.0), ("2", 0.3))
    )
    decision = apply_gate(worse, truth, GateSettings(**MARGIN))
    assert decision.outcome == "undecided"
    assert not decision.passed


def test_better_is_shown_refuted_or_undecided(compared):
    truth, overconfident, biased = compared
    gate = GateSettings(baseline="champion", not_worse_on=[], better_on=["crps_mean", "cce_mean"])
    assert apply_gate(truth, biased, gate).outcome == "passed"
    assert apply_gate(biased, truth, gate).outcome == "failed"
    same = GateSettings(baseline="champion", not_worse_on=[], better_on=["mae"])
    assert apply_gate(overconfident, truth, same).outcome == "undecided"  # half the scale leaves the mean alone
    assert apply_gate(overconfident, truth, GateSettings(baseline="1", not_worse_on=["mae"])).outcome == "passed"


def test_the_gate_speaks_by_the_worst_of_its_rules(compared):
    truth, _, biased = compared
    against = {"baseline": "champion", "better_on": ["crps_mean"], "not_worse_on": ["cce_mean", "nll_mean"]}
    gate = GateSettings(maximum={"cce_mean": 0.2}, at_noise_floor=True, **against)
    passed = apply_gate(truth, biased, gate)
    assert passed.passed, passed.reasons
    assert len(passed.checks) == 5
    failed = apply_gate(biased, truth, gate)
    assert failed.outcome == "failed"
    text = " | ".join(failed.reasons)
    assert "wrong (p < 0.001)" in text
    assert "cce_mean is more than 5 % (" in text
    assert "nll_mean is more than 5 % of the baseline's skill (" in text


def test_a_margin_is_a_share_or_a_number(compared):
    lenient = GateSettings(**MARGIN, margin={"cce_mean": 1.0})
    assert apply_gate(compared[1], compared[0], GateSettings(**MARGIN)).outcome == "failed"
    assert apply_gate(compared[1], compared[0], lenient).passed
    gate = GateSettings(baseline="1", not_worse_on=["mae", "nll_mean"], margin={"mae": "10 %", "nll_mean": 0.2})
    checks = {check.metric: check for check in apply_gate(compared[2], compared[0], gate).checks}
    assert checks["mae"].limit == pytest.approx(1.1 * compared[0].metrics["mae"].value)
    assert checks["nll_mean"].limit == pytest.approx(compared[0].metrics["nll_mean"].value + 0.2)
    with_margin = {name for name, metric in METRICS.items() if metric.margin is not None}
    assert with_margin == {"cce_mean", "nll_mean", "crps_mean", "mae", "rmse", "ece", *EFFECTS}


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({}, "there is no rule, so that every version would pass"),
        ({"set_alias": "champion"}, "there is no rule"),
        ({"baseline": "champion", "not_worse_on": []}, "compared with in no metric"),
        ({"maximum": {"mae": 1.0}, "better_on": ["mae"]}, "better_on: compares with a baseline, and there is none"),
        ({"baseline": "champion", "better_on": ["cce_noise_floor"]}, "'cce_noise_floor' cannot be compared"),
        ({"baseline": "champion", "margin": {"mae": 1.0}}, "margin.mae: belongs to no rule"),
        ({"baseline": "champion", "margin": {"cce_mean": "a bit"}}, "'a bit' is no margin"),
        ({"baseline": "champion", "margin": {"cce_mean": -0.1}}, "-0.1 is no margin"),
        ({"baseline": "champion", "margin": {"nll_mean": "5 %"}}, "a share of an NLL"),
        ({"baseline": "champion", "margin": {"cce_mean": "5 % of skill"}}, "the distribution of all targets has none"),
        ({"maximum": {"mae": float("nan")}}, "finite"),
        ({"may_be_best": False}, "there is no rule"),
        (MARGIN | {"less_honest": "recalibrate"}, "less_honest: is about rules on crps_mean or nll_mean"),
    ],
)
def test_a_gate_without_sense_is_refused(rules, said):
    with pytest.raises(ValidationError, match=said):
        GateSettings(**rules)


def test_better_on_alone_asks_for_nothing_else():
    """The default margin of NLL voided the one rule that was asked for."""
    assert GateSettings(baseline="1", better_on=["nll_mean"]).not_worse_on == []
    assert GateSettings(baseline=1).not_worse_on == ["cce_mean", "nll_mean"]
    assert GateSettings(baseline=3).baseline == "3"
    assert GateSettings(may_be_best=True).may_be_best


def test_of_quantiles_crps_is_compared_unless_nll_is_asked_for(compared):
    """Their NLL is that of the density that we draw between them."""
    truth, _, biased = (
        replace(version, stated="quantiles", scores=version.scores.assign(nll=-version.scores["nll"]))
        for version in compared
    )
    decision = apply_gate(biased, truth, GateSettings(baseline="1"))
    assert [check.metric for check in decision.checks] == ["cce_mean", "crps_mean"]
    asked = apply_gate(biased, truth, GateSettings(baseline="1", not_worse_on=["nll_mean"]))
    assert [check.metric for check in asked.checks] == ["nll_mean"]
    number, why = best_of([{"test": biased}, {"test": truth}], GateSettings(baseline="0", margin={"cce_mean": 9.0}))
    assert (number, why.split(" is ")[0]) == (1, "cce_mean of angle/1")
    same = {"test": replace(truth, model=angle("7"))}
    assert best_of([{"test": truth}, same], GateSettings(baseline="0"))[1].endswith("on cce_mean, crps_mean")


def test_what_is_at_stake_is_the_lead_over_the_law_of_all_targets():
    y = np.random.default_rng(2).poisson(0.05, 4000).astype(float)
    shares = np.unique(y, return_counts=True)[1] / len(y)
    assert METRICS["nll_mean"].marginal(y) == pytest.approx(-np.sum(shares * np.log(shares)), abs=5e-4)
    z = np.random.default_rng(3).normal(2.0, 3.0, 4000)
    assert METRICS["nll_mean"].marginal(z) == pytest.approx(0.5 * np.log(2 * np.pi * np.e * 9.0), abs=0.05)
    assert METRICS["rmse"].marginal(z) == pytest.approx(np.std(z))
    assert METRICS["crps_mean"].marginal(z) == pytest.approx(3.0 / np.sqrt(np.pi), rel=0.05)


def test_a_margin_of_the_skill_is_small_where_little_is_at_stake(compared):
    truth, other, _ = compared
    gate = GateSettings(baseline="1", not_worse_on=["nll_mean"])
    (check,) = apply_gate(other, truth, gate).checks
    y = truth.scores["target"].to_numpy(float)[truth.scores["valid"].to_numpy(bool)]
    at_stake = METRICS["nll_mean"].marginal(y) - check.baseline
    assert check.limit == pytest.approx(check.baseline + 0.05 * max(0.0, at_stake))


def test_a_maximum_is_judged_by_the_interval_as_comparisons_are(compared):
    version = replace(compared[0], metrics={"cce_mean": MetricValue(0.05, 0.04, 0.06)})
    for limit, outcome in ((0.061, "passed"), (0.055, "undecided"), (0.045, "undecided"), (0.039, "failed")):
        decision = apply_gate(version, None, GateSettings(maximum={"cce_mean": limit}))
        assert decision.outcome == outcome, limit
    assert "cce_mean is 0.05 [0.04, 0.06], above the limit of 0.039" in decision.reasons[0]


def test_of_several_that_pass_the_best_by_the_order_of_the_rules_and_the_older_of_equals(compared):
    """The alias went to the newest of three that passed, though the oldest was better on all."""
    truth, overconfident, biased = ({"test": version} for version in compared)
    gate = GateSettings(maximum={"cce_mean": 9.0}, baseline="0", better_on=["crps_mean"])
    number, why = best_of([truth, overconfident, biased], gate)
    assert number == 0
    assert why.startswith("crps_mean of angle/1 is lower than that of angle/3: ")
    assert best_of([biased, truth], gate)[0] == 1
    assert best_of([biased, truth], gate)[1].startswith("crps_mean of angle/1 is lower than that of angle/3: ")
    same = {"test": replace(compared[0], model=angle("7"))}
    number, why = best_of([truth, same], gate)
    assert (number, why) == (0, "no later one is shown to be better than angle/1 on crps_mean, cce_mean")
    assert best_of([truth], gate) == (0, "the only one that passed")


def test_a_first_version_passes_only_where_that_was_asked_for_and_says_so(compared):
    rules = {"maximum": {"cce_mean": 1.0}, "baseline": "champion"}
    with pytest.raises(InvalidInputError, match=r"no version champion to compare angle/1 with.*first_version: pass"):
        apply_gate(compared[0], None, GateSettings(**rules))
    decision = apply_gate(compared[0], None, GateSettings(**rules, first_version="pass"))
    assert decision.passed
    assert "no version is champion yet: nothing was compared" in decision.reasons[1]
    assert not apply_gate(compared[0], None, GateSettings(maximum={"cce_mean": 0.0})).passed


def test_the_baseline_itself_is_said_to_be_it(compared):
    decision = apply_gate(compared[0], compared[0], GateSettings(baseline="champion"))
    assert decision.passed
    assert decision.reasons == ["angle/1 is the baseline itself"]


def test_a_metric_that_was_not_measured_is_an_error_with_a_remedy(compared):
    truth, other, _ = compared
    with pytest.raises(InvalidInputError, match=r"gate\.maximum: cce_men was not measured on angle/1.*mean cce_mean\?"):
        apply_gate(truth, None, GateSettings(maximum={"cce_men": 1.0}))
    bare = replace(truth, scores=truth.scores.drop(columns="nll"))
    with pytest.raises(
        InvalidInputError, match=r"not_worse_on: nll_mean was not measured on angle/1 .*; there are cce_"
    ):
        apply_gate(bare, other, GateSettings(baseline="2", not_worse_on=["nll_mean"]))
    metrics = {name: metric for name, metric in truth.metrics.items() if name != "nll_mean"}
    with pytest.raises(InvalidInputError, match="nll_mean was not measured on angle/1"):  # the baseline, not the other
        apply_gate(other, replace(bare, metrics=metrics), GateSettings(baseline="1", not_worse_on=["nll_mean"]))
    unasked = apply_gate(bare, other, GateSettings(baseline="2"))
    assert [check.metric for check in unasked.checks] == ["cce_mean"]


def test_an_evaluation_without_influence_is_undecided_and_says_what_to_do(compared):
    old = replace(compared[2], influence=None, influence_noise=None)
    decision = apply_gate(compared[0], old, GateSettings(**MARGIN))
    assert decision.outcome == "undecided"
    assert "congruence evaluate FILE --again -m models:/angle/3" in decision.reasons[0]


def test_an_infinite_likelihood_fails(compared):
    truth, other, _ = compared
    scores = truth.scores.copy()
    scores.loc[3, "nll"] = np.inf
    gate = GateSettings(baseline="2", not_worse_on=["nll_mean"])
    impossible = replace(truth, scores=scores)
    assert apply_gate(impossible, other, gate).outcome == "failed"
    assert apply_gate(other, impossible, gate).outcome == "passed"
    assert "infinite: a target was given no probability" in apply_gate(impossible, other, gate).reasons[0]


def test_a_baseline_is_written_in_every_way_and_a_wrong_one_is_named(logged):
    (_, second), settings, client = logged
    finished = finished_evaluations(settings, "test")
    client.set_registered_model_alias("angle", "champion", "1")
    for written in ("1", "champion", "models:/angle/1", "models:/angle@champion", "angle/1", "angle@champion"):
        version = baseline_version("angle", written, settings)
        assert gate_baseline(second, version, finished).label == "angle/1", written
    assert baseline_version("angle", None, settings) is None
    with pytest.raises(TrackingError, match="angle/1: the gate's baseline has no evaluation on split 'test'"):
        gate_baseline(replace(second, protocol_digest="other"), version, finished)
    for written, said in (
        (
            "champoin",
            r"gate\.baseline: angle has no alias 'champoin'; did you mean 'champion'\? Its aliases are champion",
        ),
        ("models:/angle@champoin", "did you mean 'champion'"),
        ("production", r"no alias 'production'; its aliases are champion\..*first_version: pass"),
        ("7", r"gate\.baseline: models:/angle/7: not in the registry.*versions \[1, 2\]"),
        ("models:/angel/1", r"gate\.baseline: models:/angel/1: not in the registry.*registered models: angle"),
    ):
        with pytest.raises(RegistryError, match=said):
            baseline_version("angle", written, settings)
    assert baseline_version("angle", "production", settings, first_version="pass") is None
    with pytest.raises(RegistryError, match="did you mean 'champion'"):  # much like one that there is: a slip
        baseline_version("angle", "champoin", settings, first_version="pass")


def test_decisions_in_mlflow(logged, tmp_path):
    (first, second), settings, client = logged
    gate = GateSettings(baseline="champion", not_worse_on=["cce_mean", "nll_mean"], better_on=["cce_mean"])
    decision = apply_gate(second, first, gate)
    assert decision.passed
    decided = log_decision(decision, settings)
    assert log_decision(decision, settings) == decided
    client.set_registered_model_alias("angle", "champion", "2")
    assert client.get_model_version("angle", "2").tags["cce_gate"] == "passed"
    worse = apply_gate(first, second, gate)
    log_decision(worse, settings)
    tags = client.get_model_version("angle", "1").tags
    assert tags["cce_gate"] == "failed"
    (refused,) = client.search_runs(
        [client.get_experiment_by_name("congruence/comparisons").experiment_id], "tags.cce_gate = 'failed'"
    )
    assert refused.info.run_id in tags["cce_gate_run"]
    assert refused.data.metrics == {"rules_failed": 3, "rules_undecided": 0, "rules_passed": 0}
    table = json.loads(Path(client.download_artifacts(refused.info.run_id, "gate.json", tmp_path)).read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [(row["outcome"], row["rule"]) for row in rows] == [
        ("failed", "not worse on cce_mean"),
        ("failed", "not worse on nll_mean"),
        ("failed", "better on cce_mean"),
    ]
    assert rows[0]["low"] < rows[0]["difference"] < rows[0]["high"]
    note = refused.data.tags["mlflow.note.content"]
    assert note.startswith("### ❌ failed: angle/1, against angle/2\n\n| | rule | why |\n")
    assert "| ❌ failed | not worse on cce_mean | cce_mean is more than 5 % (" in note


def test_an_undecided_version_says_so_in_mlflow(logged):
    (first, second), settings, client = logged
    same = replace(first, model=second.model, metrics=first.metrics)
    gate = GateSettings(baseline="1", not_worse_on=[], better_on=["cce_mean"])
    decision = apply_gate(same, first, gate)
    assert decision.outcome == "undecided"
    run = client.get_run(log_decision(decision, settings).run_id)
    assert run.data.tags["cce_gate"] == "undecided"
    assert run.data.metrics["rules_undecided"] == 1
    assert "undecided: angle/2, against angle/1" in run.data.tags["mlflow.note.content"]
    assert client.get_model_version("angle", "2").tags["cce_gate"] == "undecided"


def test_a_first_version_is_tagged_as_not_compared(logged):
    (first, _), settings, client = logged
    gate = GateSettings(baseline="champion", first_version="pass")
    log_decision(apply_gate(first, None, gate), settings)
    tags = client.get_model_version("angle", "1").tags
    assert tags["cce_gate"] == "passed"
    assert "nothing was compared" in tags["cce_gate_reasons"]


def test_a_version_that_is_only_less_honest_passes_where_the_file_says_so_once_it_is_recalibrated(compared):
    baseline, narrow, biased = (if_honest(version) for version in compared)
    margin = {"crps_mean": "4 % of skill"}
    rules = {"baseline": "champion", "not_worse_on": ["crps_mean", "nll_mean"], "margin": margin}
    refused = apply_gate(narrow, baseline, GateSettings(**rules))
    assert refused.outcome == "failed"
    allowed = apply_gate(narrow, baseline, GateSettings(**rules, less_honest="recalibrate"))
    check = next(check for check in allowed.checks if check.metric == "crps_mean")
    assert check.passed
    assert check.if_recalibrated
    assert check.reason.startswith("recalibrated, crps_mean is less than 4 % of the baseline's skill (")
    assert check.reason.endswith("congruence recalibrate FILE --version models:/angle/2")
    stored = apply_gate(replace(narrow, is_stored=True), baseline, GateSettings(**rules, less_honest="recalibrate"))
    assert stored.outcome == "failed", "there is no model to recalibrate"
    strict = GateSettings(baseline="champion", better_on=["crps_mean"], less_honest="recalibrate")
    assert not apply_gate(biased, baseline, strict).passed, "recalibrated it is no better either"
    as_good = apply_gate(baseline, narrow, strict)
    assert as_good.passed
    assert as_good.checks[0].if_recalibrated is None, "it needs no correction"
