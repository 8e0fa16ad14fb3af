"""`congruence stack`: the whole topology as processes, an evaluation through its work pool, kills, and nothing left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
from loopback import wait_until
from stack_stage import StackStage, eventually

from congruence.flows.stack.example import write_example
from congruence.flows.stack.place import open_place, read_environment, write_environment
from congruence.flows.stack.topology import topology
from congruence.tasks.settings.evaluation import load_settings
from congruence.tasks.stack.account import read_account, wait_until_down
from congruence.tasks.stack.errors import StackError
from congruence.tasks.stack.postgresql import binary, server_user


def missing() -> str | None:
    try:
        binary("initdb")
        server_user()
    except StackError as error:
        return str(error)
    return None


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[StackStage]:
    made = StackStage()
    before = mlflow.get_tracking_uri()
    try:
        made.up()
        for name, value in made.known.items():
            monkeypatch.setenv(name, value)
        mlflow.set_tracking_uri(made.known["MLFLOW_TRACKING_URI"])  # another test's would go before the environment
        yield made
    finally:
        mlflow.set_tracking_uri(before)
        made.down()
        shutil.rmtree(made.home, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_the_stack_evaluates_by_its_work_pool_survives_kills_and_leaves_nothing(stage: StackStage) -> None:
    file = stage.file("circle")
    first = stage.register("circle", seconds=0.2)
    deployed = stage.command("deploy", str(file), "--cron", "0 0 1 1 *")
    assert deployed.returncode == 0, deployed.stderr

    # One worker dies while it predicts; the other one, and its successor, go on.
    run = stage.start_run("circle")
    eventually(lambda: stage.keys("embeddings/circle/predictions/"), 400, "the first predictions")
    stage.look()
    stage.kill("worker-1")
    eventually(lambda: stage.done("circle", first), 400, "the evaluation")
    eventually(lambda: stage.prefect(f"flow_runs/{run}", method="GET")["state_type"] == "COMPLETED", 60, "its run")
    disturbed = stage.require_once("circle", first)
    wait_until(lambda: stage.part("worker-1").starts == 2 and stage.well(), 60, "the worker's return")

    # A second version with the same predictions, by webhook and event.
    second = stage.register("circle", seconds=0.0)
    eventually(lambda: stage.done("circle", second), 400, "the evaluation by webhook")
    eventually(lambda: {r["state_type"] for r in stage.runs("circle")} == {"COMPLETED"}, 60, "the end of the runs")
    assert stage.require_once("circle", second) == disturbed

    known = json.loads((stage.folder / "passwords.json").read_text())
    del known["s3_access_key"]  # a name, which stands in addresses
    for log in (stage.folder / "logs").glob("*.log"):
        assert [name for name, word in known.items() if word in log.read_text()] == [], log
    for secret in ("passwords.json", "environment", "dask_key", "logs", "work/temporary"):
        assert (stage.folder / secret).stat().st_mode & 0o077 == 0, secret

    # A supervisor that is killed leaves nothing; what it kept is there in the next stack, which ends in order.
    run = stage.start_run("circle")
    eventually(lambda: stage.prefect(f"flow_runs/{run}", method="GET")["state_type"] == "RUNNING", 120, "a third run")
    stage.look()
    os.kill(stage.account().supervisor, signal.SIGKILL)
    assert wait_until_down(stage.folder, 60)
    wait_until(lambda: stage.left() == [], 20, "the warden's own end")
    assert stage.command("status").returncode == 1
    stage.up()
    assert {run.info.run_name for run in stage.evaluations("circle")} == {f"{v} on circle" for v in (first, second)}
    assert stage.command("status").returncode == 0
    assert stage.prefect(f"flow_runs/{run}", method="GET")["state_type"] in ("CRASHED", "COMPLETED"), "nobody runs it"
    stage.look()
    done = stage.command("down")
    assert done.returncode == 0, done.stderr
    assert stage.left() == []
    assert read_account(stage.folder) is None


def test_commands_without_a_stack_say_so(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "congruence.flows.cli.app", "stack", *arguments, "--home", str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    status, down = run("status"), run("down")
    assert (status.returncode, down.returncode) == (1, 0)
    assert "start one with `congruence stack up`" in status.stdout
    assert "no stack is up in" in down.stdout


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("s3", [None, "http://s3.example:9000"])
def test_parts_come_after_those_they_need_and_no_command_has_a_password(tmp_path: Path, s3: str | None) -> None:
    place = open_place(tmp_path, s3, ("an-access-key", "a-secret-key") if s3 else None)
    parts = topology(place)
    names = [part.name for part in parts]
    assert ("s3" in names) == (s3 is None)
    for number, part in enumerate(parts):
        assert set(part.needs) <= set(names[:number]), part.name
        assert not [word for word in place.words.values() if word in " ".join(part.command)], part.name
        assert not [word for word in place.words.values() if word in repr(part)], part.name
    for part in parts:
        if part.name == "runs":  # another user's worker may hold the name that Prefect takes in /tmp
            own = Path(part.environment["TMPDIR"])
            assert own.is_relative_to(place.folder)
            assert own.stat().st_mode & 0o777 == 0o700
        if part.name in ("mlflow", "worker-1", "runs"):
            assert part.environment["AWS_ENDPOINT_URL"] == (s3 or place.http("s3"))
    write_environment(place)
    known = read_environment(tmp_path)
    assert known == place.clients_environment()
    assert known["AWS_SECRET_ACCESS_KEY"] == ("a-secret-key" if s3 else place.words["s3_secret_key"])


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_the_example_of_a_stack_is_an_evaluation_file(tmp_path: Path) -> None:
    place = open_place(tmp_path)
    settings = load_settings(write_example(place))
    assert settings.cluster.address == place.scheduler
    assert settings.cluster.tls is not None
    assert settings.cluster.tls.key_file.is_file()
    assert (settings.tracking.uri, settings.home) == (place.http("mlflow"), tmp_path)
