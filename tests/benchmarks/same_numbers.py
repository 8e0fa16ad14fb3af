"""Whether two trees of the program log the same numbers: every kind of evaluation, by the command line, side by side.

python tests/benchmarks/same_numbers.py make FOLDER            # data and registered versions, once
PYTHONPATH=TREE/src python tests/benchmarks/same_numbers.py run FOLDER NAME
python tests/benchmarks/same_numbers.py compare FOLDER NAME NAME
PYTHONPATH=TREE/src python tests/benchmarks/same_numbers.py paths FILE.json [BEFORE.json]
    # without flows: exact and on landmarks, on 1 and 2 Dask workers and in row blocks of three sizes, against each
    # other and an earlier file
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
        command = [sys.executable, "-m", "congruence.flows.cli.main", "evaluate", str(file), "--home", str(home)]
        subprocess.run(command, check=True, env={**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db"})
        found |= {f"{kind}: {label}": metrics for label, metrics in logged(home).items()}
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1))


def logged(home: Path) -> dict[str, dict[str, float]]:
    """The metrics of every complete run in a home folder."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{home / 'mlflow.db'}")
    runs = mlflow.search_runs(search_all_experiments=True, output_format="list")
    return {
        run.info.run_name: recorded(run)
        for run in runs
        if run.data.tags.get("congruence.kind") == "evaluation" and run.data.tags.get("congruence.state") == "complete"
    }


def recorded(run: Any) -> dict[str, float]:
    """The metrics of a run at all digits, which MLflow's own have not."""
    import mlflow

    found = mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/provenance.json")["metrics"]
    return {name: metric["value"] for name, metric in found.items()}


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


def paths(file: Path, before: str | None = None) -> None:
    """The numbers of every way to measure a split, and where they part."""
    found = {f"{kind}: {way}: {name}": value for kind in ("counts", "normal") for way, values in ways(kind).items()
             for name, value in values.items()}  # fmt: skip
    file.write_text(json.dumps(found, indent=1))
    earlier = {} if before is None else json.loads(Path(before).read_text())
    for label, value in found.items():
        base = label.split(": ")
        others = [earlier.get(label), found.get(f"{base[0]}: {REFERENCE[base[1].split()[0]]}: {': '.join(base[2:])}")]
        gaps = [
            "      -" if other is None else f"{abs(value - other) / max(abs(other), 1e-12):7.1e}" for other in others
        ]
        print(f"{label:60} {value:12.6g}  before {gaps[0]}  reference {gaps[1]}")
    print("\nLargest relative difference: of ways with the same reference from each other, of all ways")
    for name, (alike, whole) in apart(found).items():
        print(f"{name:60} {alike:7.1e} {whole:7.1e}")


def apart(found: dict[str, float]) -> dict[str, tuple[float, float]]:
    """By number, how far exact ways are from each other, or ways on landmarks; and how far all are."""
    by_number: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for label, value in found.items():
        kind, way, version, name = label.split(": ")
        by_number.setdefault((kind, version, name), {}).setdefault(REFERENCE[way.split()[0]], []).append(value)
    largest: dict[str, tuple[float, float]] = {}
    for (_, _, name), values in by_number.items():
        scale = abs(values["exact"][0])
        alike = max(max(each) - min(each) for each in values.values()) / scale
        whole = float(np.ptp([value for each in values.values() for value in each])) / scale
        known = largest.get(name, (0.0, 0.0))
        largest[name] = max(known[0], alike), max(known[1], whole)
    return largest


REFERENCE = {"exact": "exact", "tiled": "exact", "landmarks": "landmarks", "blocks": "landmarks"}


def ways(kind: str, n: int = 1800, landmarks: int = 256) -> dict[str, dict[str, float]]:
    """Metrics by way of measuring: exact and on landmarks, in blocks of several sizes, on one and two workers."""
    from congruence.kernels import ECAI, Normal, Poisson, Samples
    from congruence.kernels.engine.blocks import HeldRows, LocalPasses
    from congruence.kernels.engine.driver import Driver
    from congruence.kernels.engine.plan import Ask
    from congruence.kernels.protocol import EvaluationProtocol
    from congruence.tasks.dask.clusters import dask_client
    from congruence.tasks.settings.parts import ClusterSettings
    from congruence.tasks.solving.pass_runner import PassesOnCluster, SolveProgress
    from congruence.tasks.solving.tiled_cholesky import TiledCholesky

    rng = np.random.default_rng(5)
    x = rng.standard_normal((n, 4))
    protocol = EvaluationProtocol("exact", normalize=False, input_kernel=ECAI.input_kernel)
    mean = np.exp(0.4 * x[:, 0] - 0.2 * x[:, 1])
    if kind == "counts":
        y = rng.poisson(mean).astype(float)
        laws = {"true": Poisson(mean), "flat": Poisson(np.full(n, 1.2))}
    else:
        y = x[:, 0] + rng.standard_normal(n)
        laws = {"flat": Normal(np.zeros(n), np.full(n, 1.4)), "few": Samples(x[:, :1] + rng.standard_normal((n, 6)))}
    found: dict[str, dict[str, float]] = {}

    def measured(name: str, run: Any, count: int, **options: Any) -> None:
        driver = Driver(run, protocol, 0, dtype=np.float64, **options)
        solved = driver.solve(Ask(list(laws)), count, lambda *_: None)
        found[name] = {}
        for label, one in driver.finish(solved, lambda *_: None).items():
            found[name] |= numbers(label, one, one.uncertainty, one.band, one.test.statistic, one.test.p_value)

    measured("exact", LocalPasses(HeldRows(x, y, laws)), n)
    for size in (150, 700, n):
        measured(f"blocks of {size}", LocalPasses(HeldRows(x, y, laws, block_rows=size)), landmarks)
    found["landmarks"] = found[f"blocks of {n}"]
    for workers in (1, 2):
        unheard = SolveProgress(lambda _: None, 1, 1)
        with dask_client(ClusterSettings(kind="threads", workers=workers)) as client:
            run = PassesOnCluster(client, HeldRows(x, y, laws, block_rows=150), unheard)
            measured(f"blocks on {workers}", run, landmarks)
            measured(f"tiled on {workers}", run, n, factorize=TiledCholesky(client, tile_rows=400))
    return found


def numbers(label: str, result: Any, known: Any, expected: Any, statistic: float, p: float) -> dict[str, float]:
    """What is compared of a version."""
    stated = getattr(result, "certificate", None)
    return {
        f"{label}: {name}": float(value)
        for name, value in {
            "mean": result.mean,
            "floor": result.noise_floor,
            "bound": result.mean_error_bound if stated is None else stated.in_mean,
            "standard error": known.standard_error,
            "expected": expected.mean,
            "low": expected.low,
            "statistic": statistic,
            "p": p,
        }.items()
    }


if __name__ == "__main__":
    command, place, *names = sys.argv[1:]
    {"make": make, "run": run, "compare": compare, "paths": paths}[command](Path(place), *names)
