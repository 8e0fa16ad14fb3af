"""A million stored predictions of two versions with 20 features: how long reading, joining and judging them takes.

    python tests/benchmarks/stored_predictions.py [--rows 1000000] [--disjoint]

One process, one version after the other; the labels lie in a table of their own. Without ``--disjoint`` both versions
scored the same keys. Times are wall-clock, memory is the largest resident size of the process.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import mlflow
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from congruence.tasks.evaluate.evaluation import evaluate
from congruence.tasks.evaluate.executors import LocalExecutor
from congruence.tasks.evaluate.observer import Observer
from congruence.tasks.evaluate.plan import Plan
from congruence.tasks.settings.evaluation import EvaluationSettings

FEATURES = 20


def write(folder: Path, rows: int, disjoint: bool) -> None:
    """A table of predictions, half of the rows by each version, and one of labels."""
    draw, half = np.random.default_rng(0), rows // 2
    keys = np.arange(rows) if disjoint else np.tile(np.arange(half), 2)
    x = draw.normal(size=(rows if disjoint else half, FEATURES))
    y = x[:, 0] + 0.5 * x[:, 1] ** 2 + np.exp(0.3 * x[:, 2]) * draw.normal(size=len(x))
    at = x if disjoint else np.concatenate([x, x])
    columns = {f"x{number}": at[:, number] for number in range(FEATURES)}
    scale = np.exp(0.3 * at[:, 2]) * np.where(np.arange(rows) < half, 1.0, 1.2)
    columns |= {"id": keys, "mu": at[:, 0] + 0.5 * at[:, 1] ** 2, "sigma": scale}
    version = pa.array(["v1"] * half + ["v2"] * (rows - half))
    pq.write_table(pa.table(columns | {"version": version}), folder / "scored.parquet")
    pq.write_table(pa.table({"id": np.arange(len(y)), "y": y}), folder / "outcomes.parquet")


def measure(rows: int, disjoint: bool) -> None:
    """Print what each step takes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, rows, disjoint)
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        predictions = {
            "from": str(folder / "scored.parquet"),
            "key": "id",
            "version": "version",
            "targets": {"uri": str(folder / "outcomes.parquet"), "key": "id", "target": "y"},
            "family": "normal",
            "columns": {"loc": "mu", "scale": "sigma"},
        }
        split = {"name": "p", "input": [f"x{number}" for number in range(FEATURES)], "input_kind": "features"}
        given = {"predictions": predictions, "splits": [split], "encoder": {"kind": "identity"}, "home": str(folder)}
        began = time.perf_counter()
        plan = Plan(EvaluationSettings.model_validate(given))
        print(f"rows read, labels joined, rows of versions copied: {time.perf_counter() - began:.1f} s {_memory()}")
        started = {"": began}

        def stage(title: str, split: str, work):  # type: ignore[no-untyped-def]
            started[title] = time.perf_counter()
            found = work()
            print(f"{title} {split}: {time.perf_counter() - started[title]:.1f} s {_memory()}", flush=True)
            return found

        outcomes = evaluate(plan, LocalExecutor, Observer(print, stage=stage))
        print([(outcome.label, outcome.status, str(outcome.metrics["nll_mean"])) for outcome in outcomes])
        print(f"all: {time.perf_counter() - began:.1f} s {_memory()}")


def _memory() -> str:
    return f"(largest so far {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB)"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--disjoint", action="store_true")
    asked = parser.parse_args()
    measure(asked.rows, asked.disjoint)
