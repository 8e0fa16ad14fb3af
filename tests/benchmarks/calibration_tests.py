"""The kernel calibration test of an evaluation: level and power by size, and whether it has a cliff.

    python tests/benchmarks/calibration_tests.py [--sizes 64 250] [--repetitions 300]

Repetitions are of true predictions; of wrong ones there are 60.
The record is calibration_tests.md; the paper's own experiment is in docs/papers/kernel_calibration.py.
"""

from collections.abc import Callable, Sequence

import numpy as np
from simulations import AT, asked, head, machine, row, share

from congruence.kernels.distributions import Distribution, Normal, Poisson
from congruence.tasks.scores.metrics import metric

Rows = tuple[Distribution, np.ndarray]
POWER = 60


def normals(n: int, rng: np.random.Generator, *, factor: float = 1.0) -> Rows:
    """P = N(c, 1), c ~ N(0, 1); targets of ``factor`` times that spread."""
    center = rng.normal(size=n)
    return Normal(center, np.ones(n)), center + factor * rng.normal(size=n)


def counts(n: int, rng: np.random.Generator, *, factor: float = 1.0) -> Rows:
    """Poisson rates with a mean of .2, of which the targets' are ``factor`` times as large."""
    rate = rng.gamma(2.0, 0.1, n)
    return Poisson(rate), rng.poisson(factor * rate).astype(float)


def rejected(draw: Callable[..., Rows], n: int, repetitions: int, p_value: Callable[..., float], **how: object) -> str:
    """The share of data sets that are rejected at 5 %."""
    sets = ((seed, *draw(n, np.random.default_rng([n, seed]), **how)) for seed in range(repetitions))
    return share(np.array([p_value(y, predicted, seed) <= AT for seed, predicted, y in sets]))


def evaluations(sizes: Sequence[int], repetitions: int) -> None:
    """What an evaluation states, by the number of rows."""

    def p_value(y: np.ndarray, predicted: Distribution, seed: int) -> float:
        return metric.Rows({}, y, predicted, seed=seed).kernel_calibration["skce_p_value"]

    head("n", "normals, true", "spread 1.08", "spread 1.15", "counts, true", "rates 1.3 times as large")
    for n in sizes:
        row(
            f"{n:,}",
            rejected(normals, n, repetitions, p_value),
            rejected(normals, n, POWER, p_value, factor=1.08),
            rejected(normals, n, POWER, p_value, factor=1.15),
            rejected(counts, n, repetitions, p_value),
            rejected(counts, n, POWER, p_value, factor=1.3),
        )


def main() -> None:
    """Print the machine and the tables."""
    given = asked(__doc__, sizes=[64, 250, 1000, 1500, 1501, 2000, 2600, 4000], repetitions=300)
    machine()
    evaluations(given.sizes, given.repetitions)


if __name__ == "__main__":
    main()
