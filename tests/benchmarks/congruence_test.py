"""Level, power and cost of the congruence test: `python tests/benchmarks/congruence_test.py --parts level code`.

The kept record is congruence_test.md.

Inputs have the spectrum of real CLIP embeddings at unit norm (cce_engine.py); targets are digit-angle-like: a smooth
function of the input and noise. The level is checked under a true model over simulated splits, the power under the
wrong models that the demo holds.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import time
from pathlib import Path

import numpy as np
from cce_engine import embeddings
from kept_p_values import KeptPValues, share, uniformity

from congruence.kernels import (
    EXACT,
    Distribution,
    Gamma,
    Mixture,
    Normal,
    Poisson,
    Samples,
    StudentT,
    ZeroInflatedPoisson,
    prepare,
)
from congruence.kernels.congruence.coded_draws import SimulatedSplits
from congruence.kernels.congruence.outcome import TIE
from congruence.kernels.congruence.test import congruence_tests
from congruence.kernels.protocol.output_scales import output_kernel

SPLITS_PER_INPUTS = 50


def problem(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit-norm inputs, the conditional mean and the conditional spread."""
    x = EXACT.apply(embeddings(n, seed=seed))
    centred = x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)
    direction = np.random.default_rng(11).standard_normal((x.shape[1], 2))
    signal = centred @ direction
    signal /= signal.std(axis=0)
    return x, 20.0 + 5.0 * np.tanh(signal[:, 0]), 1.0 + 0.5 * np.tanh(signal[:, 1])


def true_models(mean: np.ndarray, spread: np.ndarray) -> dict[str, Distribution | None]:
    """Laws that targets are drawn from and that predict them; None for an ensemble of 10."""
    n = len(mean)
    return {
        "normal": Normal(mean, spread),
        "Poisson": Poisson(0.2 * mean),
        "gamma": Gamma(mean, np.ones(n)),
        "t, 3 degrees of freedom": StudentT(np.full(n, 3.0), mean, spread),
        "zero-inflated Poisson": ZeroInflatedPoisson(0.2 * mean, np.full(n, 0.4)),
        "mixture of two normals": Mixture(
            np.array([0.4, 0.6]), (Normal(mean - 3.0, spread), Normal(mean + 3.0, spread))
        ),
        "ensemble of 10": None,
    }


def level(splits: int, n: int, draws: int, first: int, families: list[str], keep: Path | None) -> None:
    """p-values of true models over simulated splits, family by family; new inputs every 50 splits."""
    kept, started = KeptPValues(keep), time.process_time()
    for split in range(first, first + splits):
        if split == first or split % SPLITS_PER_INPUTS == 0:
            x, mean, spread = problem(n, seed=10_000 + split)
            prepared = prepare(x, input_kernel=EXACT.input_kernel)
            kept.save()
            print(f"split {split}, {time.process_time() - started:.0f} CPU s", flush=True)
        for number, (name, truth) in enumerate(true_models(mean, spread).items()):
            if families and name not in families:
                continue
            seed = 10 * split + number
            if truth is None:
                values = Normal(mean, spread).sample(11, seed=seed)
                y, model = values[:, 0], Samples(values[:, 1:])
            else:
                y, model = truth.sample(1, seed=seed)[:, 0], truth
            test = congruence_tests(prepared, y, {"": model}, draws=draws, seed=seed)[""]
            found = test.significant_points()
            kept.add(name, test.p_value, np.mean(test.point_p_values <= 0.05), np.any(found))
    kept.save()
    print(f"\n## Level: n = {n:,}, {draws} draws\n")
    print(
        "| model | splits | mean p | KS p of uniformity | rejected at 5 % | at 10 % | points with p <= .05 "
        "| splits with any q <= .05 |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, rows in kept.columns():
        p, points, discoveries = rows.T
        print(
            f"| {name} | {len(p)} | {np.mean(p):.3f} | {uniformity(p, draws):.3f} | {share(p <= 0.05)} | "
            f"{share(p <= 0.1)} | {np.mean(points):.3f} | {np.mean(discoveries):.3f} |",
            flush=True,
        )


def code(splits: int, draws: int, keep: Path | None) -> None:
    """p-values of pools of 40 rows that are exchangeable by their making: the simulated splits alone, no law or kernel.

    Everything is new for every split: pools, directions, which rows share a matrix, which splits are drawn.
    """
    kept, started = KeptPValues(keep), time.process_time()
    for split in range(splits):
        rng = np.random.default_rng([21, split, draws])
        directions = rng.standard_normal((40, 4)).astype(np.float32)
        for name, pool_bits, entry_bits in (("16 values, 32 matrices", 4, 5), ("32 values, 256 matrices", 5, 8)):
            size = (40, 2**pool_bits)
            for law, values in (("t, 3 degrees", rng.standard_t(3.0, size)), ("Poisson", rng.poisson(1.5, size) / 2.0)):
                pool = np.stack([np.tanh(values), np.cos(values)], axis=2).astype(np.float32)
                simulated = SimulatedSplits(draws, pool_bits, entry_bits, int(rng.integers(2**62)))
                sums = np.zeros((2**simulated.bits, 4, 2), dtype=np.float32)
                simulated.add(sums, directions, pool, np.arange(40))
                errors = directions @ simulated.coefficients(sums)
                statistics = np.sqrt(np.sum(errors**2, axis=2)).mean(axis=1)
                reached = np.count_nonzero(statistics[1:] >= TIE * statistics[0])
                kept.add(f"{law}, {name}", (1 + reached) / (1 + draws))
        if split % 1000 == 0:
            kept.save()
            print(f"split {split}, {time.process_time() - started:.0f} CPU s", flush=True)
    kept.save()
    print(f"\n## Simulated splits of exchangeable pools: 40 rows, {draws} draws\n")
    print(
        "| pools | splits | mean p | KS p of uniformity | rejected at 5 % | at 10 % |\n|---|---:|---:|---:|---:|---:|"
    )
    for name, rows in kept.columns():
        p = rows[:, 0]
        print(
            f"| {name} | {len(p):,} | {np.mean(p):.4f} | {uniformity(p, draws):.3f} | "
            f"{np.mean(p <= 0.05):.4f} ({0.2179 / len(p) ** 0.5:.4f}) | {np.mean(p <= 0.1):.4f} "
            f"({0.3 / len(p) ** 0.5:.4f}) |",
            flush=True,
        )


def wrong_models(mean: np.ndarray, spread: np.ndarray) -> dict[str, object]:
    """The true law and six ways to miss it."""
    rows = np.arange(len(mean))
    return {
        "true": Normal(mean, spread),
        "biased by .3 spreads": Normal(mean + 0.3, spread),
        "overconfident 1.5x": Normal(mean, spread / 1.5),
        "underconfident 1.5x": Normal(mean, 1.5 * spread),
        "homoscedastic": Normal(mean, np.full(len(mean), np.sqrt(np.mean(spread**2)))),
        "ignores the input": Normal(np.full(len(mean), mean.mean()), np.full(len(mean), mean.std())),
        "skewed": Gamma((mean / spread) ** 2 / 25.0, 25.0 * spread**2 / mean),
        "wrong on a tenth of the rows": Normal(np.where(rows % 10 == 0, mean + 2.0, mean), spread),
    }


def power(splits: int, n: int, draws: int) -> None:
    """How often each wrong model is rejected, and what it costs."""
    print(f"\n## Power: {splits} simulated splits of n = {n:,}, {draws} draws, level 5 %\n")
    print("| model | rejected | largest p-value | points with q <= .05 | at the residual scale: rejected | points |")
    print("|---|---:|---:|---:|---:|---:|")
    found: dict[str, list[tuple[float, int]]] = {}
    fine: dict[str, list[tuple[float, int]]] = {}
    seconds = 0.0
    for split in range(splits):
        x, mean, spread = problem(n, seed=split)
        y = np.random.default_rng(100 + split).normal(mean, spread)
        prepared = prepare(x, input_kernel=EXACT.input_kernel)
        versions = wrong_models(mean, spread)
        _ = prepared.spectrum
        started = time.perf_counter()
        tests = congruence_tests(prepared, y, versions, draws=draws, seed=split)
        seconds += time.perf_counter() - started
        residual = output_kernel("residual", y, prepared)
        finer = congruence_tests(prepared, y, versions, draws=draws, seed=split, output_kernel=residual)
        for kept, results in ((found, tests), (fine, finer)):
            for name, test in results.items():
                kept.setdefault(name, []).append((test.p_value, int(test.significant_points().sum())))
    for name, values in found.items():
        (p, points), (p_fine, points_fine) = np.array(values).T, np.array(fine[name]).T
        print(
            f"| {name} | {np.mean(p <= 0.05):.2f} | {p.max():.3f} | {points.mean():.0f} | "
            f"{np.mean(p_fine <= 0.05):.2f} | {points_fine.mean():.0f} |"
        )
    print(f"\n{seconds / splits / len(found):.2f} s per version, after the spectrum.", flush=True)


def cost(sizes: list[int], draws: int) -> None:
    """Seconds and peak memory by n."""
    print(f"\n## Cost of one version, {draws} draws\n")
    print("| n | preparation and spectrum s | test s | peak GiB of the process |")
    print("|---:|---:|---:|---:|")
    for n in sizes:
        x, mean, spread = problem(n)
        y = np.random.default_rng(1).normal(mean, spread)
        started = time.perf_counter()
        prepared = prepare(x, input_kernel=EXACT.input_kernel)
        _ = prepared.spectrum
        ready = time.perf_counter()
        congruence_tests(prepared, y, {"": Normal(mean, spread)}, draws=draws)
        done = time.perf_counter()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"| {n:,} | {ready - started:.1f} | {done - ready:.1f} | {peak:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="*", default=[4000, 20_000, 100_000])
    parser.add_argument("--level-draws", type=int, default=999)
    parser.add_argument("--level-sizes", type=int, nargs="*", default=[300])
    parser.add_argument("--first", type=int, default=0, help="number of the first split of the level")
    parser.add_argument("--families", nargs="*", default=[], help="of the level; all by default")
    parser.add_argument("--keep", type=Path, help="file of the level's p-values, which further splits are added to")
    parser.add_argument("--parts", nargs="*", default=["level", "power", "cost"])
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, NumPy {np.__version__}")
    if "level" in arguments.parts:
        for rows in arguments.level_sizes:
            level(arguments.splits, rows, arguments.level_draws, arguments.first, arguments.families, arguments.keep)
    if "code" in arguments.parts:
        code(arguments.splits, arguments.level_draws, arguments.keep)
    if "power" in arguments.parts:
        power(max(1, arguments.splits // 20), n=4000, draws=999)
    if "cost" in arguments.parts:
        cost(arguments.sizes, draws=199)


if __name__ == "__main__":
    main()
