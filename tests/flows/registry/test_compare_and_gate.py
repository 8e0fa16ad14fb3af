"""Comparison and gate on logged evaluations: the flow evaluates once, everything after reads MLflow."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from congruence.flows.operations.compare import compare
from congruence.flows.operations.gate import annotation, gate, gate_outcomes
from congruence.kernels.errors import ProtocolError
from congruence.tasks.evaluate.plan import VersionOutcome
from congruence.tasks.mlflow.connection import TrackingError
from congruence.tasks.mlflow.identity import Conditions
from congruence.tasks.mlflow.reading import list_evaluations
from congruence.tasks.runtime.errors import SettingsError

TRUTH, NARROW, BIASED = "angle/1", "angle/2", "angle/3"


@pytest.fixture(scope="module", autouse=True)
def outcomes(registry: Any) -> list[VersionOutcome]:
    """The truth, an overconfident version and a biased one; the biased one also under another protocol."""
    registry.register()
    registry.register(scale=0.4)
    registry.register(bias=1.5)
    found = registry.evaluated(models=["angle"])
    registry.register()
    other = {"base": "exact", "regularization": 0.2}
    registry.evaluated(models=[BIASED, "angle/4"], protocol=other)
    return found


def holder(client: MlflowClient) -> str:
    return str(client.get_model_version_by_alias("angle", "champion").version)


def test_versions_are_compared_on_what_they_share(registry: Any, outcomes: list[VersionOutcome]) -> None:
    tracking = registry.settings().tracking
    logged = compare("circle", [TRUTH, BIASED, NARROW], tracking)
    comparison = logged.comparison
    assert comparison.baseline.label == TRUTH
    assert comparison.versions[-1].label == BIASED
    pair = comparison.pairs[BIASED]
    metrics = {outcome.label: outcome.metrics for outcome in outcomes}
    expected = metrics[BIASED]["mae"].value - metrics[TRUTH]["mae"].value
    assert pair.differences["mae"].difference == pytest.approx(expected)
    assert pair.differences["cce_squared_mean"].p_value < 0.01
    assert pair.differences["cce_mean"].low > 0
    files = [item.path for item in MlflowClient().list_artifacts(logged.run_id)]
    assert "comparison.html" in files
    assert compare("circle", [TRUTH, BIASED, NARROW], tracking).run_id == logged.run_id


def test_differing_protocols_are_refused(registry: Any) -> None:
    tracking = registry.settings().tracking
    with pytest.raises(ProtocolError, match=r"protocol differs.*angle/2 under protocol \w+.*angle/4 under protocol"):
        compare("circle", [NARROW, "angle/4"], tracking)
    other = compare("circle", [BIASED, "angle/4"], tracking).comparison
    first = compare("circle", [BIASED, TRUTH], tracking).comparison
    assert other.baseline.protocol_digest != first.baseline.protocol_digest
    digest = first.baseline.protocol_digest
    with pytest.raises(TrackingError, match=r"angle/4: not evaluated on split 'circle' under protocol"):
        compare("circle", ["angle/4", TRUTH], tracking, conditions=Conditions(protocol_digest=digest))


def test_the_command_prints_a_table_and_refuses_with_one_line(registry: Any) -> None:
    shown = registry.run("compare", "--split", "circle", TRUTH, NARROW)
    assert "angle/1 (baseline)" in shown.output
    assert "angle/1 is the baseline because it ranks first" in shown.output
    assert "against angle/1, 160 points" not in shown.output
    assert not re.search(r"\d\.\d{5}", shown.output), "three significant digits"
    in_full = registry.run("compare", "--split", "circle", TRUTH, NARROW, "--details", "--baseline", NARROW)
    assert "angle/1 against angle/2, 160 points" in in_full.output
    assert "because it ranks first" not in in_full.output
    assert "differs most" in in_full.output
    refused = registry.run("compare", registry.file(), NARROW, "angle/4", status=2)
    assert "angle/4: not evaluated on split 'circle' under protocol" in refused.output
    assert "its closest evaluation has another protocol" in refused.output
    assert "--split NAME" in registry.run("compare", TRUTH, NARROW, status=2).output


def test_the_gate_passes_or_fails_with_reasons_and_moves_an_alias_only_when_told(registry: Any) -> None:
    client = MlflowClient()
    client.set_registered_model_alias("angle", "champion", "1")
    rules = {"baseline": "champion", "not_worse_on": ["cce_mean", "nll_mean"]}
    passed, failed = gate(registry.settings(models=[TRUTH, BIASED], gate=rules | {"maximum": {"mae": 5.0}}))
    assert passed.passed
    assert failed.outcome == "failed"
    assert any("cce_mean is more than 5 % (" in reason for reason in failed.reasons)
    assert client.get_model_version("angle", "3").tags["cce_gate"] == "failed"
    assert holder(client) == "1"

    told = {"maximum": {"mae": 1.0}, "set_alias": "champion", "may_be_best": False}
    decisions = gate(registry.settings(models=["angle/1", "angle/2", "angle/3"], gate=told))
    assert holder(client) == "1", "the better one by CCE, which comes first where no rule names another metric"
    best = "of 2 versions that passed the best is angle/1: cce_mean of angle/1 is lower than that of angle/2: "
    assert [item.notes[0].startswith(best) for item in decisions if item.notes] == [True, True]
    assert [item.notes[1:] for item in decisions] == [("alias champion is now on angle/1",), (), ()]
    (newer,) = gate(registry.settings(models=[NARROW], gate=told))
    assert newer.notes == ("alias champion is now on angle/2",)
    order = told | {"maximum": {"mae": 1.0, "nll_mean": 9.0}}
    both = gate(registry.settings(models=["angle/1", "angle/2"], gate=order))
    assert holder(client) == "1", "the better one, though the newer holds the alias"
    assert both[0].notes[0].startswith(best)
    client.set_registered_model_alias("angle", "champion", "2")
    (older,) = gate(registry.settings(models=[TRUTH], gate=told))
    assert older.passed
    assert older.notes == ("alias champion stays on angle/2, which is newer",)
    assert holder(client) == "2"


def test_an_alias_moves_only_inside_the_set_of_versions_that_may_be_the_best(registry: Any) -> None:
    client = MlflowClient()
    client.set_registered_model_alias("angle", "champion", "1")
    (narrow,) = gate(registry.settings(models=[NARROW], gate={"maximum": {"mae": 1.0}, "set_alias": "champion"}))
    assert narrow.passed
    assert holder(client) == "1"
    why = "angle/2 is not the best of 3 versions by CRPS; angle/1 may be (95 % set)"
    assert narrow.notes == (f"alias champion does not move here: {why}",)
    rule = {"may_be_best": True, "set_alias": "champion"}
    true, narrow = gate(registry.settings(models=[TRUTH, NARROW], gate=rule))
    assert (true.outcome, narrow.outcome) == ("passed", "failed")
    assert true.reasons == ["angle/1 may be the best of 3 versions by CRPS"]
    assert narrow.reasons == [why]
    listed = {item.model.label: item for item in list_evaluations(["angle"], registry.settings().tracking)}
    marks = {label: [item.best_of(found) for found in item.evaluations] for label, item in listed.items()}
    assert (marks["angle/1"], marks["angle/2"]) == (["may be the best of 3 versions"], ["not the best of 3 versions"])
    assert marks["angle/4"] == [None], "evaluated under another protocol"
    said = registry.run("list", "angle")
    assert "may be, of 3 versions" in " ".join(said.output.replace("│", " ").split()), said.output


def test_a_dishonest_version_stands_also_as_it_would_be_when_recalibrated(registry: Any) -> None:
    file = registry.file()
    shown = registry.run("compare", file, TRUTH, NARROW, BIASED)
    assert "angle/2, recalibrated" in shown.output
    assert "angle/1, recalibrated" not in shown.output
    assert f"angle/2 is recalibrated by: congruence recalibrate {file} --version models:/angle/2" in shown.output
    assert " With recalibrated versions among them: " in shown.output
    assert shown.output.count("versions are recalibrated by what each states itself; `congruence recalibrate`") == 1
    assert "is less honest" in shown.output
    details = registry.run("compare", file, TRUTH, NARROW, "--details")
    assert "why angle/2 differs" in details.output
    (said,) = json.loads(registry.run("compare", file, TRUTH, NARROW, "--json").stdout)
    assert said["summary"].startswith("angle/1 wins: ")
    assert said["summary"] in " ".join(details.output.split())
    assert said["sentences"]["angle/2"] in " ".join(details.output.split())
    found = said["recalibrated"]["angle/2"]
    assert found["command"] == f"congruence recalibrate {file} --version models:/angle/2"
    assert found["crps_mean"]["value"] < said["versions"]["angle/2"]["crps_mean"]
    parts = said["parts"]["angle/2"]
    for each in (parts, parts["log_score"], parts["log_score"]["slices"].get("half = left", parts)):
        whole = each["honesty"]["value"] + each["knowledge"]["value"]
        assert whole == pytest.approx(each["total"]["value"], abs=1e-9)


def test_a_gate_after_an_evaluation_judges_also_what_was_found(registry: Any, outcomes: list[VersionOutcome]) -> None:
    settings = registry.settings(gate={"maximum": {"mae": 1.0}})
    expected = {TRUTH: "passed", NARROW: "passed", BIASED: "failed"}
    assert {item.candidate.label: item.outcome for item in gate_outcomes(settings, outcomes)} == expected
    found = [VersionOutcome(item.label, item.split, "found", item.run_id) for item in outcomes]
    MlflowClient().set_model_version_tag("angle", "3", "recalibrated_on", "80 rows of validation")
    by_run, by_name = gate_outcomes(settings, found), gate(settings.model_copy(update={"models": (BIASED,)}))
    MlflowClient().delete_model_version_tag("angle", "3", "recalibrated_on")
    assert {item.candidate.label: item.outcome for item in by_run} == expected
    corrected = "angle/3 was corrected on 80 rows of validation; a split that holds these rows flatters it"
    assert [corrected in item.notes for item in [*by_run, *by_name]] == [False, False, True, True]
    missing = VersionOutcome(TRUTH, "other", "failed", error="no such column")
    (decision,) = gate_outcomes(settings, [outcomes[0], missing])
    assert decision.reasons == ["not evaluated on other: no such column"]


def test_the_gates_command_speaks_by_its_exit_status(registry: Any) -> None:
    file = registry.file(gate={"maximum": {"mae": 1.0}})
    registry.run("gate", file, "-m", TRUTH)
    failed = registry.run("gate", file, "-m", BIASED, status=3)
    assert "mae is" in failed.output
    refused = registry.run("gate", registry.file(models=[NARROW], gate={"set_alias": "champion"}), status=2)
    assert "gate: there is no rule" in refused.output
    with pytest.raises(SettingsError, match="gate: the evaluation file has none"):
        gate(registry.settings(models=[TRUTH]))


def test_the_gate_speaks_to_a_pull_request(registry: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(registry.folder))
    file = registry.file(models=[TRUTH, BIASED], gate={"maximum": {"mae": 1.0}})
    judged = registry.run("gate", file, "--format", "github", status=3)
    line = next(n for n, said in enumerate(Path(file).read_text().splitlines(), 1) if said.startswith("gate:"))
    at = f"file={Path(file).resolve().relative_to(Path(registry.folder).resolve())},line={line}"
    good, bad = (said for said in judged.stdout.splitlines() if said.startswith("::"))
    assert good.startswith(f"::notice {at},title=gate passed%3A angle/1::mae is ")
    assert bad.startswith(f"::error {at},title=gate failed%3A angle/3::mae is ")
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("## Gate: ❌ failed\n")
    assert "### ❌ failed: angle/3" in summary
    assert "| ❌ failed | maximum mae | " in summary
    refused = registry.run("gate", registry.file(models=["angle/9"]), "--format", "github", status=2)
    assert "::error file=" in refused.stdout
    assert "title=nothing was judged::" in refused.stdout


def test_an_annotation_escapes_what_would_end_it() -> None:
    said = annotation("error", "a: b, 5 %", "one\ntwo: 5 %", Path("elsewhere.yaml"))
    assert said == "::error file=elsewhere.yaml,line=1,title=a%3A b%2C 5 %25::one%0Atwo: 5 %25"


def test_a_failed_gate_stays_failed_where_all_is_found(registry: Any) -> None:
    file = registry.file(models=[TRUTH], gate={"maximum": {"cce_mean": 0.0001}})
    for _ in range(2):
        said = registry.run("evaluate", file, status=3)
        assert "found" in said.output
        assert "gate failed: angle/1" in said.output


def test_a_small_split_is_undecided_in_terminal_status_and_tag(registry: Any) -> None:
    gate = {"baseline": "models:/angle/1", "not_worse_on": [], "better_on": ["mae"]}  # both have the same mean
    said = registry.run("gate", registry.file(models=[NARROW], gate=gate), status=4)
    assert "gate undecided: angle/2" in said.output
    assert MlflowClient().get_model_version("angle", "2").tags["cce_gate"] == "undecided"
    registry.run("gate", registry.file(models=[NARROW, BIASED], gate=gate), status=3)


@pytest.mark.parametrize("command", ["gate", "evaluate"])
def test_a_mistyped_baseline_passes_nothing(registry: Any, command: str) -> None:
    MlflowClient().set_registered_model_alias("angle", "champion", "1")
    for baseline, said in (
        ("champoin", "did you mean 'champion'?"),
        ("production", "first_version: pass"),
        ("models:/angle/9", "angle has versions [1, 2, 3, 4]"),
    ):
        refused = registry.run(command, registry.file(models=[NARROW], gate={"baseline": baseline}), status=2)
        assert "gate.baseline" in refused.output
        assert said in refused.output
        assert "passed" not in refused.output
    first = registry.file(models=[NARROW], gate={"baseline": "production", "first_version": "pass"})
    passed = registry.run(command, first)
    assert "no version is production yet: nothing was compared" in passed.output


def test_gate_and_compare_read_what_their_file_asks_for(registry: Any, outcomes: list[VersionOutcome]) -> None:
    """The biased version was logged last under another protocol, under which its CCE is smaller."""
    other = {"base": "exact", "regularization": 0.2}
    value = next(item for item in outcomes if item.label == BIASED).metrics["cce_mean"].value
    (last,) = gate(registry.settings(models=[BIASED], protocol=other, gate={"maximum": {"cce_mean": 9.0}}))
    lower = last.candidate.metrics["cce_mean"].value
    assert lower < value
    rule = {"maximum": {"cce_mean": (lower + value) / 2}}
    for asked, shown_value in (({}, value), ({"protocol": other}, lower)):
        judged = registry.run("gate", registry.file(models=[BIASED], gate=rule, **asked), status=4)
        assert f"{shown_value:.3g}".lstrip("0") in judged.output, judged.output

    shown = registry.run("compare", registry.file(models=[TRUTH, BIASED]))
    assert f"{value:.3g}".lstrip("0") in shown.output
    assert f"{lower:.3g}".lstrip("0") not in shown.output
    shown = registry.run("compare", registry.file(models=["angle/4", BIASED], protocol=other))
    assert f"{lower:.3g}".lstrip("0") in shown.output

    never = {"base": "exact", "regularization": 0.3}
    for command in ("gate", "compare"):
        missing = registry.run(command, registry.file(models=[BIASED, "angle/4"], gate=rule, protocol=never), status=2)
        assert "angle/3: not evaluated on split 'circle' under protocol" in missing.output
    split = registry.content()["splits"][0] | {"slices": []}
    missing = registry.run("gate", registry.file(models=[BIASED], gate=rule, splits=[split]), status=2)
    assert "another content of the split" in missing.output
    edited = registry.run("gate", registry.file(models=[BIASED], gate=rule, seed=1), status=2)
    assert "another predictions, model_inputs, solver, seed and store.dtype" in edited.output
