"""Versions measured by row blocks: seconds of every pass, CPU seconds, and peak memory of workers and client.

    python tests/benchmarks/row_blocks.py ROWS [--features 64] [--families normal,counts]

Inputs with a decaying spectrum and their targets lie in files that workers read by address. ``record`` is
``row_blocks.md``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil

from congruence.kernels import Distribution, NegativeBinomial, Normal, Poisson
from congruence.kernels.protocol.protocol import EXACT
from congruence.tasks.dask.clusters import ClusterSettings, dask_client
from congruence.tasks.solving.plan import BlockAccuracy
from congruence.tasks.solving.row_blocks import measure_blocks

BLOCK_ROWS = 32_768


@dataclass(frozen=True)
class StoredBlocks:
    """Blocks of a split in NumPy files."""

    folder: Path
    rows: int

    @property
    def sizes(self) -> list[int]:
        return [min(BLOCK_ROWS, self.rows - start) for start in range(0, self.rows, BLOCK_ROWS)]

    def inputs(self, block: int) -> np.ndarray:
        return self._read("x", block)

    def targets(self, block: int) -> np.ndarray:
        return self._read("y", block)

    def weights(self, block: int) -> None:
        """See RowBlocks."""

    def predictive(self, block: int, version: str) -> Distribution:
        mean = self._read("mean", block)
        if version == "normal":
            return Normal(mean, np.ones(len(mean)))
        if version == "counts":
            return NegativeBinomial(mean, np.full(len(mean), 0.05))
        if version == "poisson":
            return Poisson(mean)
        return Normal(mean + 0.1, np.ones(len(mean)))

    def _read(self, name: str, block: int) -> np.ndarray:
        start = block * BLOCK_ROWS
        whole = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        return np.array(whole[start : start + BLOCK_ROWS])


@dataclass(frozen=True)
class WriteBlocks:
    """Columns of a block into a file each."""

    folder: Path

    def __call__(self, block: int, version: str, columns: dict[str, np.ndarray]) -> None:
        for name, values in columns.items():
            np.save(self.folder / f"{version}-{name}-{block}.npy", values.astype(np.float32))


def make(folder: Path, rows: int, features: int) -> None:
    scales = np.arange(1, features + 1) ** -0.7
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, features))
    y, mean = (np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float64, (rows,)) for name in ("y", "mean"))
    for start in range(0, rows, BLOCK_ROWS):
        rng = np.random.default_rng([17, start])
        some = slice(start, min(start + BLOCK_ROWS, rows))
        block = rng.standard_normal((some.stop - some.start, features)) * scales
        x[some] = block
        mean[some] = 8.0 + 2.0 * np.tanh(block[:, 0])
        y[some] = np.round(rng.normal(mean[some], 1.0))


def peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=int)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--families", default="normal")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--landmarks", type=int, default=512)
    parser.add_argument("--largest", type=int, default=None)
    parser.add_argument("--draws", type=int, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make(folder, arguments.rows, arguments.features)
        with dask_client(ClusterSettings(kind="local", workers=arguments.workers)) as client:
            pids = list(client.run(lambda: __import__("os").getpid()).values())
            idle = [peak_bytes(pid) for pid in pids]
            before = sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)
            started = time.perf_counter()
            run = measure_blocks(
                client,
                StoredBlocks(folder, arguments.rows),
                SimpleNamespace(seed=0, metrics=None),
                EXACT,
                arguments.families.split(","),
                WriteBlocks(folder),
                accuracy=BlockAccuracy(first=arguments.landmarks, largest=arguments.largest or arguments.landmarks),
                draws=arguments.draws,
                announce=print,
            )
            wall = time.perf_counter() - started
            cpu = sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids) - before
            one = next(iter(run.values()))
            worst = max(each.share for each in run.values())
            print({name: round(seconds, 1) for name, seconds in one.seconds.items()})
            print(
                f"wall {wall:.1f} s, workers {cpu:.1f} CPU s, landmarks {one.landmarks}, "
                f"certificate {worst:.1e} of the mean"
            )
            peaks = [peak_bytes(pid) / 2**20 for pid in pids]
            print("workers' peak MiB", [round(p) for p in peaks], "idle", [round(i / 2**20) for i in idle])
            print("client's peak MiB", round(peak_bytes(psutil.Process().pid) / 2**20))
        for name, said in run.items():
            test = said.test
            print(
                f"{name}: mean {said.mean:.6f}, floor {said.noise_floor:.6f}, expected {said.expected.mean:.6f} "
                f"[{said.expected.low:.6f}, {said.expected.high:.6f}], certificate {said.certificate.in_mean:.2e} "
                f"({said.certificate.in_mean / said.mean:.1e} of the mean), se {said.uncertainty.standard_error:.2e}, "
                f"p {test.p_value if test else None} of {test.draws if test else 0} draws"
            )


if __name__ == "__main__":
    main()
