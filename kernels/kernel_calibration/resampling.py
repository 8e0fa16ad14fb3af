"""The two resampling laws of the unbiased estimator under H0, in O(n) memory per replicate.

Both turn replicates into columns, so that one pass over the pairs serves many of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.kernel_calibration.execution import SERIAL, BlockRunner
from congruence.kernels.kernel_calibration.pairs import PairTerms, gram_products, off_diagonal_sum, weighted_sums
from congruence.kernels.streams import stream

_COLUMN_ENTRIES = 20_000_000  # 160 MB of columns at a time


def bootstrap_statistics(terms: PairTerms, replicates: int, seed: int, runner: BlockRunner = SERIAL) -> Array:
    """The U-statistic of h~_ij = h_ij - mean_k h_ik - mean_k h_kj + mean_kl h_kl at resampled rows, (replicates,).

    With counts w of the resampled rows: ((w - 1)'H(w - 1) - sum_i w_i h~_ii) / (n (n - 1)), since w sums to n
    (Arcones and Gine 1992; Widmann et al. 2021, section 4).
    """
    n = terms.n
    rng = stream(seed, "bootstrap of pairs")
    row_means = weighted_sums(terms, np.full((n, 1), 1.0 / n), runner)[:, 0]
    centred_diagonal = terms.diagonal() - 2.0 * row_means + row_means.mean()
    statistics = []
    for count in _batches(replicates, n):
        counts = _resampling_counts(n, count, rng)
        centred = counts - 1.0
        quadratic = np.einsum("ib,ib->b", centred, weighted_sums(terms, centred, runner))
        statistics.append((quadratic - centred_diagonal @ counts) / (n * (n - 1)))
    return np.concatenate(statistics)


def consistency_statistics(
    terms: PairTerms, predictive: Distribution, y: Array, replicates: int, seed: int, runner: BlockRunner = SERIAL
) -> Array:
    """The unbiased estimate for targets drawn from the predictions, (replicates,)."""
    n, features = terms.n, terms.targets.features
    rng = stream(seed, "consistency resampling")
    if features is None:
        draws = predictive.sample(replicates, seed=rng)
        redrawn = (
            replace(terms, targets=terms.targets.redrawn(predictive, drawn, terms.output_kernel))
            for drawn in np.moveaxis(draws, 1, 0)
        )
        return np.array([off_diagonal_sum(again, runner) / (n * (n - 1)) for again in redrawn])
    kernel_mean = features(y) - terms.targets.values
    statistics = []
    for count in _batches(replicates, n * features.rank):
        draws = predictive.sample(count, seed=rng)
        delta = np.stack([features(draws[:, replicate]) - kernel_mean for replicate in range(count)], axis=1)
        columns = delta.reshape(n, -1)
        products = gram_products(terms, columns, runner) - columns  # k_P(p, p) = 1: leaves out i = j
        statistics.append(np.einsum("ibr,ibr->b", delta, products.reshape(delta.shape)) / (n * (n - 1)))
    return np.concatenate(statistics)


def signed_sums(
    terms: PairTerms, blocks: DependentBlocks, replicates: int, seed: int, runner: BlockRunner = SERIAL
) -> Array:
    """s'Hs for one sign a block of rows, (1 + replicates,): as they are first, then drawn."""
    sums, first = [np.array([float(np.sum(weighted_sums(terms, np.ones((terms.n, 1)), runner)))])], 0
    for count in _batches(replicates, terms.n):
        signs = blocks.signs(count, seed, first)[blocks.labels]
        sums.append(np.einsum("ib,ib->b", signs, weighted_sums(terms, signs, runner)))
        first += count
    return np.concatenate(sums)


def _resampling_counts(n: int, replicates: int, rng: np.random.Generator) -> Array:
    """How often each row is drawn when n rows are drawn with replacement, (n, replicates)."""
    drawn = rng.integers(n, size=(replicates, n))
    drawn += n * np.arange(replicates)[:, None]
    return np.asarray(np.bincount(drawn.ravel(), minlength=n * replicates).reshape(replicates, n).T.astype(np.float64))


def _batches(replicates: int, entries: int) -> list[int]:
    size = max(1, min(replicates, _COLUMN_ENTRIES // entries))
    return [min(size, replicates - start) for start in range(0, replicates, size)]
