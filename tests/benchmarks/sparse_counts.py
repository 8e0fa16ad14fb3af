"""Level of the tests of sparse counts in groups whose rows depend on each other.

    python tests/benchmarks/sparse_counts.py [--groups 50] [--size 50] [--means 0.05] [--truths 0.02]
    python tests/benchmarks/sparse_counts.py --calibration [--means 0.05] [--splits 1000]

Poisson counts with a correlation of .5 within groups by a Gaussian copula. "signs": with the same null, not enlarged
for sparse counts. Power is the share where ``--truths`` are other means than those stated. ``--calibration``: level of
the test of calibration, and the share of 95 % intervals of means over points that hold the mean. The record is
dependent_rows.md.
"""

import numpy as np
import scipy.special
import scipy.stats
from dependent_rows import SETTINGS, Case
from simulations import AT, asked, head, machine, row

from congruence.kernels import RBF, Poisson, prepare
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.dependence.blocks import RowDependence, TooFewBlocksError, enlargement
from congruence.kernels.dependence.correlation import version_blocks
from congruence.kernels.resampling import ScoreStatistics
from congruence.kernels.scores import point_scores
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.scores.points import blocks_of_means


def rejected(groups: int, size: int, mean: float, truth: float, shared: bool, splits: int) -> None:
    """Print a row of the table."""
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
        test = split.congruence_test(y, law, draws=199)
        by_block = blocks.sums(y - mean) if blocks.sparse else None
        null = test.null_statistics * enlargement(blocks.count) / enlargement(blocks.count, by_block)
        signs = (1 + np.count_nonzero(null >= test.statistic * (1.0 - 1e-5))) / (len(null) + 1)
        found.append((signs <= AT, test.p_value <= AT))
    shares = np.mean(found, axis=0) if found else ("", "")
    row(f"{groups} of {size}", "shared" if shared else "own", f"{mean:g}", f"{truth:g}", refused, len(found), *shares)


def calibrated(groups: int, size: int, mean: float, shared: bool, splits: int) -> None:
    """Print a row of the table of the test of calibration and of intervals."""
    case = Case(groups * size, 0.5, shared, size)
    rng = np.random.default_rng([9, int(100 * mean), int(shared), splits])
    prepared = prepare_calibration(case.inputs(), settings=SETTINGS)
    law, support = Poisson(np.full(case.n, mean)), np.arange(200.0)
    at, mass = point_scores(Poisson(np.full(200, mean)), support), scipy.stats.poisson.pmf(support, mean)
    truth = {name: float(mass @ at[name]) for name in ("nll", "crps", "absolute_error")}
    below = scipy.stats.poisson.cdf(support, mean)
    called: list[bool] = []
    covered: list[list[bool]] = []
    refused = 0
    for _ in range(splits):
        y = np.searchsorted(below, scipy.special.ndtr(case.z(rng))).astype(np.float64)
        try:
            called.append(
                prepared.test_version(y, law, dependence=RowDependence.of(case.n, **case.named)).p_value <= AT
            )
        except TooFewBlocksError:
            refused += 1
            continue
        points = point_scores(law, y)
        columns = {name: points[name] for name in truth}
        blocks = blocks_of_means(Rows(columns, y, law, dependence=case.dependence)).blocks
        estimates = ScoreStatistics.of(columns, keys=blocks.labels).estimates()
        covered.append([estimates[name].low <= value <= estimates[name].high for name, value in truth.items()])
    shares = (np.mean(called), *np.mean(covered, axis=0))
    row(f"{groups} of {size}", "shared" if shared else "own", f"{mean:g}", refused, *shares)


def main() -> None:
    """Print the table."""
    options = {"means": [0.02, 0.05, 0.2, 0.5, 3.0], "truths": [float], "calibration": False}
    given = asked(__doc__, groups=50, size=50, splits=400, **options)
    machine()
    if given.calibration:
        head("groups", "inputs", "mean", "refused", "calibration", "NLL", "CRPS", "MAE")
        for mean in given.means:
            for shared in (True, False):
                calibrated(given.groups, given.size, mean, shared, given.splits)
        return
    head("groups", "inputs", "mean", "truth", "refused", "splits", "signs", "now")
    for mean, truth in zip(given.means, given.truths or given.means, strict=True):
        for shared in (True, False):
            rejected(given.groups, given.size, mean, truth, shared, given.splits)


if __name__ == "__main__":
    main()
