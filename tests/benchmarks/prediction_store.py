"""What keeping predictions costs beside making them: python tests/benchmarks/prediction_store.py [rows]."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from congruence.kernels.distributions import Distribution, Mixture, Normal, Samples
from congruence.tasks.data.split import Shard
from congruence.tasks.models.address import PredictionAddress
from congruence.tasks.models.predictions import pending, read_predictions, write_range
from congruence.tasks.models.registry import ModelVersion

SHARD_ROWS = 2048
SHARDS_OF_A_RANGE = 32


def laws(rows: int) -> dict[str, Distribution]:
    rng = np.random.default_rng(0)

    def normal(n: int) -> Normal:
        return Normal(rng.normal(size=n), rng.exponential(size=n) + 0.1)

    fewer = rows // 5
    return {
        "normal": normal(rows),
        "mixture of 3 normals": Mixture(rng.dirichlet(np.ones(3), size=fewer), [normal(fewer) for _ in range(3)]),
        "50 samples": Samples(rng.normal(size=(fewer, 50))),
    }


def timed(work: Callable[[], Any]) -> tuple[Any, str]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, f"{time.perf_counter() - wall:6.2f} s ({time.process_time() - cpu:.2f} s CPU)"


def measure(name: str, law: Distribution, folder: str) -> None:
    shards = [
        Shard(index, start, min(SHARD_ROWS, len(law) - start), "")
        for index, start in enumerate(range(0, len(law), SHARD_ROWS))
    ]
    valid = np.ones(len(law), dtype=bool)
    address = PredictionAddress.of(folder, "split", ModelVersion("m", "1", "models:/m/1", "m-1"), "contract", valid)

    def write() -> None:
        for first in range(0, len(shards), SHARDS_OF_A_RANGE):
            group = shards[first : first + SHARDS_OF_A_RANGE]
            masks = [valid[shard.start : shard.stop] for shard in group]
            write_range(address, group, masks, law[group[0].start : group[-1].stop])

    _, written = timed(write)
    missing, looked = timed(lambda: pending(address, shards))
    found, read = timed(lambda: read_predictions(address, shards))
    assert missing == []
    np.testing.assert_allclose(found.mean(), law.mean(), rtol=1e-10)
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 2**20
    print(
        f"{name:22} {len(law):9,} rows  write {written}  look {looked}  read {read}  {len(files)} files {size:.0f} MiB"
    )


if __name__ == "__main__":
    for name, law in laws(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000).items():
        with tempfile.TemporaryDirectory() as folder:
            measure(name, law, folder)
