"""Lines of work on a Dask worker say which run, stage, version, split, shards and worker they come from."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from commands import run
from prefect import flow

from congruence.flows.evaluate import STAGES, in_flow
from congruence.flows.prefect.log_filters import run_fields
from congruence.tasks.runtime import json_logging as logs
from congruence.tasks.settings.evaluation import EvaluationSettings


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logs.JsonLines())
        self.found: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(json.loads(self.format(record)))


def _ask(version: str) -> None:
    logging.getLogger("congruence.tasks.of_the_test").warning("asked %s", version)


@pytest.mark.usefixtures("prefect_server")
def test_lines_name_run_stage_version_split_and_worker(
    monkeypatch: pytest.MonkeyPatch, content: Any, home: Any
) -> None:
    monkeypatch.setattr(logs, "_known", [run_fields])
    lines = _Lines()
    loggers = [logging.getLogger(name) for name in ("congruence.tasks.of_the_test", "prefect.task_runs")]
    for logger in loggers:
        logger.addHandler(lines)
    monkeypatch.setattr(loggers[1], "level", logging.INFO)
    settings = EvaluationSettings.model_validate(content(home=str(home), cluster={"kind": "threads", "workers": 1}))
    try:

        @flow(name="of a test", flow_run_name="evaluate one")
        def asks() -> None:
            with in_flow(settings) as cluster:
                about = {"fields": lambda version: {"version": version, "shard": "4-7"}}
                ask = lambda: [done.result() for done in cluster().map(_ask, ["angle/3"], name="ask", **about)]  # noqa: E731
                STAGES.stage("predict", "digits", ask)

        asks()
    finally:
        for logger in loggers:
            logger.removeHandler(lines)
    (ours,) = (line for line in lines.found if line["message"] == "asked angle/3")
    assert ours["evaluation"] == "evaluate one"
    assert (ours["stage"], ours["version"], ours["split"], ours["shard"]) == ("predict", "angle/3", "digits", "4-7")
    assert (ours["worker"], ours["task"]) == ("0", "predict digits")
    assert len(ours["run"]) == 36
    ended = [line for line in lines.found if line["message"].startswith("Finished in state")]
    assert [(line["stage"], line["split"], line["run"]) for line in ended] == [("predict", "digits", ours["run"])]


def test_a_command_writes_its_own_lines_as_json(tmp_path: Any) -> None:
    status, loaded, said = run("evaluate", str(tmp_path / "none.yaml"), CONGRUENCE_LOG="json")
    assert (status, "rich" in loaded) == (2, False)
    (line,) = [json.loads(text) for text in said.splitlines()]
    assert (line["level"], line["logger"], "cannot be read" in line["message"]) == ("error", "congruence", True)
