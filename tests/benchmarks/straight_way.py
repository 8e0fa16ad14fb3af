"""A whole evaluation by the command line, on a table of any length: seconds, and the memory of every process.

    python tests/benchmarks/straight_way.py make FOLDER ROWS [--features 64] [--versions 2] [--file-rows 500000]
    python tests/benchmarks/straight_way.py run FOLDER [--again]

``make`` writes Parquet files of one row group each, registers versions of one model (the first is the truth) and an
evaluation file. ``run`` evaluates, prints what the command said, and the largest memory of the process that was
started and of each of its workers, sampled every second.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml


def make(folder: Path, rows: int, features: int, versions: int, file_rows: int) -> None:
    """The data, the versions and the evaluation file."""
    import mlflow

    from congruence.tasks.contract import log_predictive_model

    (folder / "test").mkdir(parents=True)
    (folder / "home").mkdir()
    rng = np.random.default_rng(0)
    names = [f"x{j}" for j in range(features)]
    mix = (rng.standard_normal((features, features)) / np.arange(1, features + 1)[:, None]).astype(np.float32)
    for part, start in enumerate(range(0, rows, file_rows)):
        count = min(file_rows, rows - start)
        x = rng.standard_normal((count, features)).astype(np.float32) @ mix
        y = x[:, 0] + np.exp(0.3 * x[:, 1].clip(-3, 3)) * rng.standard_normal(count)
        table = pa.table({**{name: x[:, j] for j, name in enumerate(names)}, "y": y})
        pq.write_table(table, folder / "test" / f"part-{part:03d}.parquet", row_group_size=count)
    example = pd.DataFrame(x[:20], columns=names)
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'home' / 'mlflow.db'}")

    def law(power: float):
        def predict(frame: pd.DataFrame) -> pd.DataFrame:
            return pd.DataFrame({"loc": frame["x0"], "scale": np.exp(power * frame["x1"].clip(-3, 3))})

        return predict

    for number in range(versions):
        log_predictive_model(
            law(0.3 * (1.0 - number / max(1, versions - 1))),
            name="table",
            family="normal",
            input_example=example,
            registered_model_name="table",
        )
    content = {
        "models": ["table"],
        "splits": [
            {"name": "long", "uri": str(folder / "test"), "input": names, "input_kind": "features", "target": "y"}
        ],
        "encoder": {"kind": "identity"},
        "solver": {"landmarks": 512},
        "cluster": {"kind": "local", "workers": 2},
    }
    (folder / "evaluation.yaml").write_text(yaml.safe_dump(content))


def run(folder: Path, again: bool) -> None:
    """Evaluate, and print seconds and peaks."""
    command = [sys.executable, "-m", "congruence.flows.cli", "evaluate", str(folder / "evaluation.yaml")]
    command += ["--home", str(folder / "home"), *(["--again"] if again else [])]
    started = time.monotonic()
    process = psutil.Popen(command, stderr=subprocess.STDOUT)
    peaks: dict[tuple[int, str], float] = {}
    while process.poll() is None:
        for one in (process, *process.children(recursive=True)):
            try:
                kind = (
                    "flow" if one.pid == process.pid else "worker" if "spawn_main" in one.cmdline()[-2:][0] else "other"
                )
                peaks[one.pid, kind] = max(peaks.get((one.pid, kind), 0.0), one.memory_info().rss / 2**30)
            except (psutil.NoSuchProcess, IndexError):
                continue
        time.sleep(1.0)
    print(f"exit status {process.returncode}, {time.monotonic() - started:.0f} s")
    for (_, kind), peak in sorted(peaks.items(), key=lambda item: -item[1])[:4]:
        print(f"{kind}: at most {peak:.2f} GiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["make", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows", type=lambda text: int(float(text)), nargs="?", default=10_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--versions", type=int, default=2)
    parser.add_argument("--file-rows", type=int, default=500_000)
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    if given.command == "make":
        make(given.folder, given.rows, given.features, given.versions, given.file_rows)
    else:
        run(given.folder, given.again)
