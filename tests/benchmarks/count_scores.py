"""Counts scored by means over the jump of their law, against randomised PIT values: level and power at 5 %.

    python tests/benchmarks/count_scores.py [--splits S]

Poisson targets whose rate depends on one of three inputs; the true version, and one that leaves the dependence out.
The record is in conditional_calibration.md.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from congruence.kernels import Poisson, pit_values
from congruence.kernels.conditional_calibration.own_basis import own_quantiles
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.conditional_calibration.settings import CalibrationSettings

SETTINGS = CalibrationSettings(draws=199, directions=50, own_directions=10)
EFFECTS = {0.05: 0.45, 0.5: 0.14, 3.0: 0.06, 30.0: 0.019}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--splits", type=int, default=60)
    parser.add_argument("--rows", type=int, default=2_000)
    arguments = parser.parse_args()
    n, splits = arguments.rows, arguments.splits
    x = np.random.default_rng(0).standard_normal((n, 3))
    prepared = prepare_calibration(x, settings=SETTINGS)
    print("| mean | effect | level: randomised | level: means | power: randomised | power: means | more CPU s |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for mean, effect in EFFECTS.items():
        rate = mean * np.exp(effect * x[:, 0])
        laws = [Poisson(rate), Poisson(np.full(n, rate.mean()))]
        found, seconds = np.zeros((2, 2)), np.zeros(2)
        for split in range(splits):
            y = np.random.default_rng([split, 7]).poisson(rate)
            for case, law in enumerate(laws):
                marks = [time.process_time()]
                pit = pit_values(y, law, seed=split)
                randomised = prepared.test(pit, own_quantiles(y, law, SETTINGS.levels))
                marks.append(time.process_time())
                means = prepared.test_version(y, law)
                marks.append(time.process_time())
                found[case] += randomised.p_value <= 0.05, means.p_value <= 0.05
                seconds += np.diff(marks)
        share, more = found / splits, (seconds[1] - seconds[0]) / (2 * splits)
        row = " | ".join(f"{value:.2f}" for value in share.ravel())
        print(f"| {mean:g} | {effect:g} | {row} | {more:.2f} |", flush=True)


if __name__ == "__main__":
    main()
