"""The test and the reading of calibration given the input by row blocks: CPU seconds of every pass, level of the limit.

    python tests/benchmarks/calibration_in_blocks.py cost --rows 1000000 --features 512
    python tests/benchmarks/calibration_in_blocks.py level --rows 2000 --splits 400

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
from congruence.kernels.conditional_calibration.block_bases import (
    BlockBases,
    basis_sums,
    prepared_blocks,
    sample_positions,
)
from congruence.kernels.conditional_calibration.block_versions import (
    BlockRows,
    planned_calibration,
    projected_version,
    said_sums,
    version_sums,
)
from kept_p_values import KeptPValues, share, uniformity

from congruence.kernels import EXACT, Distribution, Normal, Poisson, ZeroInflatedPoisson, pit_values
from congruence.kernels.conditional_calibration import CalibrationSettings, prepare_calibration
from congruence.kernels.conditional_calibration.bases import own_quantiles
from congruence.kernels.conditional_calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.prepared import judged
from congruence.kernels.row_blocks.sums import BlockSums
from congruence.tasks.solving.block_passes import Pass
from congruence.tasks.solving.calibration_in_blocks import calibrate_blocks

DRAWS = 999
SPLITS_PER_INPUTS = 50
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

    def predictive(self, block: int, version: str) -> Distribution:
        spread = self._read("spread", block)
        return Normal(self._read("mean", block), spread if version == "right" else np.full(len(spread), 1.0))

    def _read(self, name: str, block: int) -> np.ndarray:
        whole = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        return np.array(whole[block * BLOCK_ROWS : (block + 1) * BLOCK_ROWS])

    def run(self, name: str, function: Callable[..., Pass], *context: Any) -> Pass:
        started, total, first = time.process_time(), {}, 0
        for block, size in enumerate(self.sizes):
            for key, sums in function(self, block, first, *context).items():
                total.setdefault(key, BlockSums()).merge(sums)
            first += size
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


def laws(x: np.ndarray) -> dict[str, Distribution]:
    """True laws: of the two counts seven and eight targets in ten are 0."""
    mean, n = np.exp(2.0 * x[:, 0]), len(x)
    return {
        "normal": Normal(x[:, 0], np.exp(x[:, 1])),
        "Poisson, mean .3": Poisson(0.3 * mean / mean.mean()),
        "zero-inflated Poisson": ZeroInflatedPoisson(mean, np.full(n, 0.7)),
    }


def level(rows: int, splits: int, first: int, keep: Path | None) -> None:
    """p-values of true models, by the gaussian limit in three uneven blocks and by drawn PIT values, 999 draws each.

    New inputs every 50 splits. The limit is for more than 100,000 rows; here are few, where it is worst.
    """
    settings, kept, started = CalibrationSettings(draws=DRAWS), KeptPValues(keep), time.process_time()
    ends = [(0, rows // 5), (rows // 5, rows // 2), (rows // 2, rows)]
    for split in range(first, first + splits):
        if split == first or split % SPLITS_PER_INPUTS == 0:
            rng = np.random.default_rng([5, split, rows])
            x = EXACT.apply(rng.standard_normal((rows, 64)) * np.arange(1, 65) ** -0.7)
            positions = sample_positions(rows, split)
            told = BlockBases.of(EXACT, settings, x[positions], positions, rows, split)
            prepared = prepared_blocks(told, added([basis_sums(told, x[a:b], a) for a, b in ends]))
            exact = prepare_calibration(x, input_kernel=EXACT.input_kernel, settings=settings, seed=split)
            kept.save()
            print(f"split {split}, {time.process_time() - started:.0f} CPU s", flush=True)
        for number, (name, law) in enumerate(laws(4.0 * x).items()):
            y, keys = law.sample(1, seed=3 * split + number)[:, 0], rows * split + np.arange(rows)
            said = added([said_sums(told, y[a:b], law[a:b], positions, a) for a, b in ends])
            plan = planned_calibration(prepared, name, said)
            parts = []
            for a, b in ends:
                of = BlockRows.of(told, y[a:b], law[a:b], keys[a:b], has_own=plan.own is not None)
                parts.append(version_sums(told, x[a:b], {name: of}, [plan])[name])
            found = projected_version(prepared, plan, added(parts))
            limit = judged(found.names, found.observed, found.null, "gaussian", {}, {})
            drawn = exact.test(pit_values(y, law, seed=told.seed, keys=keys), own_quantiles(y, law, settings.levels))
            kept.add(name, limit.p_value, drawn.p_value, *limit.by_order.values(), *drawn.by_order.values())
    kept.save()
    print(f"\n## Level: n = {rows:,}, {DRAWS} draws, the gaussian limit by row blocks and the exact null\n")
    print(f"| model | splits | null | at 5 % | at 1 % | KS p | {' | '.join(ORDERS)} (at 5 %) |")
    print("|---|" + "---:|" * 9)
    for name, values in kept.columns():
        for null, p, by_order in (("limit", values[:, 0], values[:, 2:6]), ("exact", values[:, 1], values[:, 6:])):
            orders = " | ".join(f"{value:.3f}" for value in np.mean(by_order <= 0.05, axis=0))
            print(
                f"| {name} | {len(p)} | {null} | {share(p <= 0.05)} | {share(p <= 0.01)} | "
                f"{uniformity(p, DRAWS):.3f} | {orders} |"
            )


def added(parts: list[BlockSums]) -> BlockSums:
    total = BlockSums()
    for part in parts:
        total.merge(part)
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["cost", "level"])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--splits", type=int, default=400)
    parser.add_argument("--first", type=int, default=0, help="number of the first split of the level")
    parser.add_argument("--keep", type=Path, help="file of the level's p-values, which further splits are added to")
    arguments = parser.parse_args()
    if arguments.part == "cost":
        cost(arguments.rows, arguments.features)
    else:
        level(arguments.rows, arguments.splits, arguments.first, arguments.keep)


if __name__ == "__main__":
    main()
