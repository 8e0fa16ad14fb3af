"""Evaluations on a registry: found again only where nothing changed a number; a failure stops no other."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest
import scipy.stats
from commands import SERVERS, run

from congruence.flows.evaluate import evaluate
from congruence.tasks.evaluate.evaluation import Steps
from congruence.tasks.evaluate.plan import Plan, VersionOutcome
from congruence.tasks.mlflow.reading import read_scores
from congruence.tasks.runtime.errors import SplitChangedError


def test_a_protocol_with_a_bootstrapped_validation_reference(registry: Any, rows_file: Callable[..., Path]) -> None:
    (split,) = registry.content()["splits"]
    reference = split | {"name": "validation", "uri": str(rows_file(registry.folder / "validation.parquet", 1, 120))}
    changes = {"protocol": {"base": "ecai", "bootstraps": 3, "draws": 2}, "reference": reference, "metrics": ["nll"]}
    (outcome,) = registry.evaluated(models=[registry.register("bootstrapped")], **changes)
    assert outcome.status == "evaluated"
    assert outcome.metrics["cce_std"].value > 0
    assert outcome.run_id is not None
    assert len(read_scores(outcome.run_id)) == 160


def test_rows_far_out_are_named_wherever_they_lie(registry: Any) -> None:
    rows = pd.read_parquet(registry.split)
    rows.loc[rows.index[-6:], "y"] += 60.0
    path = registry.folder / "far.parquet"
    rows.to_parquet(path, index=False)
    registry.register("far-out")
    split = registry.content()["splits"][0] | {"name": "far", "uri": str(path)}
    (outcome,) = registry.evaluated(models=["far-out"], splits=[split], metrics=["calibration"])
    assert outcome.error is None
    said = " ".join(outcome.wrong)
    assert any(str(key) in said for key in rows["key"].iloc[-6:]), said


GATE = {"maximum": {"cce_mean": 1e-9}}


def test_a_found_run_gives_the_flows_outcomes_and_judges_the_gate_without_a_server(registry: Any) -> None:
    registry.register("seen")
    registry.register("seen", scale=0.5)
    settings = registry.settings(models=["seen"], metrics=["nll"])
    assert Plan(settings).outcomes() is None
    first = evaluate(Plan(settings))
    assert [outcome.status for outcome in first] == ["evaluated", "evaluated"]

    found = Plan(settings).outcomes()
    assert found == evaluate(Plan(settings))
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


def test_what_is_missing_or_changed_is_not_found(registry: Any, rows_file: Any) -> None:
    registry.register("grown")
    settings = registry.settings(models=["grown"], metrics=["nll"])
    registry.evaluated(models=["grown"], metrics=["nll"])
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


WIDE = {"family": "normal", "columns": {"scale": 2.0}}


def runs() -> list[str]:
    return list(mlflow.search_runs(experiment_names=["congruence/evaluations"])["run_id"])


def only(registry: Any, **changes: Any) -> VersionOutcome:
    """The outcome of one version."""
    (outcome,) = registry.evaluated(metrics=["nll"], **changes)
    return outcome


def test_edited_predictions_are_asked_for_and_measured_anew(registry: Any) -> None:
    registry.register("read")
    first = only(registry, models=["read/1"])
    edited = only(registry, models=["read/1"], predictions=WIDE)
    assert (first.status, edited.status) == ("evaluated", "evaluated")
    rows = pd.read_parquet(registry.split)
    for outcome, scale in ((first, 1.0), (edited, 2.0)):
        expected = -scipy.stats.norm(2 * rows["angle"], scale).logpdf(rows["y"]).mean()
        assert outcome.metrics["nll_mean"].value == pytest.approx(expected)
    assert edited.metrics["cce_mean"].value != first.metrics["cce_mean"].value
    for changes, run_id in (({}, first.run_id), ({"predictions": WIDE}, edited.run_id)):
        again = only(registry, models=["read/1"], **changes)
        assert (again.status, again.run_id) == ("found", run_id)


def test_a_dropped_input_that_the_model_needs_is_noticed(registry: Any) -> None:
    registry.register("fed")
    features = registry.content()["splits"][0] | {"input": ["cos", "sin", "angle"]}
    changes = {"models": ["fed/1"], "encoder": {"kind": "identity", "dimension": 3}}
    assert only(registry, **changes, splits=[features]).status == "evaluated"
    dropped = only(registry, **changes, splits=[features | {"model_inputs": ["cos", "sin"]}])
    assert dropped.status == "failed"
    assert "asks for input column 'angle'" in str(dropped.error)


def test_an_evaluation_is_made_again_on_request(registry: Any) -> None:
    registry.register("again")
    before = only(registry, models=["again/1"])
    kept = list((registry.folder / "embeddings" / "predictions").glob("*/*.npz"))
    times = {path: path.stat().st_mtime_ns for path in kept}
    file = registry.file(models=["again/1"], metrics=["nll"])
    registry.run("evaluate", file, "--again")
    after = only(registry, models=["again/1"])
    assert after.status == "found"
    assert after.run_id != before.run_id
    assert before.run_id not in runs()
    assert after.metrics["cce_mean"].value == pytest.approx(before.metrics["cce_mean"].value, rel=1e-3)
    assert any(path.stat().st_mtime_ns != times[path] for path in kept)


def test_rows_that_are_replaced_during_a_run_end_it_and_leave_nothing_of_the_mixture(
    registry: Any, rows_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register("mixed")
    split = registry.content()["splits"][0] | {"uri": str(rows_file(registry.folder / "mixed.parquet", 8))}
    right = (registry.folder / "mixed.parquet").read_bytes()

    embed = Steps.embed

    def replace_and_embed(*arguments: Any) -> None:
        other = rows_file(registry.folder / "other.parquet", 9)
        other.rename(registry.folder / "mixed.parquet")
        embed(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Steps, "embed", replace_and_embed)
        with pytest.raises(SplitChangedError, match=r"mixed\.parquet: was replaced or written to since"):
            only(registry, models=["mixed/1"], splits=[split])
    (registry.folder / "mixed.parquet").write_bytes(right)
    after = only(registry, models=["mixed/1"], splits=[split])
    assert after.status == "evaluated"
    rows = pd.read_parquet(registry.folder / "mixed.parquet")
    expected = -scipy.stats.norm(2 * rows["angle"], 1.0).logpdf(rows["y"]).mean()
    assert after.metrics["nll_mean"].value == pytest.approx(expected)
