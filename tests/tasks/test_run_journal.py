"""What a process that died left open is marked by whoever finds its journal; what lives or has ended is left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from databases import mlflow_database
from loopback import free_port
from mlflow import MlflowClient

from congruence.tasks.runtime.journal_sweep import sweep

DIES = """
import os, sys
from pathlib import Path
from congruence.tasks.runtime.run_journal import closed, keep_journal, opened
folder, uri, running, finished = sys.argv[1:5]
keep_journal(Path(folder))
for entry in [("run", uri, running), ("run", uri, finished), ("run", uri, "noted as closed"),
              ("claim", uri, "law", "1", "congruence.claim.a"), ("run", uri, "of no database"),
              ("run", "postgresql://user:secret@nowhere/a", "a run"), ("flow_run", "embedded", "a flow run")]:
    opened(*entry)
closed("run", uri, "noted as closed")
print("ready", flush=True)
sys.stdin.read()
os._exit(9)
"""


@pytest.fixture
def client(tmp_path: Path) -> MlflowClient:
    uri = mlflow_database(tmp_path)
    made = MlflowClient(uri, uri)
    made.create_registered_model("law")
    made.create_model_version("law", str(tmp_path))
    made.set_model_version_tag("law", "1", "congruence.claim.a", "held")
    made.set_model_version_tag("law", "1", "congruence.claim.b", "of another")
    return made


def test_open_runs_of_a_dead_process_fail_with_the_reason(client: MlflowClient, tmp_path: Path) -> None:
    running, finished = (client.create_run("0").info.run_id for _ in range(2))
    client.set_terminated(finished)
    folder = tmp_path / "open-runs"
    command = [sys.executable, "-c", DIES, str(tmp_path), client.tracking_uri, running, finished]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert sweep(folder, "Stopped.") == 0, "its process lives"
    assert client.get_run(running).info.status == "RUNNING"
    process.communicate("")

    (journal,) = folder.glob("*.jsonl")
    assert "secret" not in journal.read_text()
    assert journal.stat().st_mode & 0o077 == 0
    assert sweep(folder, "Stopped.") == 2, "one is of a server without its password, one of an embedded server"
    marked = client.get_run(running)
    assert (marked.info.status, marked.data.tags["congruence.error"]) == ("FAILED", "Stopped.")
    assert client.get_run(finished).info.status == "FINISHED"
    assert list(client.get_model_version("law", "1").tags) == ["congruence.claim.b"]
    assert journal.read_text().count('"open"') == 2


def test_a_server_that_is_away_is_asked_once_and_again_by_the_next_command(tmp_path: Path) -> None:
    folder = tmp_path / "open-runs"
    folder.mkdir()
    server = f"http://127.0.0.1:{free_port()}"
    lines = [f'{{"open": {{"kind": "run", "server": "{server}", "name": ["{run}"]}}}}\n' for run in range(100)]
    (folder / "machine-1-1.jsonl").write_text("".join(lines) + '{"open": {"kind": "ru')
    assert sweep(folder) == 100
    assert sweep(folder) == 100
