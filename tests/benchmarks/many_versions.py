"""Many versions of one model on one split: memory of every process, and what a further version costs.

    python tests/benchmarks/many_versions.py FOLDER ROWS VERSIONS [VERSIONS ...] [--workers 2] [--metrics nll crps]

For each number of versions: a registry of one tiny model under so many version numbers, which share one artifact, and
an evaluation of them all in a home folder of its own. Printed are the largest memory of the process that was started
and of its workers, and the CPU seconds of them all; from two numbers on, the CPU seconds of a further version.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import psutil
import yaml
from mlflow import MlflowClient
from straight_way import Used, sample

from congruence.tasks.contract import log_predictive_model

FEATURES = [f"x{j}" for j in range(16)]


def make(folder: Path, rows: int, versions: int, workers: int, metrics: list[str]) -> Path:
    """The data, the versions and the evaluation file."""
    home = folder / "home"
    home.mkdir(parents=True)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((rows, len(FEATURES))).astype(np.float32), columns=FEATURES)
    frame["y"] = frame["x0"] + np.exp(0.3 * frame["x1"]) * rng.standard_normal(rows)
    frame.to_parquet(folder / "test.parquet")

    def law(rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"loc": rows["x0"], "scale": np.exp(0.3 * rows["x1"])})

    mlflow.set_tracking_uri(f"sqlite:///{home / 'mlflow.db'}")
    log_predictive_model(
        law, name="tiny", family="normal", input_example=frame[FEATURES][:20], registered_model_name="tiny"
    )
    client = MlflowClient()
    source = str(client.get_model_version("tiny", "1").source)
    for _ in range(versions - 1):
        client.create_model_version("tiny", source)
    split = {"name": "test", "uri": str(folder / "test.parquet"), "input": FEATURES, "input_kind": "features"}
    content = {
        "models": ["tiny"],
        "splits": [split | {"target": "y"}],
        "encoder": {"kind": "identity"},
        "cluster": {"kind": "local", "workers": workers},
        **({"metrics": metrics} if metrics else {}),
    }
    file = folder / "evaluation.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def run(file: Path) -> tuple[dict[str, float], float]:
    """Evaluate: GiB at most by kind of process, and the CPU seconds of the flow and its workers."""
    command = [
        sys.executable,
        "-m",
        "congruence.flows.cli.main",
        "evaluate",
        str(file),
        "--home",
        str(file.parent / "home"),
    ]
    started = time.monotonic()
    with (file.parent / "said.txt").open("w") as said:
        process = psutil.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        used: dict[tuple[int, str], Used] = {}
        threading.Thread(target=sample, args=(process, used), daemon=True).start()
        status = process.wait()
    if status:
        sys.exit(f"exit status {status}: see {file.parent / 'said.txt'}")
    peaks = {kind: max(one.peak for (_, of), one in used.items() if of == kind) for kind in ("flow", "worker")}
    spent = sum(one.cpu for (_, kind), one in used.items() if kind in peaks)
    print(f"  {time.monotonic() - started:.0f} s of wall time at load {os.getloadavg()[1]:.0f}", flush=True)
    return peaks, spent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows", type=int)
    parser.add_argument("versions", type=int, nargs="+")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--metrics", nargs="*", default=[])
    given = parser.parse_args()
    before: tuple[int, float] | None = None
    for versions in given.versions:
        file = make(given.folder / str(versions), given.rows, versions, given.workers, given.metrics)
        peaks, spent = run(file)
        print(
            f"{versions} versions: flow {peaks['flow']:.2f} GiB, worker {peaks['worker']:.2f} GiB, {spent:.0f} s of CPU"
        )
        if before is not None:
            print(f"  a further version: {(spent - before[1]) / (versions - before[0]):.2f} s of CPU")
        before = versions, spent
