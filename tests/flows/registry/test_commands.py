"""validate, list, open and the quick look, on a registry with versions good and bad."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import mlflow
import numpy as np
import pandas as pd
import pytest

from congruence.flows.operations.validate import quick, validate
from congruence.tasks.data.split import open_split
from congruence.tasks.data.usable import split_of_rows
from congruence.tasks.evaluate.plan import Plan
from congruence.tasks.recalibration.versions import halves_of


def test_what_would_fail_is_said_before_anything_is_started(registry: Any) -> None:
    registry.register("tried")
    file = registry.file(models=["tried"], metrics=["nll"])
    shown = registry.run("validate", file)
    assert "splits 'circle' (160 rows)" in shown.stdout
    assert "to do  tried/1 on circle: normal" in shown.stdout
    wrong = registry.file(models=["tried"], predictions={"family": "normal", "columns": {"loc": "mu"}})
    shown = registry.run("evaluate", wrong, "--dry-run", "--json", status=1)
    (version,) = json.loads(shown.stdout)["versions"]
    assert version["status"] == "fails"
    assert "mu" in version["said"]
    shown = registry.run("validate", wrong, status=1)
    assert "fails  tried/1 on circle: " in shown.stdout
    assert "on circle: tried/1" not in shown.stdout, "the name once"
    assert shown.stdout.rstrip().endswith("1 fails")


def test_few_rows_and_rows_without_a_target_are_said(registry: Any) -> None:
    """A split with 5 % missing targets, which a run refuses, was "1 to do"."""
    registry.register("looked-at")
    frame = pd.read_parquet(registry.split)
    for rows, missing, status, words in (
        (60, 0, 0, "60 rows show gross faults at most"),
        (160, 8, 2, "8 of 160 rows lack a finite number"),
    ):
        part = frame.head(rows).copy()
        part.loc[part.index[:missing], "y"] = np.nan
        path = registry.folder / f"part-{rows}.parquet"
        part.to_parquet(path)
        split = registry.content()["splits"][0] | {"uri": str(path)}
        file = registry.file(models=["looked-at"], splits=[split], metrics=["nll"], predictions={"family": "normal"})
        done = registry.run("validate", file, status=status)
        assert words in " ".join(done.output.split())


def test_the_rows_of_a_quick_look_are_rows_of_the_split(registry: Any) -> None:
    settings = registry.settings(models=["tried"], gate={"maximum": {"cce_mean": 1.0}})
    looked = quick(settings, rows=40)
    assert looked.gate is None
    (split,) = looked.splits
    assert split.name == "circle-quick"
    whole, part = open_split(settings.splits[0]), open_split(split)
    assert part.rows == 40
    columns = ["key", "y", "angle", "cos", "sin", "half"]
    rows = {shard_key: row for shard in whole.shards for shard_key, row in keyed(whole.frame(shard, columns))}
    for shard in part.shards:
        for key, row in keyed(part.frame(shard, columns)):
            assert rows[key] == row
    assert quick(settings, rows=40) == looked, "the same sample every time"
    assert quick(settings, rows=160).splits == settings.splits, "a small split is taken whole"


def test_a_quick_look_and_a_correction_divide_no_group(registry: Any, tmp_path: Path, rows_file: Any) -> None:
    whole = rows_file(tmp_path / "rows.parquet", 5, 400)
    table = pd.read_parquet(whole)
    table.assign(patient=[f"p{row % 50}" for row in range(400)]).to_parquet(whole)
    part = registry.content()["splits"][0] | {"uri": str(whole), "groups": "patient"}
    (looked,) = quick(registry.settings(splits=[part]), rows=100).splits
    taken = pd.read_parquet(looked.uri)["patient"]
    assert taken.value_counts().tolist() == [8] * 12
    split = open_split(registry.settings(splits=[part]).splits[0])
    split_of_rows(split, np.flatnonzero(halves_of(split).held_out), tmp_path / "held-out.parquet", "held-out")
    held_out = set(pd.read_parquet(tmp_path / "held-out.parquet")["patient"])
    patients = np.array([f"p{row % 50}" for row in range(400)])
    fitted = set(patients[halves_of(split).fitting])
    assert held_out | fitted == set(patients)
    assert not held_out & fitted


def keyed(frame: Any) -> list[tuple[str, tuple[Any, ...]]]:
    return [(str(row[0]), tuple(row)) for row in frame.itertuples(index=False)]


def test_versions_are_listed_with_their_evaluations_and_reports_are_opened(registry: Any) -> None:
    registry.register("shown")
    registry.register("shown", scale=0.2)
    tracking = {"report": True, "patience": 5}
    asked = {"models": ["shown/1"], "metrics": ["nll"], "tracking": tracking}
    (outcome,) = registry.evaluated(**asked)
    settings = registry.settings(**asked)
    assert validate(settings).versions[0].status == "found"
    assert Plan(settings).outcomes() is not None

    shown = registry.run("list", "shown", "--json")
    one, two = json.loads(shown.stdout)
    assert (one["label"], two["label"], two["evaluations"]) == ("shown/1", "shown/2", [])
    (listed,) = one["evaluations"]
    assert (listed["split"], listed["run_id"], listed["protocol"]) == ("circle", outcome.run_id, outcome.protocol)
    assert listed["metrics"]["cce_mean"] == pytest.approx(outcome.metrics["cce_mean"].value, rel=1e-3)
    shown = registry.run("list", "shown")
    assert "not evaluated" in shown.stdout
    shown = registry.run("list", "shwon")
    assert "no version is called shwon; `congruence list` shows all" in " ".join(shown.stdout.split())

    gated = registry.file(**asked, gate={"maximum": {"cce_mean": 1.0}})
    registry.run("gate", gated)
    client = mlflow.MlflowClient()
    assert client.get_model_version("shown", "1").tags["cce_gate_protocol"] in outcome.protocol
    for judged, gate in ((None, "passed"), ("of another encoder", "passed by another protocol")):
        if judged is not None:
            client.set_model_version_tag("shown", "1", "cce_gate_protocol", judged)
        shown = registry.run("list", "shown/1", "--json")
        assert [found["gate"] for found in json.loads(shown.stdout)[0]["evaluations"]] == [gate]

    shown = registry.run("open", "shown/1", "--print")
    report = Path(unquote(urlsplit(shown.stdout.strip().splitlines()[-1]).path))
    assert "shown/1" in report.read_text()
    registry.run("open", "shown/2", "--print", status=2)
    report.parent.rename(report.parent.with_name("elsewhere"))  # as where a home folder was moved
    moved = registry.run("open", "shown/1", "--print", status=2)
    assert f"there is no {report.parent}, where MLflow has its files" in moved.output
