"""Counts scored by means over the jump of their law, against randomised PIT values: level and power at 5 %, and cost.

    python tests/benchmarks/count_scores.py [--splits S] [--rows 500 2000 20000] [--families poisson]

Counts whose mean depends on one of three inputs; the true version, and one that leaves the dependence out. The effect
is about as many standard errors large at every size. The record is in conditional_calibration.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from congruence.kernels import Distribution, NegativeBinomial, Poisson, ZeroInflatedPoisson, pit_values
from congruence.kernels.conditional_calibration.own_basis import own_quantiles
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.conditional_calibration.settings import CalibrationSettings

SETTINGS = CalibrationSettings(directions=50, own_directions=10, draws=199)
EFFECTS = {0.02: 0.7, 0.05: 0.45, 0.5: 0.14, 3.0: 0.06, 30.0: 0.019}  # of 2,000 rows
FAMILIES: dict[str, Callable[[np.ndarray], Distribution]] = {
    "poisson": Poisson,
    "overdispersed": lambda mean: NegativeBinomial(mean, np.full(len(mean), 0.5)),
    "zero-inflated": lambda mean: ZeroInflatedPoisson(mean / 0.6, np.full(len(mean), 0.4)),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--splits", type=int, default=60)
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--means", type=float, nargs="+", choices=EFFECTS, default=list(EFFECTS), help="with --level")
    parser.add_argument("--level", action="store_true", help="of the means alone, a third of the time")
    arguments = parser.parse_args()
    if arguments.level:
        return level_of_means(arguments)
    print("| family | rows | mean | level: randomised | level: means | power: randomised | power: means | more CPU s |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for n in arguments.rows:
        x = np.random.default_rng(0).standard_normal((n, 3))
        prepared = prepare_calibration(x, settings=SETTINGS)
        _ = prepared.null  # which versions with randomised values share
        for family in arguments.families:
            for mean, effect in EFFECTS.items():
                rate = mean * np.exp(effect * np.sqrt(2_000 / n) * x[:, 0])
                laws = [FAMILIES[family](rate), FAMILIES[family](np.full(n, rate.mean()))]
                found, seconds = np.zeros((2, 2)), np.zeros(2)
                for split in range(arguments.splits):
                    y = laws[0].sample(1, seed=1_000 + split)[:, 0]
                    for case, law in enumerate(laws):
                        marks = [time.process_time()]
                        pit = pit_values(y, law, seed=split)
                        randomised = prepared.test(pit, own_quantiles(y, law, SETTINGS.levels))
                        marks.append(time.process_time())
                        means = prepared.test_version(y, law)
                        marks.append(time.process_time())
                        found[case] += randomised.p_value <= 0.05, means.p_value <= 0.05
                        seconds += np.diff(marks)
                share, more = found / arguments.splits, (seconds[1] - seconds[0]) / (2 * arguments.splits)
                row = " | ".join(f"{value:.3f}" for value in share.ravel())
                print(f"| {family} | {n:,} | {mean:g} | {row} | {more:.2f} |", flush=True)
    return None


def level_of_means(arguments: argparse.Namespace) -> None:
    """Print the share of true versions that are called wrong by means over the jump, row by row."""
    print("| family | rows | mean | splits | level | standard error | CPU s a split |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for n in arguments.rows:
        x = np.random.default_rng(0).standard_normal((n, 3))
        prepared = prepare_calibration(x, settings=SETTINGS)
        for mean in arguments.means:
            rate = mean * np.exp(EFFECTS[mean] * np.sqrt(2_000 / n) * x[:, 0])
            for family in arguments.families:
                law, started = FAMILIES[family](rate), time.process_time()
                drawn = law.sample(arguments.splits, seed=1)
                share = float(np.mean([prepared.test_version(y, law).p_value <= 0.05 for y in drawn.T]))
                error = np.sqrt(share * (1.0 - share) / arguments.splits)
                cost = (time.process_time() - started) / arguments.splits
                row = f"{share:.3f} | {error:.3f} | {cost:.2f}"
                print(f"| {family} | {n:,} | {mean:g} | {arguments.splits} | {row} |", flush=True)


if __name__ == "__main__":
    main()
