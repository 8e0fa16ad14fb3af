"""What a command does with its home folder and its environment before anything is started, and with a copied one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from congruence.flows.cli import environment
from congruence.tasks.mlflow.connection import TrackingError, experiment_id
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.runtime.mlflow_access import make_local_store

MAKES_FILES = """
import sys, tempfile
from pathlib import Path
from congruence.flows.cli.environment import embed_servers
embed_servers(Path(sys.argv[1]))
print(tempfile.mkdtemp(), flush=True)
sys.stdin.read()
"""


def test_temporary_files_live_in_the_home_folder_and_those_of_the_dead_go(tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", MAKES_FILES, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    folders = [Path(process.stdout.readline().strip()) for process in started if process.stdout is not None]
    assert {folder.parents[1] for folder in folders} == {tmp_path / "temporary"}
    killed, ended = started
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait(timeout=30)
    assert folders[0].exists()
    third = subprocess.run(
        [sys.executable, "-c", MAKES_FILES, str(tmp_path)], input="", capture_output=True, timeout=60
    )
    assert third.returncode == 0
    assert [folder.exists() for folder in folders] == [False, True], "the other one lives"
    ended.communicate("", timeout=30)
    assert list((tmp_path / "temporary").glob("process-*")) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "localhost,127.0.0.1,::1"),
        ({"no_proxy": "intern.example,127.0.0.1"}, "intern.example,127.0.0.1,localhost,::1"),
        ({"NO_PROXY": "*"}, "*"),
    ],
)
def test_loopback_is_exempt_from_proxies(given: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    environment._exempt_loopback_from_proxies()
    assert {os.environ.get(name) for name in ("NO_PROXY", "no_proxy")} - {None} == {expected}


def test_a_copied_home_refuses_to_write_into_the_original(tmp_path: Path) -> None:
    original, copy = tmp_path / "a home", tmp_path / "copy"
    original.mkdir()
    settings = TrackingSettings(uri=f"sqlite:///{original}/mlflow.db")
    make_local_store(str(settings.uri))
    client = MlflowClient(settings.uri)
    made = experiment_id(client, "congruence/circle/y", settings)
    client.create_experiment("elsewhere", str(tmp_path / "elsewhere"))
    client.log_text(client.create_run(made).info.run_id, "first", "note.txt")
    shutil.copytree(original, copy)
    (tmp_path / "link").symlink_to(original)

    linked = TrackingSettings(uri=f"sqlite:///{tmp_path}/link/mlflow.db")
    assert experiment_id(MlflowClient(linked.uri), "congruence/circle/y", linked) == made
    copied = TrackingSettings(uri=f"sqlite:///{copy}/mlflow.db")
    there = MlflowClient(copied.uri)
    with pytest.raises(TrackingError, match=rf"{original}/mlartifacts/congruence/circle/y: .*copied or moved.*--home"):
        experiment_id(there, "congruence/circle/y", copied)
    assert experiment_id(there, "elsewhere", copied), "where its owner wanted it"
    new = there.get_experiment(experiment_id(there, "congruence/circle/z", copied))
    assert new.artifact_location == str(copy / "mlartifacts" / "congruence" / "circle" / "z")
