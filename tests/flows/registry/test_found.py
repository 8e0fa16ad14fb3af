"""A run that finds everything done starts nothing, and says what the flow would have said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from commands import SERVERS, run

from congruence.flows.evaluate import evaluate
from congruence.tasks.evaluate.plan import Plan

GATE = {"maximum": {"cce_mean": 1e-9}}


@pytest.mark.usefixtures("prefect_server")
def test_a_found_run_gives_the_flows_outcomes_and_judges_the_gate_without_a_server(registry: Any) -> None:
    registry.register("seen")
    registry.register("seen", scale=0.5)
    settings = registry.settings(models=["seen"], metrics=["nll"])
    assert Plan(settings).outcomes() is None
    first = evaluate(settings, "two versions")
    assert [outcome.status for outcome in first] == ["evaluated", "evaluated"]

    found = Plan(settings).outcomes()
    assert found == evaluate(settings, "two versions")
    assert [outcome.status for outcome in found or []] == ["found", "found"]

    file = registry.file(models=["seen"], metrics=["nll"], gate=GATE)
    uri = f"sqlite:///{registry.folder / 'mlflow.db'}"
    status, loaded, said = run("evaluate", str(file), "--json", MLFLOW_TRACKING_URI=uri)
    assert status == 3, said
    assert not loaded & set(SERVERS)
    result = json.loads(said[said.index("{") : said.rindex("}") + 1])
    assert result["exit_status"] == 3
    assert [item["outcome"] for item in result["gate"]] == ["failed", "failed"]
    shown = {item["label"]: item for item in result["outcomes"]}
    for outcome in first:
        assert shown[outcome.label]["run_id"] == outcome.run_id
        assert shown[outcome.label]["protocol"] == outcome.protocol
        value = shown[outcome.label]["metrics"]["cce_mean"]["value"]
        assert value == pytest.approx(outcome.metrics["cce_mean"].value, rel=1e-3)


@pytest.mark.usefixtures("prefect_server")
def test_what_is_missing_or_changed_is_not_found(registry: Any, rows_file: Any) -> None:
    registry.register("grown")
    settings = registry.settings(models=["grown"], metrics=["nll"])
    evaluate(settings, "one version")
    assert Plan(settings).outcomes() is not None
    for changes in (
        {"seed": 1},
        {"metrics": ["nll", "mae"]},
        {"predictions": {"family": "normal", "columns": {"scale": 2.0}}},
    ):
        assert Plan(registry.settings(**({"models": ["grown"], "metrics": ["nll"]} | changes))).outcomes() is None
    other = rows_file(registry.folder / "other.parquet", seed=5)
    moved = registry.content()["splits"][0] | {"uri": str(other)}
    assert Plan(registry.settings(models=["grown"], metrics=["nll"], splits=[moved])).outcomes() is None
    registry.register("grown", scale=2.0)
    assert Plan(settings).outcomes() is None, "a version that was registered since"
