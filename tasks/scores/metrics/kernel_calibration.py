"""The kernel calibration error of a version and its test."""

from __future__ import annotations

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import FEWEST_BLOCKS, DependentBlocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.kernel_calibration.estimators import asymptotic_test, pair_estimate
from congruence.kernels.kernel_calibration.pairs import PairTerms, pair_terms
from congruence.kernels.kernel_calibration.prediction_kernels import MaximumMeanDiscrepancy, Wasserstein
from congruence.kernels.rng import stream
from congruence.tasks.runtime.lines import step

ROWS = 50_000
REACH = 2_048


def kernel_calibration_error(
    predictive: Distribution,
    targets: Array,
    seed: int,
    blocks: DependentBlocks | None = None,
    weights: Array | None = None,
) -> dict[str, float]:
    """Return SKCE by the unbiased estimate, and the p-value of its test by random signs of the same pairs of rows.

    All pairs of up to some 2,500 rows; of more, each row is compared with some 2,500 others at random: still unbiased,
    and the power grows with the rows. Of more than 50,000 rows a random sample of 50,000. Rows that depend on each
    other have one sign for each of their ``blocks``; NaN where these are fewer than ten. Rows that count ``weights``
    (n,) have the weighted estimate, NaN where fewer than two count; the test is of rows as they are.
    """
    rows = stream(seed, "rows of the kernel calibration error").permutation(len(targets))[:ROWS]
    blocks = None if blocks is None else blocks.of_rows(rows)
    with step("kernel calibration error", 2, "parts") as advance:
        terms = _terms(predictive[rows], targets[rows])  # the quantiles of a mixture cost more than what follows
        advance(1)
        if blocks is not None and blocks.count < FEWEST_BLOCKS:
            estimate, p_value = pair_estimate(terms, reach=REACH), float("nan")
        else:
            test = asymptotic_test(terms, seed=seed, blocks=blocks, reach=REACH)
            estimate, p_value = test.estimate, test.p_value
        if weights is not None:
            counted = np.flatnonzero(weights[rows])
            estimate = float("nan")
            if len(counted) >= 2:
                estimate = pair_estimate(terms.of_rows(counted), weights=weights[rows][counted], reach=REACH)
        advance(1)
    return {"skce": estimate, "skce_p_value": p_value}


def _terms(predictive: Distribution, targets: Array) -> PairTerms:
    # Where most predictions are the same one, their median distance is 0 and any scale will do.
    scale = None if _differ(predictive) else 1.0
    return pair_terms(predictive, targets, Wasserstein(scale) if targets.ndim == 1 else MaximumMeanDiscrepancy(scale))


def _differ(predictive: Distribution) -> bool:
    moments = np.column_stack([predictive.mean(), predictive.std()])
    _, counts = np.unique(moments, axis=0, return_counts=True)
    return bool(np.sum((counts / len(moments)) ** 2) < 0.4)
