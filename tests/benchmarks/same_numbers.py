"""Whether two trees of the program log the same numbers: every kind of evaluation, by the command line, side by side.

python tests/benchmarks/same_numbers.py make FOLDER            # data and registered versions, once
PYTHONPATH=TREE/src python tests/benchmarks/same_numbers.py run FOLDER NAME
python tests/benchmarks/same_numbers.py compare FOLDER NAME NAME
PYTHONPATH=TREE/src python tests/benchmarks/same_numbers.py paths FILE.json [BEFORE.json]
    # without flows: by every solver in memory, on 1 and 2 Dask workers and in row blocks of three sizes, against each
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


REFERENCE = {"cholesky": "cholesky", "cg": "cholesky", "tiled": "cholesky", "nystrom": "nystrom", "blocks": "nystrom"}


def ways(kind: str, n: int = 1800, landmarks: int = 256) -> dict[str, dict[str, float]]:
    """Metrics by way of measuring."""
    from functools import partial
    from types import SimpleNamespace

    from congruence.kernels import ECAI, Cholesky, ConjugateGradient, Normal, Nystrom, Poisson, Samples
    from congruence.kernels.congruence.preparation import prepare
    from congruence.kernels.protocol.protocol import EvaluationProtocol
    from congruence.kernels.row_blocks.rows import SampledRows
    from congruence.kernels.row_blocks.runs import PassesHere
    from congruence.kernels.row_blocks.split import BlockSplit
    from congruence.tasks.dask.clusters import dask_client
    from congruence.tasks.settings.cluster import ClusterSettings
    from congruence.tasks.solving.measurement import measure
    from congruence.tasks.solving.pass_runner import PassesOnCluster
    from congruence.tasks.solving.prepare import prepare_on_dask
    from congruence.tasks.solving.solve_progress import SolveProgress
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
    settings = SimpleNamespace(seed=0, metrics=["cce", "congruence_test"])
    found: dict[str, dict[str, float]] = {}

    def in_memory(name: str, prepare_inputs: Any) -> None:
        made = measure(settings, protocol, x, y, laws, prepare_inputs=prepare_inputs)
        found[name] = {}
        for label, one in made.items():
            known = one.result.uncertainty
            found[name] |= numbers(label, one.result, known, one.expected, one.test.statistic, one.test.p_value)

    def by_blocks(name: str, run: Any) -> None:
        split = BlockSplit(run, protocol, 0)
        split.look_at(list(laws))
        solved = split.solve(landmarks, list(laws), lambda *_: None, draws=None, tested=True)
        found[name] = {}
        for label, one in split.finish(solved, lambda *_: None).items():
            found[name] |= numbers(label, one, one.uncertainty, one.expected, one.test.statistic, one.test.p_value)

    for name, solver in {"cholesky": Cholesky(), "cg": ConjugateGradient(), "nystrom": Nystrom(landmarks)}.items():
        in_memory(name, partial(prepare, solver=solver))
    for size in (150, 700, n):
        by_blocks(f"blocks of {size}", PassesHere(Cut(SampledRows(x, y, laws), size)))
    for workers in (1, 2):
        unheard = SolveProgress(lambda _: None, 1, 1)
        with dask_client(ClusterSettings(kind="threads", workers=workers)) as client:
            place = partial(prepare_on_dask, client, dtype=np.float64)
            for name, solver in {
                "tiled": TiledCholesky(),
                "cg": ConjugateGradient(),
                "nystrom": Nystrom(landmarks),
            }.items():
                in_memory(f"{name} on {workers}", partial(place, solver=solver))
            by_blocks(f"blocks on {workers}", PassesOnCluster(client, Cut(SampledRows(x, y, laws), 150), unheard))
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


class Cut:
    """Held rows (``SampledRows``) in blocks."""

    def __init__(self, rows: Any, size: int) -> None:
        self.rows, self.size = rows, size
        n = len(rows.rows)
        self.sizes = [min(size, n - start) for start in range(0, n, size)]

    def _of(self, block: int) -> slice:
        return slice(block * self.size, block * self.size + self.sizes[block])

    def inputs(self, block: int) -> Any:
        return self.rows.inputs(0)[self._of(block)]

    def targets(self, block: int) -> Any:
        return self.rows.targets(0)[self._of(block)]

    def weights(self, block: int) -> None:
        """See RowBlocks."""

    def predictive(self, block: int, version: str) -> Any:
        return self.rows.predictive(0, version)[self._of(block)]


if __name__ == "__main__":
    command, place, *names = sys.argv[1:]
    {"make": make, "run": run, "compare": compare, "paths": paths}[command](Path(place), *names)
