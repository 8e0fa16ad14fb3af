"""Exact answers by tiles and answers on landmarks, on a card and on two cores: seconds, rates, agreement."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

DIMENSION = 64
EXACT = {False: (12_000, 40_000, 100_000), True: (600, 700, 800)}
LANDMARKS = {False: ((1_000_000, 1024), (200_000, 4096)), True: ((3_000, 64), (2_000, 128))}
LONGEST = {False: (10_000_000, 1024), True: (5_000, 64)}
CORES = 2
BLOCK_ROWS = 16_384


def run(record: Any, name: str, device: str, small: bool) -> None:
    """Every size on the card; the smallest of each kind on two cores, too, to compare seconds and numbers."""
    card = 60 * 2**30
    shortest, middle, longest = EXACT[small]
    tile = 128 if small else None
    with _client(1) as client:
        _exact(record, client, shortest, card, tile, "card, first call")
        of_card = _exact(record, client, shortest, card, tile, "card")
        _exact(record, client, middle, card, tile, "card")
        _exact(record, client, middle, 1, tile, "tiles in host memory")
        _exact(record, client, longest, card, tile, "card")
    with _two_cores(), _client(CORES) as client:
        of_cores = _exact(record, client, shortest, None, tile, "two cores")
    _compare(record, f"exact, {shortest:,} rows", of_card, of_cores)
    threads = len(os.sched_getaffinity(0))
    for rows, landmarks in LANDMARKS[small]:
        what = f"{rows:,} rows, {landmarks:,} landmarks"
        with _client(threads) as client:
            of_card = _landmarks(record, client, rows, landmarks, f"{what}, card and {threads} threads", gpu=True)
        with _client(1) as client:
            _landmarks(record, client, rows // 5, landmarks, f"{what}, a fifth, card and 1 thread", gpu=True)
        with _two_cores(), _client(CORES) as client:
            _landmarks(record, client, rows // 5, landmarks, f"{what}, a fifth, two cores", gpu=False)
        with _client(threads) as client:
            of_cores = _landmarks(record, client, rows, landmarks, f"{what}, {threads} threads", gpu=False)
        _compare(record, what, of_card, of_cores)
    rows, landmarks = LONGEST[small]
    with _client(threads) as client:
        _landmarks(record, client, rows, landmarks, f"{rows:,} rows, {landmarks:,} landmarks, card", gpu=True)


@dataclass(frozen=True)
class Blocks:
    """A split in files, a normal version whose spread is wrong, and where its columns go."""

    folder: Path
    rows: int

    @classmethod
    def write(cls, folder: str, rows: int) -> Blocks:
        """Make the files."""
        rng = np.random.default_rng(0)
        x = rng.standard_normal((rows, DIMENSION), dtype=np.float32)
        np.save(Path(folder) / "x.npy", x)
        np.save(Path(folder) / "y.npy", rng.normal(3.0 * x[:, 0].astype(np.float64), np.exp(0.2 * x[:, 1])))
        return cls(Path(folder), rows)

    @property
    def sizes(self) -> list[int]:
        """See RowBlocks."""
        return [min(BLOCK_ROWS, self.rows - start) for start in range(0, self.rows, BLOCK_ROWS)]

    def inputs(self, block: int) -> np.ndarray:
        """See RowBlocks."""
        return self._read("x", block)

    def targets(self, block: int) -> np.ndarray:
        """See RowBlocks."""
        return self._read("y", block)

    def weights(self, block: int) -> None:
        """See RowBlocks."""

    def predictive(self, block: int, version: str) -> Any:
        """See RowBlocks."""
        from congruence.kernels import Normal

        mean = 3.0 * self._read("x", block)[:, 0].astype(np.float64)
        return Normal(mean, np.ones(len(mean)))

    def __call__(self, block: int, version: str, columns: dict[str, np.ndarray]) -> None:
        """See Write."""
        if "cce" in columns:
            np.save(self.folder / f"cce-{block}.npy", columns["cce"])

    def cce(self) -> np.ndarray:
        """Of all rows."""
        return np.concatenate([np.load(self.folder / f"cce-{block}.npy") for block in range(len(self.sizes))])

    def _read(self, name: str, block: int) -> np.ndarray:
        start = block * BLOCK_ROWS
        return np.array(np.load(self.folder / f"{name}.npy", mmap_mode="r")[start : start + self.sizes[block]])


def _measured(client: Any, rows: int, accuracy: Any, **ways: Any) -> tuple[Any, np.ndarray, float]:
    from congruence.kernels.engine.plan import Ask
    from congruence.kernels.protocol import EXACT as PROTOCOL
    from congruence.tasks.solving.pass_runner import measure_blocks

    with TemporaryDirectory() as folder:
        blocks, started = Blocks.write(folder, rows), time.perf_counter()
        given = client, blocks, PROTOCOL, Ask(["a"], tested=False), blocks
        found = measure_blocks(*given, accuracy=accuracy, **ways)["a"]
        return found, blocks.cce(), time.perf_counter() - started


def _exact(record: Any, client: Any, rows: int, card: int | None, tile: int | None, what: str) -> tuple[Any, ...]:
    from congruence.kernels.engine.landmarks import Accuracy
    from congruence.tasks.solving.tiled_cholesky import TiledCholesky

    spent: dict[str, float] = {}
    tiled = TiledCholesky(client, tile, card_bytes=card)

    def factorize(inputs: Any) -> Any:
        started = time.perf_counter()
        factor = tiled(inputs)
        spent["factor"], spent["place"] = time.perf_counter() - started, factor.place
        return factor

    with record.sampler.stage(f"exact, {rows:,} rows, {what}"):
        found = _measured(client, rows, Accuracy.exact(), factorize=factorize, gpu=card is not None)
    record.note(
        **{
            f"exact, {rows:,} rows, {what}": {
                "seconds": round(found[2], 2),
                "factor_seconds": round(spent["factor"], 2),
                "factor_tflops": round(rows**3 / 3 / spent["factor"] / 1e12, 3),
                "tiles": spent["place"],
                "passes": {name: round(value, 2) for name, value in found[0].seconds.items()},
                "cce": float(found[1].mean()),
            }
        }
    )
    return found


def _landmarks(record: Any, client: Any, rows: int, landmarks: int, what: str, *, gpu: bool) -> tuple[Any, ...]:
    from congruence.kernels.engine.landmarks import Accuracy

    with record.sampler.stage(what):
        found = _measured(client, rows, Accuracy.of(landmarks), gpu=gpu)
    record.note(
        **{
            what: {
                "rows": rows,
                "seconds": round(found[2], 2),
                "passes": {name: round(value, 2) for name, value in found[0].seconds.items()},
                "cce": float(found[1].mean()),
                "certificate": found[0].result.mean_error_bound,
            }
        }
    )
    return found


def _compare(record: Any, what: str, first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
    """No row may differ by more than the two certificates together."""
    worst = float(np.abs(first[1] - second[1]).max())
    allowed = sum(each[0].result.error_bound for each in (first, second))
    record.goal(f"{what}: largest difference of a row's CCE, in certificates", worst / allowed, 1.0, at_least=False)
    relative = abs(float(first[1].mean() / second[1].mean()) - 1.0)
    record.note(**{f"{what}: difference": {"row": worst, "certificates": allowed, "relative_of_mean": relative}})
    if worst > allowed:
        raise AssertionError(f"{what}: rows differ by {worst:.3g}, and {allowed:.3g} are certified")


@contextmanager
def _client(threads: int) -> Iterator[Any]:
    from distributed import Client

    with Client(processes=False, n_workers=1, threads_per_worker=threads, dashboard_address=None) as client:
        yield client


@contextmanager
def _two_cores() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(cores)[:CORES]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
