"""A million stored predictions of two versions with 20 features: how long reading, joining and judging them takes.

    python tests/benchmarks/stored_predictions.py [--rows 1000000] [--disjoint] [--landmarks 64]

By the command line, on a local cluster of two workers; the labels lie in a table of their own. Without ``--disjoint``
both versions scored the same keys. Times are wall-clock, memory is the largest resident size of single processes.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from simulations import asked
from straight_way import watched

from congruence.tasks.evaluate.stored import opened
from congruence.tasks.settings.evaluation import load_settings

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


def measure(rows: int, disjoint: bool, landmarks: int | None) -> None:
    """Print what the first reading takes, and the whole evaluation by the command line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, rows, disjoint)
        predictions = {
            "from": str(folder / "scored.parquet"),
            "key": "id",
            "version": "version",
            "targets": {"uri": str(folder / "outcomes.parquet"), "key": "id", "target": "y"},
            "family": "normal",
            "columns": {"loc": "mu", "scale": "sigma"},
        }
        split = {"name": "p", "input": [f"x{number}" for number in range(FEATURES)], "input_kind": "features"}
        given = {"predictions": predictions, "splits": [split], "encoder": {"kind": "identity"}}
        given["cluster"] = {"kind": "local", "workers": 2}
        if landmarks is not None:
            given["solver"] = {"landmarks": landmarks}
        file = folder / "evaluation.yaml"
        file.write_text(yaml.safe_dump(given))
        began = time.perf_counter()
        opened(load_settings(file, {"home": str(folder / "first")}))
        print(f"rows read, labels joined, rows of versions copied: {time.perf_counter() - began:.1f} s", flush=True)
        command = [sys.executable, "-m", "congruence.flows.cli.main", "evaluate", str(file)]
        watched([*command, "--home", str(folder / "home")], 3)


if __name__ == "__main__":
    given = asked(__doc__, rows=10**6, disjoint=False, landmarks=int)
    measure(given.rows, given.disjoint, given.landmarks)
