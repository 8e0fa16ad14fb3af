"""What MLflow is told to show: columns and charts of the list, descriptions of experiments and versions."""

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from comparable import angle
from mlflow import MlflowClient

from congruence.flows.operations.listing import list_pages
from congruence.tasks.mlflow import identity
from congruence.tasks.mlflow.evaluations import described, log_evaluation
from congruence.tasks.scores.evaluation import MetricValue
from congruence.tasks.settings.sections import TrackingSettings

VERSION = angle("1")
LONGEST_TAG = 5000  # of an experiment, in every MLflow 3


def test_the_view_is_what_servers_with_and_without_named_views_read() -> None:
    text = identity.view_of_evaluations("test", "price")
    assert len(text) <= LONGEST_TAG
    tag = json.loads(text)
    packed = tag["state"].removeprefix("deflate;")
    state = json.loads(zlib.decompress(base64.b64decode(packed)))
    assert tag["name"] == "test: price"
    assert isinstance(tag["createdAt"], int)
    assert tag | {"state": ""} == {name: state.get(name, tag[name]) for name in tag} | {"state": ""}
    assert state["searchFilter"] == "tags.`congruence.split` = 'test' and params.`target` = 'price'"
    assert state["selectedColumns"][0] == state["orderByKey"] == "metrics.`headline/crps_skill`"
    assert "tags.`verdict`" in state["selectedColumns"]
    sections = {section["uuid"]: section for section in state["compareRunSections"]}
    assert [section["name"] for section in sections.values() if section["display"]] == ["headline"]
    charts = state["compareRunCharts"]
    assert [chart["metricKey"] for chart in charts][:2] == ["headline/crps_skill", "headline/crps_mean"]
    assert len({chart["uuid"] for chart in charts}) == len(charts) == 12
    assert {sections[chart["metricSectionId"]]["name"] for chart in charts} == {"headline"}


def test_an_evaluation_prepares_its_experiment_and_describes_its_version(
    make_evaluation: Any, registered: TrackingSettings
) -> None:
    client = MlflowClient()
    run_id = log_evaluation(make_evaluation(model=VERSION), registered)
    experiment = client.get_experiment_by_name("congruence/evaluations")
    key = identity.view_key("test")
    assert experiment.tags[f"mlflow.sharedViewState.{key}"] == identity.view_of_evaluations("test")
    opened = f"#/experiments/{experiment.experiment_id}/runs?viewStateShareKey={key}"
    assert "Choose a split" in experiment.tags["mlflow.note.content"]
    note = client.get_run(run_id).data.tags["mlflow.note.content"]
    assert note.startswith("**No fault found in 118 rows**")
    assert opened in note
    text = client.get_model_version("angle", "1").description
    assert text.startswith("Trained on *Tuesday*.\n\n")
    assert "- **test**: no fault found in 118 rows" in text
    assert f"/runs/{run_id}" in text
    assert "report.html" not in text  # none was logged
    assert "cce_excess" not in client.get_model_version("angle", "1").tags


def test_the_ui_names_a_page_for_each_split(
    make_evaluation: Any, registered: TrackingSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(registered.uri))
    assert list_pages(tmp_path, "http://127.0.0.1:5000") == []
    log_evaluation(make_evaluation(model=VERSION), registered)
    experiment = MlflowClient().get_experiment_by_name("congruence/evaluations").experiment_id
    (line,) = list_pages(tmp_path, "http://127.0.0.1:5000")
    assert line.split() == [
        "evaluations",
        "on",
        "test:",
        f"http://127.0.0.1:5000/#/experiments/{experiment}/runs?viewStateShareKey={identity.view_key('test')}"
        "&workflowType=machine_learning",
    ]


def test_a_description_that_somebody_wrote_stays(make_evaluation: Any, registered: TrackingSettings) -> None:
    client = MlflowClient()
    experiment = client.create_experiment("congruence/evaluations", tags={"mlflow.note.content": "Ours."})
    log_evaluation(make_evaluation(model=VERSION), registered)
    assert client.get_experiment(experiment).tags["mlflow.note.content"] == "Ours."
    assert f"mlflow.sharedViewState.{identity.view_key('test')}" in client.get_experiment(experiment).tags


def test_a_version_has_one_entry_for_each_split_and_what_people_wrote_stays(make_evaluation: Any) -> None:
    def found(split: str, cce: float) -> Any:
        return make_evaluation(model=VERSION, split=split, metrics={"cce_mean": MetricValue(cce)})

    text = described("Before it.", found("hard", 0.3), "1", "a" * 32)
    text = described(text, found("easy", 0.1), "2", "b" * 32)
    text = described(text + "\n\nAfter it.", found("hard", 0.2), "1", "c" * 32)
    entries = {line.split("**")[1]: line for line in text.splitlines() if line.startswith("- ")}
    assert sorted(entries) == ["easy", "hard"]
    assert "b" * 32 in entries["easy"]
    assert "c" * 32 in entries["hard"]
    assert "a" * 32 not in text
    assert text.startswith("Before it.")
    assert text.endswith("After it.")
    assert described(text, found("hard", 0.2), "1", "c" * 32) == text
