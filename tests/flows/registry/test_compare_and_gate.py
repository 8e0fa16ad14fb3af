"""Comparison and gate on logged evaluations: the flow evaluates once, everything after reads MLflow."""

from __future__ import annotations

from typing import Any

import pytest
from mlflow import MlflowClient
from typer.testing import CliRunner

from congruence.flows.cli import app
from congruence.flows.compare import compare
from congruence.flows.evaluate import VersionOutcome, evaluate
from congruence.flows.gate import gate, gate_outcomes
from congruence.kernels.errors import ProtocolError
from congruence.tasks.errors import SettingsError
from congruence.tasks.tracking import TrackingError

TRUTH, NARROW, BIASED = "angle/1", "angle/2", "angle/3"


@pytest.fixture(scope="module")
def outcomes(registry: Any, prefect_server: None) -> list[VersionOutcome]:
    """The truth, an overconfident version and a biased one; the biased one also under another protocol."""
    registry.register()
    registry.register(scale=0.4)
    registry.register(bias=1.5)
    found = evaluate(registry.settings(models=["angle"]), "all versions")
    registry.register()
    other = {"base": "exact", "regularization": 0.2}
    evaluate(registry.settings(models=[BIASED, "angle/4"], protocol=other), "two versions")
    return found


def holder(client: MlflowClient) -> str:
    return str(client.get_model_version_by_alias("angle", "champion").version)


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


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
    assert pair.differences["cce_mean"].p_value < 0.01
    files = [item.path for item in MlflowClient().list_artifacts(logged.run_id)]
    assert "comparison.html" in files
    assert compare("circle", [TRUTH, BIASED, NARROW], tracking).run_id == logged.run_id


@pytest.mark.usefixtures("outcomes")
def test_differing_protocols_are_refused(registry: Any) -> None:
    tracking = registry.settings().tracking
    with pytest.raises(ProtocolError, match=r"protocol differs.*angle/2 under protocol \w+.*angle/4 under protocol"):
        compare("circle", [NARROW, "angle/4"], tracking)
    other = compare("circle", [BIASED, "angle/4"], tracking).comparison
    first = compare("circle", [BIASED, TRUTH], tracking).comparison
    assert other.baseline.protocol_digest != first.baseline.protocol_digest
    with pytest.raises(TrackingError, match=r"angle/4: not evaluated on split 'circle' under protocol"):
        compare("circle", ["angle/4", TRUTH], tracking, protocol_digest=first.baseline.protocol_digest)


@pytest.mark.usefixtures("outcomes")
def test_the_command_prints_a_table_and_refuses_with_one_line(registry: Any) -> None:
    home = ("--home", registry.folder)
    shown = run("compare", "--split", "circle", TRUTH, NARROW, *home)
    assert shown.exit_code == 0, shown.output
    assert "angle/2 against angle/1, 160 points" in shown.output
    assert "differs most" in shown.output
    refused = run("compare", registry.file(), NARROW, "angle/4", *home)
    assert refused.exit_code == 2
    assert "protocol differs" in refused.output
    assert "--split NAME" in run("compare", TRUTH, NARROW, *home).output


@pytest.mark.usefixtures("outcomes")
def test_the_gate_passes_or_fails_with_reasons_and_moves_an_alias_only_when_told(registry: Any) -> None:
    client = MlflowClient()
    client.set_registered_model_alias("angle", "champion", "1")
    rules = {"baseline": "champion", "not_worse_on": ["cce_mean", "nll_mean"]}
    passed, failed = gate(registry.settings(models=[TRUTH, BIASED], gate=rules | {"maximum": {"mae": 5.0}}))
    assert passed.passed
    assert not failed.passed
    assert any("significantly worse than angle/1's" in reason for reason in failed.reasons)
    assert client.get_model_version("angle", "3").tags["cce_gate"] == "failed"
    assert holder(client) == "1"

    told = rules | {"baseline": None, "maximum": {"mae": 1.0}, "set_alias": "champion"}
    gate(registry.settings(models=["angle/1", "angle/2", "angle/3"], gate=told))
    assert holder(client) == "2"


def test_a_gate_after_an_evaluation_judges_only_what_is_new(registry: Any, outcomes: list[VersionOutcome]) -> None:
    settings = registry.settings(gate={"maximum": {"mae": 1.0}})
    assert {item.candidate.label: item.passed for item in gate_outcomes(settings, outcomes)} == {
        TRUTH: True,
        NARROW: True,
        BIASED: False,
    }
    found = [VersionOutcome(item.label, item.split, "found", item.run_id) for item in outcomes]
    assert gate_outcomes(settings, found) == []
    missing = VersionOutcome(TRUTH, "other", "failed", error="no such column")
    (decision,) = gate_outcomes(settings, [outcomes[0], missing])
    assert decision.reasons == ["not evaluated on other: no such column"]


@pytest.mark.usefixtures("outcomes")
def test_the_gates_command_speaks_by_its_exit_status(registry: Any) -> None:
    file = registry.file(gate={"maximum": {"mae": 1.0}})
    home = ("--home", registry.folder)
    assert run("gate", file, "-m", TRUTH, *home).exit_code == 0
    failed = run("gate", file, "-m", BIASED, *home)
    assert failed.exit_code == 3
    assert "mae is" in failed.output
    with pytest.raises(SettingsError, match="gate: the evaluation file has none"):
        gate(registry.settings(models=[TRUTH]))
