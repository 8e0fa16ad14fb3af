"""All servers of a deployment as processes: an evaluation through the work pool, kills, and nothing left."""

import os
import shutil
import signal
from collections.abc import Iterator

import mlflow
import pytest
from client_stage import eventually
from loopback import is_alive, postgresql_program, wait_until
from stack_stage import StackStage


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


@pytest.mark.exercise
@pytest.mark.timeout(1200)
@pytest.mark.skipif(postgresql_program("initdb") is None, reason="PostgreSQL is not installed")
def test_evaluations_by_a_work_pool_survive_kills(stage: StackStage) -> None:
    file = stage.file("circle")
    first = stage.register("circle", seconds=0.2)
    stage.deploy(file)

    # One worker dies while it predicts; the other one, and its successor, go on.
    run = stage.start_run("circle")
    eventually(lambda: stage.keys("embeddings/circle/predictions/"), 400, "the first predictions")
    stage.look()
    worker = stage.servers["worker-1"]
    assert worker.running is not None
    worker.running.kill()
    worker.running.wait()
    worker.start()
    eventually(lambda: stage.done("circle", first), 400, "the evaluation")
    eventually(lambda: stage.prefect(f"flow_runs/{run}", method="GET")["state_type"] == "COMPLETED", 60, "its run")
    disturbed = stage.require_once("circle", first)
    wait_until(lambda: all(server.answers() for server in stage.servers.values()), 60, "an answer of every server")

    # A second version with the same predictions, by webhook and event.
    second = stage.register("circle", seconds=0.0)
    eventually(lambda: stage.done("circle", second), 400, "the evaluation by webhook")
    eventually(lambda: {r["state_type"] for r in stage.runs("circle")} == {"COMPLETED"}, 60, "the end of the runs")
    assert stage.require_once("circle", second) == disturbed

    # A run's process is killed, and the next one takes up what it left open.
    third = stage.register("circle", seconds=2.0)
    eventually(lambda: any(run.info.run_name == f"{third} on circle" for run in stage.evaluations("circle")), 200, "it")
    (run,) = (found for found in stage.runs("circle-new-version") if found["state_type"] == "RUNNING")
    pid = int(run["infrastructure_pid"].rpartition(":")[2])
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), 10, "the end of the run")
    following = stage.start_run("circle")
    eventually(lambda: stage.done("circle", third), 700, "the evaluation")
    ended = "COMPLETED"  # once the place of the run that died is given back
    eventually(lambda: stage.prefect(f"flow_runs/{following}", method="GET")["state_type"] == ended, 400, "its end")
    assert stage.require_once("circle", third) == disturbed

    for server in stage.servers.values():
        assert [name for name, word in stage.words.items() if word in server.text()] == [], server.log
    stage.down()
    wait_until(lambda: stage.left() == [], 10, "the end of every process")
