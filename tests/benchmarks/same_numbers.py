"""The same numbers, whatever the path: exact and on landmarks, on 1 and 2 Dask workers, in row blocks of three sizes.

    PYTHONPATH=TREE/src python tests/benchmarks/same_numbers.py FILE.json [BEFORE.json]

Ways are held against each other, and against an earlier file: that of another tree of the program, say.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from congruence.kernels import ECAI, Normal, Poisson, Samples
from congruence.kernels.engine.blocks import HeldRows, LocalPasses
from congruence.kernels.engine.driver import Driver
from congruence.kernels.engine.plan import Ask
from congruence.kernels.protocol import EvaluationProtocol
from congruence.tasks.dask.clusters import dask_client
from congruence.tasks.settings.parts import ClusterSettings
from congruence.tasks.solving.pass_runner import PassesOnCluster, SolveProgress
from congruence.tasks.solving.tiled_cholesky import TiledCholesky

REFERENCE = {"exact": "exact", "tiled": "exact", "landmarks": "landmarks", "blocks": "landmarks"}


def paths(file: Path, before: Path | None = None) -> None:
    """The numbers of every way to measure a split, and where they part."""
    found = {f"{kind}: {way}: {name}": value for kind in ("counts", "normal") for way, values in ways(kind).items()
             for name, value in values.items()}  # fmt: skip
    file.write_text(json.dumps(found, indent=1))
    earlier = {} if before is None else json.loads(before.read_text())
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


def ways(kind: str, n: int = 1800, landmarks: int = 256) -> dict[str, dict[str, float]]:
    """Metrics by way of measuring: exact and on landmarks, in blocks of several sizes, on one and two workers."""
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
            means = {"mean": solved.scores[label].added["values"] / n, "floor": solved.scores[label].added["floor"] / n}
            found[name] |= {f"{label}: {number}": float(value) for number, value in (means | numbers(one)).items()}

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


def numbers(result: Any) -> dict[str, float]:
    """What is compared of a version beside its means."""
    return {
        "bound": result.mean_error_bound,
        "standard error": result.standard_error,
        "expected": result.band.mean,
        "low": result.band.low,
        "statistic": result.test.statistic,
        "p": result.p_value,
    }


if __name__ == "__main__":
    paths(*map(Path, sys.argv[1:]))
