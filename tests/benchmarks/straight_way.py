"""A whole evaluation by the command line, on a table of any length: seconds, and the memory of every process.

    python tests/benchmarks/straight_way.py make FOLDER ROWS [--features 64] [--versions 2] [--counts]
    python tests/benchmarks/straight_way.py run FOLDER [--again] [--workers 2]
    python tests/benchmarks/straight_way.py growth FOLDER [--features 7] [--versions 5]

``make`` writes Parquet files of one row group each, registers versions of one model (the first is the truth) and an
evaluation file. ``run`` evaluates, prints what the command said and when, and of the process that was started and of
each of its workers the largest memory and the seconds of CPU, sampled every half second: on a shared machine wall time
tells of the neighbours, too. ``growth`` does both for count models at ``SIZES`` of rows, each in a new home, and draws
seconds against rows as ``growth.svg``, with a table of them as ``growth.csv``: is there a size at which a further row
suddenly costs more?
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

SIZES = (5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)


def make(folder: Path, rows: int, features: int, versions: int, file_rows: int, counts: bool) -> None:
    """The data, the versions and the evaluation file; counts are evaluated with the solver that the program chooses."""
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
        if counts:
            y = rng.poisson(np.exp((0.4 * x[:, 0] - 0.2 * x[:, 1]).clip(-3, 3)))
        table = pa.table({**{name: x[:, j] for j, name in enumerate(names)}, "y": y})
        pq.write_table(table, folder / "test" / f"part-{part:03d}.parquet", row_group_size=count)
    example = pd.DataFrame(x[:20], columns=names)
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'home' / 'mlflow.db'}")

    def law(power: float):
        def predict(frame: pd.DataFrame) -> pd.DataFrame:
            return pd.DataFrame({"loc": frame["x0"], "scale": np.exp(power * frame["x1"].clip(-3, 3))})

        return predict

    def rates(share: float):
        def predict(frame: pd.DataFrame) -> pd.DataFrame:
            return pd.DataFrame({"rate": np.exp((0.4 * frame["x0"] - 0.2 * share * frame["x1"]).clip(-3, 3))})

        return predict

    for number in range(versions):
        share = 1.0 - number / max(1, versions - 1)
        log_predictive_model(
            rates(share) if counts else law(0.3 * share),
            name="table",
            family="poisson" if counts else "normal",
            input_example=example,
            registered_model_name="table",
        )
    content = {
        "models": ["table"],
        "splits": [
            {"name": "long", "uri": str(folder / "test"), "input": names, "input_kind": "features", "target": "y"}
        ],
        "encoder": {"kind": "identity"},
        "cluster": {"kind": "local", "workers": 2},
    } | ({} if counts else {"solver": {"landmarks": 512}})
    (folder / "evaluation.yaml").write_text(yaml.safe_dump(content))


def run(folder: Path, again: bool, workers: int) -> tuple[float, float, float]:
    """Evaluate, and print when each stage ended, and peaks and CPU seconds of every process.

    Gives seconds by the clock, seconds of CPU of all processes, and the GiB of the largest one.
    """
    content = yaml.safe_load((folder / "evaluation.yaml").read_text())
    content["cluster"]["workers"] = workers
    file = folder / f"evaluation-{workers}.yaml"
    file.write_text(yaml.safe_dump(content))
    command = [sys.executable, "-m", "congruence.flows.cli.main", "evaluate", str(file), "--home", str(folder / "home")]
    command += ["--again"] if again else []
    return watched(command, workers + 3)


def watched(command: list[str], processes: int) -> tuple[float, float, float]:
    """Run a command as ``run`` does, and print the peaks of the largest of its processes."""
    started = time.monotonic()
    process = psutil.Popen(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True)
    used: dict[tuple[int, str], Used] = {}
    sampler = threading.Thread(target=sample, args=(process, used), daemon=True)
    sampler.start()
    for line in process.stdout:
        held = [f"{one.cpu:.0f}" for (_, kind), one in sorted(used.items()) if kind == "worker"]
        print(
            f"{time.monotonic() - started:6.1f} s, workers' CPU {' '.join(held) or '-'} s | {line}", end="", flush=True
        )
    seconds = time.monotonic() - started
    print(f"exit status {process.wait()}, {seconds:.0f} s")
    for (_, kind), one in sorted(used.items(), key=lambda item: -item[1].peak)[:processes]:
        print(f"{kind}: at most {one.peak:.2f} GiB, {one.cpu:.0f} s of CPU")
    return seconds, sum(one.cpu for one in used.values()), max(one.peak for one in used.values())


def growth(folder: Path, features: int, versions: int, workers: int) -> None:
    """Seconds of whole evaluations of count models by rows, as a table and a picture."""
    columns = ["rows", "seconds", "seconds_of_cpu", "largest_process_gib"]
    found = []
    for rows in SIZES:
        here = folder / str(rows)
        # A process of its own: what it has loaded is no part of the evaluation that follows.
        size = [sys.executable, __file__, "make", str(here), str(rows), "--features", str(features)]
        kind = ["--versions", str(versions), "--counts", "--file-rows", "100000"]
        subprocess.run([*size, *kind], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found.append((rows, *run(here, False, workers)))
        pd.DataFrame(found, columns=columns).round(2).to_csv(folder / "growth.csv", index=False)
        shutil.rmtree(here)
    draw(pd.read_csv(folder / "growth.csv"), folder / "growth.svg")


def draw(table: pd.DataFrame, path: Path) -> None:
    """Seconds against rows, and each size's ratio to what lies between its neighbours."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    rows, seconds = table["rows"].to_numpy(), table["seconds"].to_numpy()
    axes.loglog(rows, seconds, "o-", label="seconds by the clock")
    axes.loglog(rows, table["seconds_of_cpu"], "s--", label="seconds of CPU, all processes")
    axes.set(xlabel="rows", ylabel="seconds of the whole command", title="Five count models, seven features, two cores")
    axes.legend()
    axes.grid(which="both", alpha=0.3)
    figure.savefig(path)
    for k in range(1, len(rows) - 1):
        share = (rows[k] - rows[k - 1]) / (rows[k + 1] - rows[k - 1])
        between = seconds[k - 1] + share * (seconds[k + 1] - seconds[k - 1])
        print(f"{rows[k]:>10,} rows: {seconds[k] / between:.2f} of the line between its neighbours")


@dataclass
class Used:
    """What a process used so far."""

    peak: float = 0.0
    cpu: float = 0.0


def sample(process: psutil.Popen, used: dict[tuple[int, str], Used]) -> None:
    """Fill ``used`` by process and kind (flow, worker or other), until ``process`` ends."""
    while process.poll() is None:
        try:
            processes = (process, *process.children(recursive=True))
        except psutil.NoSuchProcess:
            return
        for one in processes:
            try:
                kind = kind_of(one)
                held = used.setdefault((one.pid, kind), Used())
                held.peak = max(held.peak, one.memory_info().rss / 2**30)
                held.cpu = sum(one.cpu_times()[:2])
            except (psutil.NoSuchProcess, IndexError):
                continue
        time.sleep(0.5)


def kind_of(one: psutil.Process) -> str:
    """By its command line."""
    line = " ".join(one.cmdline())
    if "forkserver" in line:  # workers are forks of one that has loaded what they need
        return "worker" if "forkserver" in " ".join(one.parent().cmdline()) else "fork server"
    if "spawn_main" in line:
        return "worker"
    return "Prefect server" if "uvicorn" in line else "command" if "cli.main" in line else "other"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["make", "run", "growth"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows", type=lambda text: int(float(text)), nargs="?", default=10_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--versions", type=int, default=2)
    parser.add_argument("--file-rows", type=int, default=500_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--counts", action="store_true")
    given = parser.parse_args()
    if given.command == "make":
        make(given.folder, given.rows, given.features, given.versions, given.file_rows, given.counts)
    elif given.command == "growth":
        growth(given.folder, given.features, given.versions, given.workers)
    else:
        run(given.folder, given.again, given.workers)
