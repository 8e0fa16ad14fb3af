"""Level and power of the test of conditional calibration on rows that depend on each other.

    python tests/benchmarks/dependent_rows.py [--splits S]

A true law (standard normal at every input) whose targets follow a stationary AR(1) series or share a group's effect;
the test as if rows were independent, and by blocks of rows. The kept record is dependent_rows.md.
"""

from __future__ import annotations

import argparse
import time as clock

import numpy as np
from scipy.signal import lfilter

from congruence.kernels import Normal
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.errors import InvalidInputError

SETTINGS = CalibrationSettings(draws=199, directions=50, own_directions=10)


def series(n: int, rho: float, rng: np.random.Generator) -> np.ndarray:
    """Standard normal at every time, with lag-1 correlation rho."""
    noise = rng.standard_normal(n)
    noise[1:] *= np.sqrt(1.0 - rho**2)
    return np.asarray(lfilter([1.0], [1.0, -rho], noise))


def inputs(n: int, kind: str, rng: np.random.Generator) -> np.ndarray:
    """Slow: smooth in time; fast: independent; shared: one input a group of 5."""
    t = np.arange(n) / n
    if kind == "slow":
        return np.column_stack([np.sin(6.0 * t), np.cos(4.0 * t), t])
    if kind == "shared":
        return np.repeat(rng.standard_normal((n // 5, 3)), 5, axis=0)
    return rng.standard_normal((n, 3))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--splits", type=int, default=100)
    splits = parser.parse_args().splits
    cases = [("AR(1) .5", n, kind) for n in (500, 1000) for kind in ("slow", "fast")]
    cases += [("AR(1) .9", n, kind) for n in (500, 1000, 5000) for kind in ("slow", "fast")]
    cases = [("groups of 5", 600, kind) for kind in ("fast", "shared")] + cases
    print(
        "| rows | n | inputs | independent: level | blocks: level | blocks | refused | bias .3 | spread 1.5 | CPU s |"
    )
    print("|---|---:|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, n, kind in cases:
        rng, started = np.random.default_rng([n, len(kind), len(name)]), clock.process_time()
        prepared = prepare_calibration(inputs(n, kind, rng), settings=SETTINGS)
        law, groups = Normal(np.zeros(n), 1.0), np.repeat(np.arange(n // 5), 5)
        found = np.zeros(4)
        blocks = refused = powered = 0
        for split in range(splits):
            if name.startswith("AR"):
                y, how = series(n, float(name[-2:]), rng), {"time": np.arange(n)}
            else:
                y = np.sqrt(0.5) * (np.repeat(rng.standard_normal(n // 5), 5) + rng.standard_normal(n))
                how = {"groups": groups}
            try:
                by_blocks = prepared.test_version(y, law, **how)
            except InvalidInputError:  # fewer than ten runs
                refused += 1
                continue
            blocks += by_blocks.blocks or n
            found[:2] += prepared.test_version(y, law).p_value <= 0.05, by_blocks.p_value <= 0.05
            if split % 2 == 0:
                powered += 1
                found[2] += prepared.test_version(y + 0.3, law, **how).p_value <= 0.05
                found[3] += prepared.test_version(1.5 * y, law, **how).p_value <= 0.05
        tested = max(splits - refused, 1)
        level, power = found[:2] / tested, found[2:] / max(powered, 1)
        print(
            f"| {name} | {n:,} | {kind} | {level[0]:.2f} | {level[1]:.2f} | {blocks / tested:.0f} | {refused} | "
            f"{power[0]:.2f} | {power[1]:.2f} | {clock.process_time() - started:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
