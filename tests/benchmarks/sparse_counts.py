"""Level of the congruence test of sparse counts in groups whose rows depend on each other.

    python tests/benchmarks/sparse_counts.py [--groups 50] [--size 50] [--means 0.05] [--truths 0.02]

Poisson counts with a correlation of .5 within groups by a Gaussian copula. "signs": with the same null, not enlarged
for sparse counts. Power is the share where ``--truths`` are other means than those stated. The record is
dependent_rows.md.
"""

from __future__ import annotations

import argparse

import numpy as np
import scipy.special
import scipy.stats
from dependent_rows import AT, Case

from congruence.kernels import RBF, Poisson, prepare
from congruence.kernels.dependence.blocks import TooFewBlocksError, enlargement
from congruence.kernels.dependence.scores import version_blocks


def rejected(groups: int, size: int, mean: float, truth: float, shared: bool, splits: int) -> str:
    """A row of the table."""
    case = Case(groups * size, 0.5, shared, size)
    rng = np.random.default_rng([case.n, size, int(100 * mean), 5, int(shared)])
    split = prepare(case.inputs(), input_kernel=RBF(0.5), **case.named)  # type: ignore[arg-type]
    law, below = Poisson(np.full(case.n, mean)), scipy.stats.poisson.cdf(np.arange(200), truth)
    found: list[tuple[bool, bool]] = []
    refused = 0
    while len(found) < splits and refused < splits:
        y = np.searchsorted(below, scipy.special.ndtr(case.z(rng))).astype(np.float64)
        try:
            blocks = version_blocks(split.dependence, y, law)
        except TooFewBlocksError:
            refused += 1
            continue
        assert blocks is not None
        test = split.congruence_test(y, law, draws=199)
        by_block = blocks.sums(y - mean)
        null = test.null_statistics * enlargement(blocks.count) / enlargement(blocks.count, by_block)
        signs = (1 + np.count_nonzero(null >= test.statistic * (1.0 - 1e-5))) / (len(null) + 1)
        found.append((signs <= AT, test.p_value <= AT))
    shares = " | ".join("" if not found else f"{share:.3f}" for share in np.mean(found or [[np.nan] * 2], axis=0))
    inputs = "shared" if shared else "own"
    return f"| {groups} of {size} | {inputs} | {mean:g} | {truth:g} | {refused} | {len(found)} | {shares} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--size", type=int, default=50)
    parser.add_argument("--means", type=float, nargs="+", default=[0.02, 0.05, 0.2, 0.5, 3.0])
    parser.add_argument("--truths", type=float, nargs="+", help="by default the means")
    parser.add_argument("--splits", type=int, default=400)
    asked = parser.parse_args()
    print(
        "| groups | inputs | mean | truth | refused | splits | signs | now |\n|---|---|---:|---:|---:|---:|---:|---:|"
    )
    for mean, truth in zip(asked.means, asked.truths or asked.means, strict=True):
        for shared in (True, False):
            print(rejected(asked.groups, asked.size, mean, truth, shared, asked.splits), flush=True)


if __name__ == "__main__":
    main()
