"""Servers as their clients see them: a small split on S3, versions to evaluate, and what they led to."""

import base64
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
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
from saved_pictures import saved

from congruence.tasks.contract import log_predictive_model
from congruence.tasks.mlflow.identity import run_metrics

BUCKET = "congruence"
ROWS, FILES, SHARD_ROWS = 160, 4, 20
NUMBERS = ("cce_mean", "cce_noise_floor", "nll_mean", "crps_mean", "ece", "mae")


def s3_client(known: Mapping[str, str]) -> Any:
    """By the variables of a server's address and login."""
    login = {f"aws_{name}": known.get(f"AWS_{name.upper()}") for name in ("access_key_id", "secret_access_key")}
    return boto3.client("s3", endpoint_url=known["AWS_ENDPOINT_URL"], region_name=known["AWS_DEFAULT_REGION"], **login)


class Stage:
    """Servers as their clients see them: splits, versions, runs of the work pool, and what came of them.

    ``known`` are the variables of the servers' addresses and logins, ``cluster`` the settings of that name.
    """

    def __init__(self, home: Path, known: Mapping[str, str], cluster: Mapping[str, object]) -> None:
        self.home, self.known, self.cluster = home, known, dict(cluster)
        self.files = home  # where evaluation files go

    def deploy(self, file: Path, cron: str = "0 0 1 1 *") -> None:
        """Have the work pool evaluate versions by a file: on a schedule, and as soon as one is registered."""
        script = "import sys; from congruence.flows.deployed import *\n"
        script += (
            "for d in served_deployments(Path(sys.argv[1]), Path(sys.argv[1]).stem, sys.argv[2], pool='congruence'):"
        )
        command = [sys.executable, "-c", script + " d.apply()", str(file), cron]
        done = subprocess.run(command, env={**os.environ, **self.known}, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr

    # What is evaluated

    def write_split(self, name: str) -> str:
        """The rows of the law y ~ N(2 angle, 1) with pictures as bright as the angle, in some files on S3."""
        rng = np.random.default_rng(0)
        angle = rng.uniform(0, np.pi, ROWS)
        target = 2 * angle + rng.normal(size=ROWS)
        frame = pd.DataFrame({"image": [_picture(a, rng) for a in angle], "angle": angle, "y": target})
        frame["key"] = [f"row-{number}" for number in range(ROWS)]
        for number, part in enumerate(np.array_split(np.arange(ROWS), FILES)):
            data = frame.iloc[part].to_parquet()
            self.s3().put_object(Bucket=BUCKET, Key=f"data/{name}/{number}.parquet", Body=data)
        return f"s3://{BUCKET}/data/{name}/*.parquet"

    def s3(self) -> Any:
        return s3_client(self.known)

    def keys(self, prefix: str) -> list[str]:
        pages = self.s3().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def file(self, name: str, *, pause: float = 0.0, report: bool = False, **watch: Any) -> Path:
        """An evaluation file on a split and a store of its own; it watches the model of that name."""
        split = {"name": name, "uri": self.write_split(name), "input": "image", "target": "y", "key": "key"}
        content: dict[str, Any] = {
            "cluster": self.cluster,
            "tracking": {"uri": self.known["MLFLOW_TRACKING_URI"], "report": report},
            "home": str(self.home),
            "models": [name],
            "splits": [split | {"model_inputs": ["angle"], "shard_rows": SHARD_ROWS}],
            "encoder": {"kind": "custom", "path": "embed_process:PixelEncoder", "options": {"pause": pause}},
            "store": {"uri": f"s3://{BUCKET}/embeddings/{name}"},
            "watch": watch,
        }
        path = self.files / f"{name}.yaml"
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

    def start_run(self, deployment: str, flow: str = "watch-registry", **parameters: Any) -> str:
        """A run of a deployment, scheduled for now."""
        found = self.prefect(f"deployments/name/{flow}/{deployment}", method="GET")
        body = {"state": {"type": "SCHEDULED"}, "parameters": parameters}
        return str(self.prefect(f"deployments/{found['id']}/create_flow_run", body)["id"])

    def runs(self, deployment: str) -> list[dict[str, Any]]:
        """The flow runs of a deployment that were to begin by now."""
        body = {"deployments": {"name": {"like_": deployment}}, "sort": "EXPECTED_START_TIME_DESC", "limit": 100}
        return [run for run in self.prefect("flow_runs/filter", body) if run["state_type"] != "SCHEDULED"]

    # MLflow

    def evaluations(self, split: str, view: int = ViewType.ACTIVE_ONLY) -> list[Run]:
        client = MlflowClient(self.known["MLFLOW_TRACKING_URI"])
        experiment = client.get_experiment_by_name("congruence/evaluations")
        if experiment is None:
            return []
        kind = f"tags.`congruence.kind` = 'evaluation' and tags.`congruence.split` = '{split}'"
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
        left = [key for key in tags if "error" in key]
        assert not left, left
        return {name: metric.value for name, metric in run_metrics(run).items() if name in NUMBERS}


def _picture(angle: float, rng: np.random.Generator) -> bytes:
    pixels = np.clip(40 * angle + 60 + 10 * rng.normal(size=(8, 8)), 0, 255).astype(np.uint8)
    return saved(pixels)


def eventually(condition: Callable[[], Any], seconds: float, what: str) -> None:
    """Return once ``condition`` holds; servers that are away meanwhile are asked again."""

    def holds() -> bool:
        try:
            return bool(condition())
        except Exception:  # of requests, MLflow or S3, while what they ask is started again
            return False

    wait_until(holds, seconds, what)
