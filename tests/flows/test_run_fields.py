"""Lines of a task on a Dask worker say which run, stage, version, split, shards and worker they come from."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from commands import run
from distributed import LocalCluster
from prefect import flow, task
from prefect_dask.task_runners import DaskTaskRunner

from congruence.flows.evaluation.stages.embed import embed_task
from congruence.flows.evaluation.stages.predict import check_task, predict_task
from congruence.flows.evaluation.stages.score import log_task, score_task
from congruence.flows.evaluation.stages.solve import solve_task
from congruence.flows.prefect.run_fields import run_fields
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.runtime import json_logging as logs


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logs.JsonLines())
        self.found: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(json.loads(self.format(record)))


@task(name="predict", task_run_name="predict {version.label}")
def predict_some(version: ModelVersion, rows: Any, first: int, last: int) -> None:
    logging.getLogger("congruence.tasks.of_the_test").warning("asked")


@pytest.mark.usefixtures("prefect_server")
def test_a_line_of_a_worker_names_run_stage_version_split_shards_and_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_known", [])
    logs.know(run_fields)
    lines = _Lines()
    logging.getLogger("congruence.tasks.of_the_test").addHandler(lines)
    logging.getLogger("prefect.task_runs").addHandler(lines)
    rows = SimpleNamespace(split=SimpleNamespace(name="digits"))
    try:
        with LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster:
            runner: Any = DaskTaskRunner(address=cluster.scheduler_address)

            @flow(name="of a test", flow_run_name="evaluate on digits", task_runner=runner)
            def asks() -> None:
                predict_some.submit(ModelVersion("angle", "3", "models:/angle/3"), rows, 4, 7).wait()

            asks()
    finally:
        logging.getLogger("congruence.tasks.of_the_test").removeHandler(lines)
        logging.getLogger("prefect.task_runs").removeHandler(lines)
    (ours,) = (line for line in lines.found if line["message"] == "asked")
    assert ours["evaluation"] == "evaluate on digits"
    assert (ours["stage"], ours["version"], ours["split"], ours["shard"]) == ("predict", "angle/3", "digits", "4-7")
    assert ours["worker"] == "0"
    assert len(ours["run"]) == 36


def test_the_end_of_a_task_is_told_by_its_name() -> None:
    version, rows = SimpleNamespace(label="angle/3"), SimpleNamespace(split=SimpleNamespace(name="test set"))
    given = {"version": version, "rows": rows, "split": rows.split, "split_name": "test set", "labels": "angle/3",
             "label": "angle/3", "evaluation": rows, "first": 4, "last": 7}  # fmt: skip
    about = {"split": "test set", "version": "angle/3"}
    for each, wanted in (
        (embed_task, {"split": "test set", "shard": "4-7"}),
        (predict_task, about | {"shard": "4-7"}),
        (check_task, about),
        (solve_task, about),
        (score_task, about),
        (log_task, about),
    ):
        record = logging.makeLogRecord({"task_run_name": str(each.task_run_name).format(**given)})
        assert run_fields(record) == wanted | {"task": record.task_run_name}  # type: ignore[attr-defined]


def test_a_command_writes_its_own_lines_as_json(tmp_path: Any) -> None:
    status, loaded, said = run("evaluate", str(tmp_path / "none.yaml"), CONGRUENCE_LOG="json")
    assert (status, "rich" in loaded) == (2, False)
    (line,) = [json.loads(text) for text in said.splitlines()]
    assert (line["level"], line["logger"], "cannot be read" in line["message"]) == ("error", "congruence", True)
