"""The test and the reading of calibration given the input by row blocks: CPU seconds of every pass.

    python tests/benchmarks/calibration_in_blocks.py --rows 1000000 --features 512

Passes run in this process, one block after the other, so that CPU seconds are those of one thread. The record is in
``conditional_calibration.md``.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from congruence.kernels import EXACT, Distribution, Normal
from congruence.kernels.row_blocks.calibration import calibrate_blocks
from congruence.kernels.row_blocks.rows import Pass
from congruence.kernels.row_blocks.runs import PassesHere

BLOCK_ROWS = 2**16


@dataclass
class FileBlocks:
    """Blocks of a split in NumPy files, with the CPU seconds of every pass over them."""

    folder: Path
    rows: int
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        return [min(BLOCK_ROWS, self.rows - start) for start in range(0, self.rows, BLOCK_ROWS)]

    def inputs(self, block: int) -> np.ndarray:
        return self._read("x", block)

    def targets(self, block: int) -> np.ndarray:
        return self._read("y", block)

    def keys(self, block: int) -> np.ndarray:
        return block * BLOCK_ROWS + np.arange(self.sizes[block])

    def weights(self, block: int) -> None:
        """See RowBlocks."""

    def predictive(self, block: int, version: str) -> Distribution:
        spread = self._read("spread", block)
        return Normal(self._read("mean", block), spread if version == "right" else np.full(len(spread), 1.0))

    def _read(self, name: str, block: int) -> np.ndarray:
        whole = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        return np.array(whole[block * BLOCK_ROWS : (block + 1) * BLOCK_ROWS])

    def run(self, name: str, function: Callable[..., Pass], *context: Any) -> Pass:
        started = time.process_time()
        total = PassesHere(self)(name, function, *context)
        self.seconds[name] = time.process_time() - started
        return total


def make(folder: Path, rows: int, features: int) -> None:
    scales = (np.arange(1, features + 1) ** -0.7).astype(np.float32)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, features))
    parts = {name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float64, (rows,)) for name in ("y", "mean", "spread")}  # fmt: skip  # noqa: E501
    for start in range(0, rows, BLOCK_ROWS):
        rng = np.random.default_rng([17, start])
        some = slice(start, min(start + BLOCK_ROWS, rows))
        block = rng.standard_normal((some.stop - some.start, features), dtype=np.float32) * scales
        x[some] = block
        parts["mean"][some] = 8.0 + 2.0 * np.tanh(block[:, 0])
        parts["spread"][some] = np.exp(0.3 * block[:, 1])
        parts["y"][some] = rng.normal(parts["mean"][some], parts["spread"][some])


def cost(rows: int, features: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make(folder, rows, features)
        for versions in (["right"], ["right", "even"]):
            blocks = FileBlocks(folder, rows)
            started = time.process_time()
            found = calibrate_blocks(
                blocks.run, rows, EXACT, versions, lambda *_: None, seed=0, dtype=np.dtype(np.float32)
            )
            passes = ", ".join(
                f"{name.removeprefix('calibration ')} {value:.1f}" for name, value in blocks.seconds.items()
            )
            print(f"{versions}: {time.process_time() - started:.1f} CPU s in all; {passes}")
            for name, one in found.items():
                effect = one.test.effects["spread"]
                share = f"{effect.estimate:.5f} [{effect.low:.5f}, {effect.high:.5f}]"
                print(f"  {name}: p {one.test.p_value:.3f}, spread {share}; {one.test.by_basis}")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"peak {peak:.2f} GiB")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=512)
    arguments = parser.parse_args()
    cost(arguments.rows, arguments.features)


if __name__ == "__main__":
    main()
