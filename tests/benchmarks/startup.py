"""What a command costs before and beside its work: CPU seconds (user + system) and wall seconds, server included.

    python tests/benchmarks/startup.py [FOLDER]

CPU seconds are of the command and every process that it started and waited for; on a busy machine they tell what the
wall would be on an idle one. In FOLDER (a temporary one by default) a small registry is made and evaluated once; the
package is the one on PYTHONPATH, so an older source tree is measured by pointing there.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

ROWS, REPEATS = 20_000, 3
COMMAND = [sys.executable, "-c", "from congruence.flows.cli.app import main; main()"]


def prepare(folder: Path) -> None:
    """A split of tabular features, one registered version, and files: good, gated, with a typo, of no version."""
    import mlflow

    from congruence.tasks.contract import log_predictive_model

    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.0, 3.0, ROWS), rng.normal(size=ROWS)
    rows = pd.DataFrame({"a": a, "b": b, "price": 2 * a + rng.normal(size=ROWS)})
    rows.to_parquet(folder / "rows.parquet")
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'home' / 'mlflow.db'}")
    (folder / "home").mkdir()
    log_predictive_model(
        lambda frame: pd.DataFrame({"loc": 2 * frame["a"], "scale": np.ones(len(frame))}),
        name="house",
        family="normal",
        input_example=rows[["a", "b"]].head(),
        registered_model_name="house",
        pip_requirements=["mlflow"],
    )
    split = {"uri": "rows.parquet", "input": ["a", "b"], "input_kind": "features", "target": "price"}
    good = {
        "models": ["models:/house/1"],
        "splits": [split],
        "encoder": {"kind": "identity"},
        "metrics": ["nll"],
        "cluster": {"kind": "threads"},
        "solver": {"kind": "nystrom", "landmarks": 100},
    }
    files = {
        "good": good,
        "gated": good | {"gate": {"maximum": {"cce_mean": 1e-9}}},
        "typo": good | {"encodr": {}},
        "none": good | {"models": ["models:/house/9"]},
    }
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))


def run(folder: Path, *arguments: str) -> tuple[float, float, int]:
    """CPU seconds, wall seconds and exit status of a command."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "MLFLOW_"))}
    environment["CONGRUENCE_HOME"] = str(folder / "home")
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    status = subprocess.run([*COMMAND, *arguments], env=environment, capture_output=True, cwd=folder).returncode
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - started
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall, status


def main() -> None:
    """Print a line for each command: the least of some runs."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="startup-"))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "good.yaml").exists():
        prepare(folder)
        cpu, wall, status = run(folder, "evaluate", str(folder / "good.yaml"))
        print(f"| first run, with all its work | {cpu:.1f} | {wall:.1f} | {status} |", flush=True)
    commands = {
        "`--help`": ["--help"],
        "`evaluate --help`": ["evaluate", "--help"],
        "a typo in the file": ["evaluate", str(folder / "typo.yaml")],
        "a version that does not exist": ["evaluate", str(folder / "none.yaml")],
        "everything found": ["evaluate", str(folder / "good.yaml")],
        "everything found, gate fails": ["evaluate", str(folder / "gated.yaml")],
    }
    for name, arguments in commands.items():
        measured = [run(folder, *arguments) for _ in range(REPEATS)]
        cpu, wall = min(item[0] for item in measured), min(item[1] for item in measured)
        print(f"| {name} | {cpu:.2f} | {wall:.1f} | {measured[0][2]} |", flush=True)


if __name__ == "__main__":
    main()
