"""The stages' seconds and Dask's report stand in the run of the machine; neither can cost an evaluation anything."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from databases import mlflow_database
from distributed import Client, LocalCluster
from mlflow import MlflowClient

from congruence.tasks.mlflow import performance_report as reports
from congruence.tasks.mlflow.performance_report import FILE, performance_report, require_drawable
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.mlflow.stage_seconds import stage_seconds
from congruence.tasks.runtime.errors import SettingsError


@pytest.fixture
def tracked(tmp_path: Path) -> tuple[MlflowClient, str, TrackingSettings]:
    settings = TrackingSettings(uri=mlflow_database(tmp_path), performance_report=True)
    client = MlflowClient(settings.uri)
    experiment = client.create_experiment("machine", str(tmp_path / "artifacts"))
    return client, client.create_run(experiment).info.run_id, settings


def test_seconds_of_stages_add_up_and_those_of_a_stage_that_failed_stand(tracked: Any) -> None:
    client, run, settings = tracked
    stages: list[tuple[str, Any]] = [("embed", time.sleep), ("embed", time.sleep), ("solve", lambda _: 1 / 0)]
    with pytest.raises(ZeroDivisionError), stage_seconds(run, settings) as timed:
        _carried_out(timed, stages)
    metrics = client.get_run(run).data.metrics
    assert set(metrics) == {"seconds_embed", "seconds_solve"}
    assert 0.1 <= metrics["seconds_embed"] < 1.0
    with stage_seconds(run, settings.model_copy(update={"uri": "sqlite:////nowhere/at.db"})) as timed, timed("embed"):
        pass  # an MLflow that is away costs a line


def _carried_out(timed: Any, stages: list[tuple[str, Any]]) -> None:
    for name, work in stages:
        with timed(name):
            work(0.05)


def test_without_bokeh_the_evaluation_is_refused_before_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "find_spec", lambda name: None)
    require_drawable(TrackingSettings())
    with pytest.raises(SettingsError, match=r"performance_report: Dask draws it with Bokeh.*pip install .* bokeh"):
        require_drawable(TrackingSettings(performance_report=True))


def test_a_scheduler_that_cannot_draw_costs_a_line(tracked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client, run, settings = tracked

    def cannot(*_: Any, **__: Any) -> None:
        raise ImportError("No module named 'bokeh'")

    monkeypatch.setattr("distributed.performance_report.__aexit__", cannot)
    said: list[str] = []
    options: dict[str, Any] = {"processes": False, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=1, threads_per_worker=1, **options) as cluster, Client(cluster) as dask:
        with performance_report(dask, run, settings, said.append):
            assert dask.submit(sum, [1, 2]).result() == 3
        with performance_report(dask, run, settings.model_copy(update={"performance_report": False}), said.append):
            pass
    (line,) = said
    assert "No module named 'bokeh'" in line
    assert client.list_artifacts(run) == []


def test_dask_s_report_is_a_page_that_needs_no_network(tracked: Any) -> None:
    pytest.importorskip("bokeh")
    client, run, settings = tracked
    said: list[str] = []
    options: dict[str, Any] = {"processes": False, "dashboard_address": "127.0.0.1:0"}
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, **options) as cluster,
        Client(cluster) as dask,
        performance_report(dask, run, settings, said.append),
    ):
        dask.submit(sum, [1, 2]).result()
    assert said == []
    page = Path(client.download_artifacts(run, FILE)).read_text()
    assert "cdn.bokeh.org" not in page.partition("<body")[0]
