"""Watchers, MLflow, Prefect and PostgreSQL as processes on loopback, stopped, killed and started again.

    python tests/benchmarks/watch_end_to_end.py [--store sqlite|postgresql] [--only NAME ...]

Each exercise checks what it says and prints what it counted. The record is watch_end_to_end.md.
"""

from __future__ import annotations

import argparse
import itertools
import os
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ |= {
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}

import mlflow
import numpy as np
import pandas as pd
import requests
import yaml
from loopback import MlflowServer, PostgreSQL, PrefectServer, Process, free_port, wait_until
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from congruence.tasks.contract import log_predictive_model

ROWS, SHARD_ROWS, EVERY = 160, 40, 5


class Stage:
    """The servers, a split, and everything that runs on them."""

    def __init__(self, folder: Path, store: str | None) -> None:
        self.folder = folder
        self.mlflow = MlflowServer(folder, store)
        self.prefect = PrefectServer(folder)
        self.processes: list[Process] = []
        rng = np.random.default_rng(0)
        angle = rng.uniform(0, np.pi, ROWS)
        columns = {"cos": np.cos(angle), "sin": np.sin(angle), "angle": angle, "y": 2 * angle + rng.normal(size=ROWS)}
        pd.DataFrame(columns).to_parquet(folder / "circle.parquet")

    def start(self) -> None:
        self.mlflow.start()
        self.prefect.start()
        mlflow.set_tracking_uri(self.mlflow.uri)

    def stop(self) -> None:
        for process in [*self.processes, self.mlflow, self.prefect]:
            if process.alive:
                process.stop(signal.SIGKILL)

    def register(self, name: str, *, seconds: float = 0.0, fails_while: Path | None = None) -> str:
        """Register a version whose predictions of a shard take some time; it notes each of them in a file."""
        tally = self.tally(name)

        def predict(frame: pd.DataFrame) -> pd.DataFrame:
            if len(frame) > 8:
                with tally.open("a") as notes:
                    notes.write(f"{os.getpid()}\n")
                time.sleep(seconds)
                if fails_while is not None and fails_while.exists():
                    raise RuntimeError("the model's licence server is away")
            return pd.DataFrame({"loc": 2 * frame["angle"], "scale": np.ones(len(frame))})

        info = log_predictive_model(
            predict,
            name=name,
            family="normal",
            input_example=pd.DataFrame({"angle": [0.1, 0.2]}),
            registered_model_name=name,
            pip_requirements=["mlflow"],
        )
        return f"{name}/{info.registered_model_version}"

    def tally(self, name: str) -> Path:
        return self.folder / f"{name}.tally"

    def shards_predicted(self, name: str) -> int:
        tally = self.tally(name)
        return len(tally.read_text().splitlines()) if tally.exists() else 0

    def file(self, name: str, models: list[str], **watch: Any) -> Path:
        split = {
            "name": name,
            "uri": str(self.folder / "circle.parquet"),
            "input": ["cos", "sin"],
            "input_kind": "features",
            "target": "y",
            "model_inputs": ["angle"],
            "shard_rows": SHARD_ROWS,
        }
        content = {
            "splits": [split],
            "encoder": {"kind": "identity", "dimension": 2},
            "cluster": {"kind": "threads", "workers": 2},
            "models": models,
            "watch": {"every": f"{EVERY}s", "lease": "12s", "retry_after": "6s", **watch},
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    def process(self, name: str, *arguments: str, **environment: str) -> Process:
        command = [sys.executable, "-m", "congruence.flows.cli.main", *arguments]
        servers = {"MLFLOW_TRACKING_URI": self.mlflow.uri, "PREFECT_API_URL": self.prefect.api}
        home = {"CONGRUENCE_HOME": str(self.folder / f"home-{name}")}
        process = Process(command, self.folder / f"{name}.log", servers | home | environment)
        self.processes.append(process)
        process.start()
        return process

    def watcher(self, name: str, file: Path) -> Process:
        return self.process(name, "watch", str(file))

    def runs(self, split: str) -> list[Run]:
        """Every evaluation on the split, deleted ones too."""
        client = MlflowClient(self.mlflow.uri)
        experiment = client.get_experiment_by_name(f"congruence/{split}/y")
        if experiment is None:
            return []
        kind = "tags.`congruence.kind` = 'evaluation'"
        return client.search_runs([experiment.experiment_id], filter_string=kind, run_view_type=ViewType.ALL)

    def done(self, split: str, *labels: str) -> bool:
        found = {run.info.run_name for run in self.runs(split) if run.data.tags.get("congruence.state") == "complete"}
        return all(f"{label} on {split}" in found for label in labels)

    def tags(self, label: str) -> dict[str, str]:
        name, version = label.split("/")
        return dict(MlflowClient(self.mlflow.uri).get_model_version(name, version).tags)

    def require_once(self, split: str, *labels: str) -> str:
        """Each version has one finished run, and each metric of it one value; nothing else is there."""
        client, runs = MlflowClient(self.mlflow.uri), self.runs(split)
        names = Counter(run.info.run_name for run in runs)
        assert names == Counter(f"{label} on {split}" for label in labels), names
        values = 0
        for run in runs:
            assert run.info.status == "FINISHED", run.info.status
            assert run.info.lifecycle_stage == "active"
            assert "congruence.error" not in run.data.tags, run.data.tags["congruence.error"]
            for key in run.data.metrics:
                if not key.startswith("system/"):
                    assert len(client.get_metric_history(run.info.run_id, key)) == 1, key
                    values += 1
            artifacts = {item.path for item in client.list_artifacts(run.info.run_id)}
            assert {"report.html", "scores", "tables", "plots"} <= artifacts, artifacts
            (inputs,) = run.inputs.dataset_inputs
            assert inputs.dataset.name == split
        for label in labels:
            tags = self.tags(label)
            assert float(tags["cce"]) > 0
            left = [key for key in tags if key.startswith(("congruence.claim", "congruence.failure")) or "error" in key]
            assert not left, left
        return f"{len(runs)} run(s), {values} metric values, each once"


def evaluated(*watchers: Process) -> Counter[str]:
    """What the watchers say that they evaluated."""
    lines = [line for watcher in watchers for line in watcher.text().splitlines()]
    return Counter(line.split()[1] for line in lines if line.startswith("evaluated "))


def registered_while_watching(stage: Stage) -> list[str]:
    file = stage.file("new", ["fresh"])
    watcher = stage.watcher("watch-new", file)
    time.sleep(15)
    assert watcher.alive
    began = time.monotonic()
    label = stage.register("fresh")
    wait_until(lambda: stage.done("new", label), 60, "the evaluation")
    took = time.monotonic() - began
    time.sleep(3 * EVERY)
    once = stage.require_once("new", label)
    assert evaluated(watcher) == {label: 1}
    assert stage.shards_predicted("fresh") == ROWS // SHARD_ROWS
    status = watcher.stop()
    assert status == 0, status
    return [f"registered to finished {took:.1f} s, looks every {EVERY} s; three more looks: {once}; SIGTERM: exit 0"]


def two_watchers(stage: Stage) -> list[str]:
    file = stage.file("both", ["pair-*"])
    watchers = [stage.watcher(f"watch-both-{number}", file) for number in (1, 2)]
    time.sleep(10)
    labels = [stage.register(f"pair-{letter}", seconds=0.5) for letter in "abcdef"]
    wait_until(lambda: stage.done("both", *labels), 180, "six evaluations")
    time.sleep(2 * EVERY)
    once = stage.require_once("both", *labels)
    said = evaluated(*watchers)
    assert said == dict.fromkeys(labels, 1), said
    predicted = {letter: stage.shards_predicted(f"pair-{letter}") for letter in "abcdef"}
    assert set(predicted.values()) == {ROWS // SHARD_ROWS}, predicted
    shares = [sum(evaluated(watcher).values()) for watcher in watchers]
    for watcher in watchers:
        assert watcher.stop() == 0
    return [f"6 versions, {shares[0]} by one and {shares[1]} by the other; {once}; no shard predicted twice"]


def killed_watcher(stage: Stage) -> list[str]:
    file = stage.file("killed", ["heir"])
    first = stage.watcher("watch-killed-1", file)
    label = stage.register("heir", seconds=2.0)
    wait_until(lambda: stage.shards_predicted("heir") >= 2, 120, "the first predictions")
    second = stage.watcher("watch-killed-2", file)
    first.stop(signal.SIGKILL)
    killed = time.monotonic()
    (run,) = stage.runs("killed")
    wait_until(lambda: stage.done("killed", label), 120, "the evaluation")
    took = time.monotonic() - killed
    time.sleep(2 * EVERY)
    once = stage.require_once("killed", label)
    assert stage.runs("killed")[0].info.run_id == run.info.run_id
    assert evaluated(first) == {}
    assert evaluated(second) == {label: 1}
    assert second.stop() == 0
    return [f"killed in the middle (its run was {run.info.status}), taken over and finished {took:.0f} s later in the "
            f"same run with a lease of 12 s; {once}"]  # fmt: skip


def mlflow_away(stage: Stage) -> list[str]:
    said = []
    for number, (moment, how, seconds) in enumerate(
        [
            ("predicting", signal.SIGTERM, 25.0),
            ("predicting", signal.SIGKILL, 25.0),
            ("logging", signal.SIGKILL, 20.0),
            ("logging", signal.SIGTERM, 30.0),
        ]
    ):
        split = f"away-{number}"
        file = stage.file(split, [split], lease="60s")
        watcher = stage.watcher(f"watch-{split}", file)
        label = stage.register(split, seconds=1.0)
        if moment == "predicting":
            wait_until(lambda split=split: stage.shards_predicted(split) >= 2, 120, "the first predictions")
        else:
            wait_until(lambda split=split: any(run.data.params for run in stage.runs(split)), 120, "logging")
        stage.mlflow.stop(how)
        stopped = time.monotonic()
        time.sleep(seconds)
        assert watcher.alive
        stage.mlflow.start()
        away = time.monotonic() - stopped
        wait_until(lambda split=split, label=label: stage.done(split, label), 180, f"the evaluation on {split}")
        took = time.monotonic() - stopped - away
        wait_until(lambda watcher=watcher: evaluated(watcher), 90, "the watcher's word")
        time.sleep(2 * EVERY)
        once = stage.require_once(split, label)
        assert evaluated(watcher) == {label: 1}
        assert stage.shards_predicted(split) == ROWS // SHARD_ROWS
        lines = [line for line in watcher.text().splitlines() if "does not answer" in line]
        assert lines, watcher.text()
        assert watcher.stop() == 0
        said.append(f"{how.name} while {moment}, away {away:.0f} s: finished {took:.0f} s after the return; {once}; "
                    f"{len(lines)} lines of waiting")  # fmt: skip
    return said


def away_longer_than_the_lease(stage: Stage) -> list[str]:
    file = stage.file("lease", ["leased"])
    watchers = [stage.watcher(f"watch-lease-{number}", file) for number in (1, 2)]
    label = stage.register("leased", seconds=8.0)
    wait_until(lambda: stage.shards_predicted("leased") >= 1, 120, "the first predictions")
    stage.mlflow.stop(signal.SIGKILL)
    time.sleep(20)
    stage.mlflow.start()
    wait_until(lambda: stage.done("lease", label), 180, "the evaluation")
    time.sleep(2 * EVERY)
    once = stage.require_once("lease", label)
    predicted = stage.shards_predicted("leased")
    said = evaluated(*watchers)
    assert predicted == ROWS // SHARD_ROWS, predicted
    assert said == {label: 1}, said
    for watcher in watchers:
        assert watcher.stop() == 0
    return [f"two watchers, MLflow away for longer than the lease of 12 s: the holder kept its claim; {once}"]


def failed_version(stage: Stage) -> list[str]:
    broken = stage.folder / "broken"
    broken.touch()
    file = stage.file("failing", ["fragile"])
    watchers = [stage.watcher(f"watch-failing-{number}", file) for number in (1, 2)]
    label = stage.register("fragile", fails_while=broken)
    times: list[float] = []
    limit = time.monotonic() + 300
    while len(times) < 4 and time.monotonic() < limit:
        failures = [value for key, value in stage.tags(label).items() if key.startswith("congruence.failure.")]
        for failure in map(yaml.safe_load, failures):
            if failure["time"] not in times:
                times.append(failure["time"])
                assert failure["attempts"] == len(times)
        time.sleep(0.5)
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(waits) == 3, times
    assert all(wait >= least for wait, least in zip(waits, (6, 12, 24), strict=True)), waits
    error = stage.tags(label)["cce_error"]
    assert "licence server" in error, error
    (run,) = stage.runs("failing")
    assert run.info.status == "FAILED"
    assert "licence server" in run.data.tags["congruence.error"]
    broken.unlink()
    wait_until(lambda: stage.done("failing", label), 120, "the evaluation")
    time.sleep(EVERY)
    once = stage.require_once("failing", label)
    for watcher in watchers:
        assert watcher.stop() == 0
    waited = ", ".join(f"{wait:.0f}" for wait in waits)
    return [f"two watchers; tries after {waited} s (asked: 6, 12, 24); the version says `{error}`; mended: {once}"]


def webhook_to_prefect(stage: Stage) -> list[str]:
    secret, port = secrets.token_urlsafe(), free_port()
    file = stage.file("served", ["served-*"])
    receiver = stage.process("receive", "receive", "--port", str(port), CONGRUENCE_WEBHOOK_SECRET=secret)
    server = stage.process("serve", "serve", str(file), "--cron", "0 0 1 1 *", "--name", "circle")
    wait_until(lambda: "receiving" in receiver.text(), 60, "the receiver")
    client = MlflowClient(stage.mlflow.uri)
    webhook = client.create_webhook(
        "congruence", f"http://127.0.0.1:{port}/mlflow", ["model_version.created"], secret=secret
    )
    wait_until(lambda: client.test_webhook(webhook.webhook_id).success, 60, "a good answer of the receiver")
    wait_until(lambda: len(_deployments(stage)) == 2, 90, "the deployments")
    time.sleep(5)
    began = time.monotonic()
    label = stage.register("served-a")
    other = stage.register("unwatched")
    wait_until(lambda: stage.done("served", label), 150, "the evaluation")
    took = time.monotonic() - began
    later = stage.register("served-b")
    wait_until(lambda: stage.done("served", later), 150, "the second evaluation")
    wait_until(lambda: len(_flow_runs(stage)) >= 3 and set(_flow_runs(stage).values()) == {"COMPLETED"}, 120, "the end")
    once = stage.require_once("served", label, later)
    assert "cce" not in stage.tags(other)
    names = _flow_runs(stage)
    assert sorted(names) == [f"watch models:/{name}" for name in ("served-a/1", "served-b/1", "unwatched/1")], names
    assert server.stop(signal.SIGTERM) in (0, -signal.SIGTERM)
    receiver.stop()
    for process in (receiver, server, stage.mlflow, stage.prefect):
        assert secret not in process.text()
    return [f"webhook to finished {took:.0f} s; one flow run for each of 3 announcements, a version that is not "
            f"watched is left alone; {once}; no secret in any log"]  # fmt: skip


def served_schedule(stage: Stage) -> list[str]:
    file = stage.file("cron", ["timed"])
    label = stage.register("timed")
    began = time.monotonic()
    server = stage.process("serve-cron", "serve", str(file), "--cron", "* * * * *")
    wait_until(lambda: stage.done("cron", label), 180, "the scheduled evaluation")
    took = time.monotonic() - began
    time.sleep(75)
    once = stage.require_once("cron", label)
    runs = {name: state for name, state in _flow_runs(stage).items() if "cron.yaml" in name}
    assert server.stop(signal.SIGTERM) in (0, -signal.SIGTERM)
    return [f"`congruence serve FILE --cron '* * * * *'`: finished {took:.0f} s after its start; later looks: {once}; "
            f"{runs}"]  # fmt: skip


def serve_stopped(stage: Stage) -> list[str]:
    file = stage.file("stopped", ["slow"])
    label = stage.register("slow", seconds=4.0)
    first = stage.process("serve-stopped-1", "serve", str(file), "--cron", "* * * * *")
    wait_until(lambda: stage.shards_predicted("slow") >= 2, 180, "the first predictions")
    began = time.monotonic()
    first.stop(signal.SIGTERM, 90)
    ended = time.monotonic() - began
    finished = stage.done("stopped", label)
    second = stage.process("serve-stopped-2", "serve", str(file), "--cron", "* * * * *")
    wait_until(lambda: stage.done("stopped", label), 300, "the evaluation")
    took = time.monotonic() - began
    time.sleep(2 * EVERY)
    once = stage.require_once("stopped", label)
    second.stop(signal.SIGTERM, 90)
    then = "finished" if finished else "not finished"
    return [f"stopped (SIGTERM) in a run: gone after {ended:.0f} s, the version {then}; started again: finished after "
            f"{took:.0f} s; {once}"]  # fmt: skip


def _ask(stage: Stage, path: str) -> list[dict[str, Any]]:
    return list(requests.post(f"{stage.prefect.api}/{path}/filter", json={}, timeout=30).json())


def _deployments(stage: Stage) -> list[str]:
    return [item["name"] for item in _ask(stage, "deployments") if item["name"].startswith("circle")]


def _flow_runs(stage: Stage) -> dict[str, str]:
    return {
        item["name"]: item["state_type"]
        for item in _ask(stage, "flow_runs")
        if item["deployment_id"] is not None and item["state_type"] != "SCHEDULED"
    }


EXERCISES: dict[str, Callable[[Stage], list[str]]] = {
    "new": registered_while_watching,
    "two": two_watchers,
    "killed": killed_watcher,
    "away": mlflow_away,
    "lease": away_longer_than_the_lease,
    "failed": failed_version,
    "webhook": webhook_to_prefect,
    "cron": served_schedule,
    "stopped": serve_stopped,
}


def main() -> None:
    """Run the exercises that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--only", nargs="*", choices=list(EXERCISES))
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="congruence-watch-"))
    database = PostgreSQL() if arguments.store == "postgresql" else None
    stage = Stage(folder, database.uri if database else None)
    print(f"MLflow on {arguments.store}; logs in {folder}", flush=True)
    try:
        stage.start()
        for name in arguments.only or EXERCISES:
            began = time.monotonic()
            lines = EXERCISES[name](stage)
            load = os.getloadavg()[0]
            print(f"## {name} ({time.monotonic() - began:.0f} s, load {load:.1f})", *lines, sep="\n- ", flush=True)
        if database is not None:
            logs = [path for path in folder.glob("*.log") if database.password in path.read_text()]
            assert not logs, logs
    finally:
        stage.stop()
        if database is not None:
            database.stop()


if __name__ == "__main__":
    main()
