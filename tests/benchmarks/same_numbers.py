"""Whether two trees of the program log the same numbers: every kind of evaluation, by the command line, side by side.

python tests/benchmarks/same_numbers.py make FOLDER            # data and registered versions, once
PYTHONPATH=TREE/src python tests/benchmarks/same_numbers.py run FOLDER NAME
python tests/benchmarks/same_numbers.py compare FOLDER NAME NAME
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

ROWS = {"small": 1500, "large": 9000}
COUNTS = {"encoder": {"kind": "identity"}, "input": [f"x{j}" for j in range(6)], "input_kind": "features"}


def make(folder: Path) -> None:
    """A small and a large split of counts and continuous targets, a validation split, and five versions."""
    import mlflow

    from congruence.tasks.contract import log_predictive_model

    folder.mkdir(parents=True)
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'models.db'}")
    for number, (name, rows) in enumerate({**ROWS, "validation": 1000}.items()):
        rng = np.random.default_rng(number)
        x = rng.standard_normal((rows, 6))
        frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(6)])
        rate = np.exp(0.5 * x[:, 0] - 0.2 * x[:, 1])
        frame["count"] = rng.poisson(rate)
        frame["y"] = x[:, 0] + rng.standard_normal(rows) * np.exp(0.3 * x[:, 1])
        frame["part"] = np.where(x[:, 2] > 0, "right", "left")
        frame["key"] = [f"row-{row}" for row in range(rows)]
        frame.to_parquet(folder / f"{name}.parquet", row_group_size=700)
    example = frame.head(20)[[f"x{j}" for j in range(6)]]

    def poisson(rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"rate": np.exp(0.5 * rows["x0"] - 0.2 * rows["x1"])})

    def flat(rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"rate": np.full(len(rows), 1.2)})

    def normal(rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"loc": rows["x0"], "scale": np.ones(len(rows))})

    def ensemble(rows: pd.DataFrame) -> np.ndarray:
        noise = np.sin(np.arange(8)[None, :] * 1.7 + 40 * rows[["x3"]].to_numpy())
        return rows[["x0"]].to_numpy() + 1.3 * noise

    for name, function, family in (
        ("poisson", poisson, "poisson"),
        ("flat", flat, "poisson"),
        ("normal", normal, "normal"),
        ("ensemble", ensemble, "samples"),
    ):
        log_predictive_model(function, name=name, family=family, input_example=example, registered_model_name=name)


def evaluations(folder: Path) -> dict[str, dict[str, Any]]:
    """The evaluation files by name."""

    def split(name: str, target: str) -> dict[str, Any]:
        return {
            "name": name,
            "uri": str(folder / f"{name}.parquet"),
            "input": COUNTS["input"],
            "input_kind": "features",
            "target": target,
            "key": "key",
            "slices": ["part"],
            "shard_rows": 512,
        }

    common = {"encoder": COUNTS["encoder"], "cluster": {"kind": "local", "workers": 2}}
    counts, normal = ["poisson", "flat"], ["normal", "ensemble"]
    return {
        "counts": {"models": counts, "splits": [split("small", "count")], **common},
        "ensemble": {"models": normal, "splits": [split("small", "y")], **common},
        "large": {"models": counts, "splits": [split("large", "count")], **common},
        "reference": {
            "models": normal,
            "splits": [split("small", "y")],
            "reference": split("validation", "y"),
            "protocol": {"base": "ecai", "bootstraps": 3, "draws": 2},
            **common,
        },
        "downsampling": {
            "models": normal,
            "splits": [split("small", "y")],
            "protocol": {"base": "exact", "downsampling": {"rows": 300, "repeats": 3}},
            **common,
        },
    }


def run(folder: Path, name: str) -> None:
    """Every evaluation by the tree that PYTHONPATH names, its metrics into NAME.json."""
    found: dict[str, dict[str, float]] = {}
    for kind, content in evaluations(folder).items():
        home = folder / name / kind
        home.mkdir(parents=True, exist_ok=True)  # one that was cut off goes on
        if not (home / "mlflow.db").exists():
            shutil.copyfile(folder / "models.db", home / "mlflow.db")
        file = home / "evaluation.yaml"
        file.write_text(yaml.safe_dump(content))
        command = [sys.executable, "-m", "congruence.flows.cli.app", "evaluate", str(file), "--home", str(home)]
        subprocess.run(command, check=True, env={**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db"})
        found |= {f"{kind}: {label}": metrics for label, metrics in logged(home).items()}
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1))


def logged(home: Path) -> dict[str, dict[str, float]]:
    """The metrics of every complete run in a home folder."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{home / 'mlflow.db'}")
    runs = mlflow.search_runs(search_all_experiments=True, output_format="list")
    return {
        run.info.run_name: run.data.metrics
        for run in runs
        if run.data.tags.get("congruence.kind") == "evaluation" and run.data.tags.get("congruence.state") == "complete"
    }


def compare(folder: Path, first: str, second: str) -> None:
    """The largest relative difference of each metric, by evaluation."""
    one, other = (json.loads((folder / f"{name}.json").read_text()) for name in (first, second))
    assert one.keys() == other.keys(), set(one) ^ set(other)
    for label in sorted(one):
        a, b = one[label], other[label]
        names = sorted(name for name in a.keys() & b.keys() if not name.startswith("seconds"))
        gaps = {name: abs(a[name] - b[name]) / max(abs(a[name]), 1e-12) for name in names}
        worst = max(gaps, key=gaps.__getitem__)
        only = sorted(name for name in a.keys() ^ b.keys() if not name.startswith("seconds"))
        print(f"{label}: {len(names)} metrics, largest difference {gaps[worst]:.1e} ({worst}); in one alone: {only}")


if __name__ == "__main__":
    command, place, *names = sys.argv[1:]
    {"make": make, "run": run, "compare": compare}[command](Path(place), *names)
