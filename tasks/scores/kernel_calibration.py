"""The kernel calibration error of a version, with the test that can be trusted at its number of rows."""

from __future__ import annotations

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import FEWEST_BLOCKS, DependentBlocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.kernel_calibration import (
    MaximumMeanDiscrepancy,
    Wasserstein,
    asymptotic_test,
    block_estimates,
    block_test,
    pair_estimate,
    pair_terms,
)
from congruence.kernels.kernel_calibration.pairs import PairTerms
from congruence.kernels.streams import stream
from congruence.tasks.runtime.steps import step
from congruence.tasks.scores.evaluation import Metric, finite_metrics

ROWS = 50_000
DEPENDENT_ROWS = 2_500
PAIRS_ROWS = 5_000
ASYMPTOTIC_ROWS = 1_500


def kernel_calibration_error(
    predictive: Distribution,
    targets: Array,
    seed: int,
    blocks: DependentBlocks | None = None,
    weights: Array | None = None,
) -> dict[str, Metric]:
    """SKCE by the unbiased estimate on up to 5,000 rows, by blocks beyond; the test that can be trusted at that size.

    Of more than 50,000 rows a random sample of 50,000: still unbiased, at a cost that no longer grows with the split.
    Of rows that depend on each other the test is by their ``blocks``, whole ones of up to 2,500 rows.
    Rows that count ``weights`` (n,) have the weighted estimate of up to 5,000 of them; the test is of rows as they are.
    """
    if weights is not None:
        found = kernel_calibration_error(predictive, targets, seed, blocks)
        return found | finite_metrics({"skce": _weighted(predictive, targets, seed, weights)})
    if blocks is not None:
        tested = _tested_by_blocks(predictive, targets, seed, blocks)
        return kernel_calibration_error(predictive, targets, seed) | finite_metrics({"skce_p_value": tested})
    n = len(targets)
    if n > ROWS:
        rows = np.sort(stream(seed, "rows of the kernel calibration error").choice(n, ROWS, replace=False))
        predictive, targets, n = predictive[rows], targets[rows], ROWS
    with step("kernel calibration error", 3, "parts") as advance:
        terms = _terms(predictive, targets)  # the quantiles of a mixture cost more than both that follow
        advance(1)
        test = asymptotic_test(terms, seed=seed) if n <= ASYMPTOTIC_ROWS else block_test(terms, seed=seed)
        advance(1)
        if n <= ASYMPTOTIC_ROWS or (n > PAIRS_ROWS and seed == 0):
            estimate = test.estimate  # of the same pairs
        else:
            estimate = pair_estimate(terms) if n <= PAIRS_ROWS else float(np.mean(block_estimates(terms)))
        advance(1)
    return finite_metrics({"skce": estimate, "skce_p_value": test.p_value})


def _weighted(predictive: Distribution, targets: Array, seed: int, weights: Array) -> float:
    """The weighted estimate; NaN where fewer than two rows count."""
    if len(targets) > PAIRS_ROWS:
        draw = stream(seed, "rows of the weighted kernel calibration error")
        rows = np.sort(draw.choice(len(targets), PAIRS_ROWS, replace=False))
        predictive, targets, weights = predictive[rows], targets[rows], weights[rows]
    if np.count_nonzero(weights) < 2:
        return float("nan")
    return pair_estimate(_terms(predictive, targets), weights=weights)


def _tested_by_blocks(predictive: Distribution, targets: Array, seed: int, blocks: DependentBlocks) -> float:
    """The p-value of the SKCE; NaN where whole blocks of so few rows are fewer than ten."""
    if len(targets) > DEPENDENT_ROWS:
        order = stream(seed, "blocks of the kernel calibration error").permutation(blocks.count)
        sizes = np.bincount(blocks.labels, minlength=blocks.count)
        taken = np.zeros(blocks.count, dtype=bool)
        taken[order[np.cumsum(sizes[order]) <= DEPENDENT_ROWS]] = True
        rows = np.flatnonzero(taken[blocks.labels])
        predictive, targets, blocks = predictive[rows], targets[rows], blocks.of_rows(rows)
    if blocks.count < FEWEST_BLOCKS:
        return float("nan")
    return asymptotic_test(_terms(predictive, targets), seed=seed, blocks=blocks).p_value


def _terms(predictive: Distribution, targets: Array) -> PairTerms:
    # Where most predictions are the same one, their median distance is 0 and any scale will do.
    scale = None if _differ(predictive) else 1.0
    return pair_terms(predictive, targets, Wasserstein(scale) if targets.ndim == 1 else MaximumMeanDiscrepancy(scale))


def _differ(predictive: Distribution) -> bool:
    moments = np.column_stack([predictive.mean(), predictive.std()])
    _, counts = np.unique(moments, axis=0, return_counts=True)
    return bool(np.sum((counts / len(moments)) ** 2) < 0.4)
