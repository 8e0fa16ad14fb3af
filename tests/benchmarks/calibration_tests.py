"""The calibration tests on the synthetic experiment of Widmann et al. (2021), and the cost of the estimators.

    python tests/benchmarks/calibration_tests.py [--repetitions 1000] [--rows 100000]

Prints the tables of calibration_tests.md.
"""

import argparse
import os
import platform
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import scipy

from congruence.kernels import RBF
from congruence.kernels.distributions import Normal
from congruence.kernels.kernel_calibration import calibration_test, squared_kernel_calibration_error

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


def least_squares(rng: np.random.Generator) -> tuple[Normal, np.ndarray]:
    """A line through y = sin(pi x) + |1 + x| eps, eps ~ N(0, .15^2): 100 rows to fit, 50 to test."""
    x = rng.uniform(-1, 1, size=150)
    y = np.sin(np.pi * x) + np.abs(1 + x) * 0.15 * rng.normal(size=150)
    slope, intercept = np.polyfit(x[:100], y[:100], 1)
    spread = np.std(y[:100] - intercept - slope * x[:100], ddof=1)
    return Normal(intercept + slope * x[100:], np.full(50, spread)), y[100:]


def rejection_table(repetitions: int) -> None:
    """Share of rejections at level .05: type-I error and power."""
    print("| test | n | repetitions | type-I error | power | trusted | ms a test |\n|---|---|---|---|---|---|---|")
    for n in (64, 256, 1024):
        for name, options in TESTS.items():
            if options["method"] == "block" and n < 100 and "block_size" not in options:
                continue
            count = repetitions if n < 1024 or options["method"] != "consistency" else repetitions // 5
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
            shown = "yes" if trusted else "no"
            print(
                f"| {name} | {n} | {count} | {errors / count:.3f} | {power / 50:.2f} | {shown} | {1e3 * seconds:.0f} |",
                flush=True,
            )


def least_squares_table(repetitions: int) -> None:
    """How often the illustration's model is rejected, over draws of its data."""
    print("\n| test | rejections of the least-squares model (n = 50) |\n|---|---|")
    for name in ("asymptotic (1000 bootstrap samples)", "consistency (99 draws)"):
        rejected = 0
        for seed in range(repetitions):
            predictive, y = least_squares(np.random.default_rng(seed))
            rejected += calibration_test(y, predictive, output_kernel=KERNEL, seed=seed, **TESTS[name]).p_value < LEVEL
        print(f"| {name} | {rejected / repetitions:.3f} of {repetitions} |", flush=True)


def cost_table(rows: int) -> None:
    """Seconds of the unbiased estimator in one process and on two Dask workers, and of a test."""
    print("\n| what | n | seconds |\n|---|---|---|")
    for n in (10_000, rows):
        predictive, y = synthetic(n, np.random.default_rng(0), calibrated=True)
        started = time.perf_counter()
        squared_kernel_calibration_error(y, predictive, output_kernel=KERNEL)
        print(f"| unbiased, one process | {n} | {time.perf_counter() - started:.1f} |", flush=True)
        started = time.perf_counter()
        squared_kernel_calibration_error(y, predictive, output_kernel=KERNEL, estimator="block")
        print(f"| block, B = sqrt(n) | {n} | {time.perf_counter() - started:.2f} |", flush=True)
    predictive, y = synthetic(10_000, np.random.default_rng(0), calibrated=True)
    started = time.perf_counter()
    calibration_test(y, predictive, output_kernel=KERNEL)
    print(f"| asymptotic test, 1000 bootstrap samples | 10000 | {time.perf_counter() - started:.1f} |")


def main() -> None:
    """Print the machine and the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=100_000)
    arguments = parser.parse_args()
    print(
        f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}, "
        f"{os.cpu_count()} cores, one BLAS thread\n"
    )
    rejection_table(arguments.repetitions)
    least_squares_table(min(arguments.repetitions, 200))
    cost_table(arguments.rows)


if __name__ == "__main__":
    main()
