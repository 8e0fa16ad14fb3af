"""Notices of looks over time and of scheduled runs: posted, given to a command, an event that starts a run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback import wait_until
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.settings import PREFECT_API_URL

from congruence.flows.scheduling.deployed_flows import UnevaluatedError, watch_registry
from congruence.flows.scheduling.findings import announce
from congruence.tasks.mlflow.identity import EvaluationIdentity
from congruence.tasks.models.registry import resolve
from congruence.tasks.scores.evaluation import MetricValue
from congruence.tasks.watching.account import Accounts

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "watch.md"
SPLIT = "circle"


@contextmanager
def webhook() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The address of a receiver on loopback, and the notices that it was posted."""
    posted: list[dict[str, str]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", posted
    server.shutdown()
    server.server_close()


@flow(name="answer-a-verdict")
def answer_a_verdict() -> None:
    """What somebody runs when a version turns out wrong."""


def deployed() -> str:
    return str(answer_a_verdict.to_deployment("by-automation").apply())  # type: ignore[union-attr]


async def runs_of(deployment: str) -> list[Any]:
    wanted = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment]))  # type: ignore[list-item]
    async with get_client() as client:
        return await client.read_flow_runs(flow_run_filter=wanted)


@pytest.mark.usefixtures("prefect_server")
def test_a_changed_verdict_is_posted_given_to_a_command_and_starts_the_automation_of_the_page(
    registry: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = deployed()
    (written,) = re.findall(r"```yaml\n(name: a version turned out wrong.+?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "automation.yaml"
    file.write_text(re.sub(r"deployment_id: [^,]+", f"deployment_id: {deployment}", written))
    command = [sys.executable, "-m", "prefect", "automation", "create", "--from-file", str(file)]
    environment = os.environ | {"PREFECT_API_URL": str(PREFECT_API_URL.value())}
    made = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert made.returncode == 0, made.stdout + made.stderr

    uri, given = registry.register("noticed"), tmp_path / "given.json"
    identity = EvaluationIdentity(resolve(uri), SPLIT, "s" * 16, "p" * 12, ("cce",))
    with webhook() as (address, posted):
        settings = registry.settings(notify={"webhook": address, "command": ["tee", str(given)]})
        accounts, said = Accounts.of(settings), []
        for look, p_value in enumerate((0.5, 1e-6)):
            rows = np.arange(100 * look, 100 * look + 100, dtype=np.uint64)
            opened = accounts.open(identity, rows, f"2026-03-{look + 1:02d}", "me")
            finding = accounts.close(opened, identity, {"cce_p_value": MetricValue(p_value)}, f"{look}" * 32, "me")
            said += announce({("noticed/1", SPLIT): finding}, settings)
    assert said[0] == "noticed/1 on circle: right so far (1 look)"
    (notice,) = posted
    assert notice == json.loads(given.read_text())
    assert re.fullmatch(
        r"congruence: noticed/1 on circle: (wrong, first shown|changed since .+, shown) on 2026-03-02 \(2 looks\)",
        notice["title"],
    )
    assert re.fullmatch(
        r"Evidence that it is wrong: [\d,.]+ \(20 is enough\)\. Evidence that it changed: [\d,.]+ \(1,000 is "
        rf"enough\)\. p of this look: 1e-06\. Its look: .*{finding.look.run_id}.*",
        notice["message"],
    )
    assert notice["text"] == f"{notice['title']}\n{notice['message']}"
    assert f"congruence: {said[1]}" == f"{notice['title']}. {notice['message']}"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    wait_until(lambda: asyncio.run(runs_of(deployment)), 120, "a run that the automation starts")


@pytest.mark.usefixtures("prefect_server")
def test_a_scheduled_run_whose_gate_fails_is_posted_with_the_reasons(registry: Any) -> None:
    registry.register("judged", bias=0.6)
    with webhook() as (address, posted):
        file = registry.file(
            models=["judged"],
            notify={"webhook": address},
            gate={"maximum": {"cce_mean": 0.0001}, "not_changed": True},
            watch={"in_process_rows": 1000},
        )
        with pytest.raises(UnevaluatedError, match="judged/1: gate failed"):
            watch_registry(file=file)
    verdict, run = posted
    assert re.match(r"congruence: judged/1 on circle: wrong, first shown on \d{4}-", verdict["title"])
    assert "of flow watch-registry is Failed" in run["title"]
    assert re.search(r"judged/1: gate failed: .*cce_mean is .*over all looks the version is wrong", run["message"])
