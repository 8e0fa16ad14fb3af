"""A stack of real servers with a small split on S3, versions to evaluate, and what they led to."""

from __future__ import annotations

import base64
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pandas as pd
import requests
import yaml
from loopback import wait_until
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from PIL import Image

from congruence.flows.stack.place import read_environment, stack_folder
from congruence.tasks.contract import log_predictive_model
from congruence.tasks.stack.account import Account, PartAccount, read_account
from congruence.tasks.stack.tether import descendants, is_alive

ROWS, FILES, SHARD_ROWS = 160, 4, 20
NUMBERS = ("cce_mean", "cce_noise_floor", "nll_mean", "crps_mean", "ece", "mae")
ENCODERS = Path(__file__).parent / "tasks" / "embedding"
BUCKET = "congruence"


class StackStage:
    """The stack of a home folder that PostgreSQL's user may enter."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="congruence-stack-"))
        self.home.chmod(0o711)
        self.folder = stack_folder(self.home)
        self.known: dict[str, str] = {}
        self.seen: set[int] = set()

    def command(self, *arguments: str, seconds: float = 240) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ENCODERS)]))
        return subprocess.run(
            [sys.executable, "-m", "congruence.flows.cli.app", "stack", *arguments],
            env=os.environ | {"PYTHONPATH": path, "CONGRUENCE_HOME": str(self.home)},
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def up(self) -> None:
        done = self.command("up", "--detach")
        until = time.monotonic() + 120.0
        while "is taken by another program" in done.stderr and time.monotonic() < until:  # by another test's cluster
            time.sleep(2.0)
            done = self.command("up", "--detach")
        assert done.returncode == 0, done.stdout + done.stderr
        self.known = read_environment(self.home)
        self.look()

    def down(self) -> None:
        if read_account(self.folder) is not None:
            self.look()
        self.command("down")

    def account(self) -> Account:
        found = read_account(self.folder)
        assert found is not None, "no stack is up"
        return found

    def part(self, name: str) -> PartAccount:
        return next(part for part in self.account().parts if part.name == name)

    def look(self) -> set[int]:
        """Every process of the stack that has been seen, for the question what is left of them."""
        account = self.account()
        self.seen |= {account.warden, *descendants(account.warden)}
        return self.seen

    def left(self) -> list[str]:
        def line(pid: int) -> str:
            with open(f"/proc/{pid}/cmdline") as file:
                return f"{pid} {file.read().replace(chr(0), ' ')[:150]}"

        return [line(pid) for pid in self.seen if is_alive(pid)]

    def kill(self, name: str) -> None:
        pid = self.part(name).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def well(self) -> bool:
        found = read_account(self.folder)
        return found is not None and found.healthy

    # What is evaluated

    def write_split(self, name: str) -> str:
        """The rows of the law y ~ N(2 angle, 1) with pictures as bright as the angle, in some files on S3."""
        rng = np.random.default_rng(0)
        angle = rng.uniform(0, np.pi, ROWS)
        target = 2 * angle + rng.normal(size=ROWS)
        frame = pd.DataFrame({"image": [_picture(a, rng) for a in angle], "angle": angle, "y": target})
        frame["key"] = [f"row-{number}" for number in range(ROWS)]
        for number, part in enumerate(np.array_split(np.arange(ROWS), FILES)):
            data = io.BytesIO()
            frame.iloc[part].to_parquet(data)
            self.s3().put_object(Bucket=BUCKET, Key=f"data/{name}/{number}.parquet", Body=data.getvalue())
        return f"s3://{BUCKET}/data/{name}/*.parquet"

    def s3(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.known["AWS_ENDPOINT_URL"],
            aws_access_key_id=self.known["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.known["AWS_SECRET_ACCESS_KEY"],
            region_name=self.known["AWS_DEFAULT_REGION"],
        )

    def keys(self, prefix: str) -> list[str]:
        pages = self.s3().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def file(self, name: str, *, pause: float = 0.0, report: bool = False, **watch: Any) -> Path:
        """An evaluation file on a split and a store of its own; it watches the model of that name."""
        example = yaml.safe_load((self.folder / "evaluation.yaml").read_text())
        split = {"name": name, "uri": self.write_split(name), "input": "image", "target": "y", "key": "key"}
        content = {key: example[key] for key in ("cluster", "tracking", "home")} | {
            "models": [name],
            "splits": [split | {"model_inputs": ["angle"], "shard_rows": SHARD_ROWS}],
            "encoder": {"kind": "custom", "path": "embed_process:PixelEncoder", "options": {"pause": pause}},
            "store": {"uri": f"s3://{BUCKET}/embeddings/{name}"},
            "watch": {"lease": "15s", "retry_after": "3s", "retry_at_most": "3s", **watch},
        }
        content["tracking"]["report"] = report
        path = self.home / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    def register(self, name: str, *, seconds: float = 0.0) -> str:
        """A version whose predictions of a shard take some time; gives its label."""

        def predict(frame: pd.DataFrame) -> pd.DataFrame:
            time.sleep(seconds if len(frame) > 8 else 0.0)
            return pd.DataFrame({"loc": 2.0 * frame["angle"], "scale": np.full(len(frame), 1.3)})

        info = log_predictive_model(
            predict,
            name=name,
            family="normal",
            input_example=pd.DataFrame({"angle": [0.1, 0.2]}),
            registered_model_name=name,
            pip_requirements=["mlflow"],
        )
        return f"{name}/{info.registered_model_version}"

    # Prefect

    def prefect(self, path: str, body: Any = None, method: str = "POST") -> Any:
        login = base64.b64encode(self.known["PREFECT_API_AUTH_STRING"].encode()).decode()
        url = f"{self.known['PREFECT_API_URL']}/{path}"
        answer = requests.request(method, url, json=body, headers={"Authorization": f"Basic {login}"}, timeout=30)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def start_run(self, deployment: str, **parameters: Any) -> str:
        """A run of a deployment, scheduled for now."""
        found = self.prefect(f"deployments/name/watch-registry/{deployment}", method="GET")
        body = {"state": {"type": "SCHEDULED"}, "parameters": parameters}
        return str(self.prefect(f"deployments/{found['id']}/create_flow_run", body)["id"])

    def runs(self, deployment: str) -> list[dict[str, Any]]:
        """The flow runs of a deployment that were to begin by now."""
        body = {"deployments": {"name": {"like_": deployment}}, "sort": "EXPECTED_START_TIME_DESC", "limit": 100}
        return [run for run in self.prefect("flow_runs/filter", body) if run["state_type"] != "SCHEDULED"]

    def delete_deployments(self, name: str) -> None:
        for found in self.prefect("deployments/filter", {"deployments": {"name": {"like_": name}}}):
            self.prefect(f"deployments/{found['id']}", method="DELETE")

    # MLflow

    def evaluations(self, split: str, view: int = ViewType.ACTIVE_ONLY) -> list[Run]:
        client = MlflowClient(self.known["MLFLOW_TRACKING_URI"])
        experiment = client.get_experiment_by_name(f"congruence/{split}")
        if experiment is None:
            return []
        kind = "tags.`congruence.kind` = 'evaluation'"
        return list(client.search_runs([experiment.experiment_id], filter_string=kind, run_view_type=view))

    def done(self, split: str, label: str) -> bool:
        complete = (run for run in self.evaluations(split) if run.data.tags.get("congruence.state") == "complete")
        return any(run.info.run_name == f"{label} on {split}" for run in complete)

    def require_once(self, split: str, label: str) -> dict[str, float]:
        """The numbers of the version's one run, which is finished, each metric with one value."""
        client = MlflowClient(self.known["MLFLOW_TRACKING_URI"])
        runs = [run for run in self.evaluations(split) if run.info.run_name == f"{label} on {split}"]
        assert len(runs) == 1, [(run.info.run_id, run.info.status) for run in runs]
        (run,) = runs
        assert run.info.status == "FINISHED"
        assert "congruence.error" not in run.data.tags, run.data.tags["congruence.error"]
        for key in run.data.metrics:
            if not key.startswith("system/"):
                assert len(client.get_metric_history(run.info.run_id, key)) == 1, key
        tags = client.get_model_version(*label.split("/")).tags
        left = [key for key in tags if key.startswith(("congruence.claim", "congruence.failure")) or "error" in key]
        assert not left, left
        return {name: run.data.metrics[name] for name in NUMBERS}


def _picture(angle: float, rng: np.random.Generator) -> bytes:
    pixels = np.clip(40 * angle + 60 + 10 * rng.normal(size=(8, 8)), 0, 255).astype(np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def eventually(condition: Callable[[], Any], seconds: float, what: str) -> None:
    """Return once ``condition`` holds; servers that are away meanwhile are asked again."""

    def holds() -> bool:
        try:
            return bool(condition())
        except Exception:  # of requests, MLflow or S3, while what they ask is started again
            return False

    wait_until(holds, seconds, what)
