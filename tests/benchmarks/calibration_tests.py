"""The kernel calibration tests on the synthetic experiment of Widmann et al. (2021): level and power.

    python tests/benchmarks/calibration_tests.py [--repetitions 1000]

The record is calibration_tests.md.
"""

import argparse
import time

import numpy as np
from simulations import head, machine, row

from congruence.kernels import RBF
from congruence.kernels.distributions import Normal
from congruence.kernels.kernel_calibration import calibration_test

LEVEL = 0.05
KERNEL = RBF(0.5)
TESTS = {
    "asymptotic (1000 bootstrap samples)": {"method": "asymptotic"},
    "block, B = 2": {"method": "block", "block_size": 2},
    "block, B = sqrt(n)": {"method": "block"},
    "cme, 5 locations": {"method": "cme"},
    "cme, 10 locations": {"method": "cme", "locations": 10},
    "distribution-free": {"method": "distribution_free"},
    "consistency (99 draws)": {"method": "consistency", "replicates": 99},
}


def synthetic(n: int, rng: np.random.Generator, *, calibrated: bool) -> tuple[Normal, np.ndarray]:
    """P = N(c, .1^2), c ~ U(0, 1); targets from P, or from N(.1, .1^2)."""
    center = rng.uniform(size=n)
    return Normal(center, np.full(n, 0.1)), (center if calibrated else 0.1) + 0.1 * rng.normal(size=n)


def rejection_table(repetitions: int) -> None:
    """Share of rejections at level .05: type-I error and power."""
    head("test", "n", "repetitions", "type-I error", "power", "trusted", "ms a test")
    for n in (64, 256, 1024):
        for name, options in TESTS.items():
            if options["method"] == "block" and n < 100 and "block_size" not in options:
                continue
            count = repetitions if n < 1024 or options["method"] != "consistency" else max(1, repetitions // 5)
            started = time.perf_counter()
            errors, trusted = 0, True
            for seed in range(count):
                predictive, y = synthetic(n, np.random.default_rng(seed), calibrated=True)
                result = calibration_test(y, predictive, output_kernel=KERNEL, seed=seed, **options)
                errors += result.p_value <= LEVEL
                trusted &= result.trust.reliable
            seconds = (time.perf_counter() - started) / count
            power = 0
            for seed in range(50):
                predictive, y = synthetic(n, np.random.default_rng(seed), calibrated=False)
                power += calibration_test(y, predictive, output_kernel=KERNEL, seed=seed, **options).p_value <= LEVEL
            row(name, n, count, errors / count, power / 50, "yes" if trusted else "no", f"{1e3 * seconds:.0f}")


def main() -> None:
    """Print the machine and the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1000)
    arguments = parser.parse_args()
    machine()
    rejection_table(arguments.repetitions)


if __name__ == "__main__":
    main()
