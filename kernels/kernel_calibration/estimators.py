r"""Estimators of the squared kernel calibration error (SKCE) and the unnormalized calibration mean embedding (UCME).

SKCE is the squared maximum mean discrepancy between (P_X, Y) and (P_X, Z) with Z ~ P_X: zero if and only if the model
is calibrated, P(Y | P_X) = P_X (Widmann et al. 2021, definition 3). It conditions on the prediction; the conditional
congruence error conditions on the input.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_calibration.execution import SERIAL, BlockRunner
from congruence.kernels.kernel_calibration.pairs import (
    BLOCK_ROWS,
    PairTerms,
    blockwise_sums,
    off_diagonal_sum,
    pair_terms,
)
from congruence.kernels.kernel_calibration.prediction_kernels import PredictionKernel, Wasserstein
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.mean_embeddings.residuals import output_kernel_or_marginal
from congruence.kernels.streams import stream
from congruence.kernels.weights import require_weights

Estimator: TypeAlias = Literal["unbiased", "biased", "block"]


def squared_kernel_calibration_error(
    y: Any,
    predictive: Distribution,
    *,
    prediction_kernel: PredictionKernel | None = None,
    output_kernel: Kernel | None = None,
    estimator: Estimator = "unbiased",
    block_size: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    runner: BlockRunner = SERIAL,
    weights: Any | None = None,
) -> float:
    """SKCE of n predictive distributions against targets y, (n,) or (n, q), in units of k_P k_Y.

    - "unbiased": mean of h_ij over i != j; may be negative. O(n^2) time, O(n) memory.
    - "biased": mean of h_ij over all i, j; never negative.
    - "block": mean of the unbiased estimator over floor(n / block_size) blocks, dealt at random unless
      ``shuffle`` is False. O(n block_size).

    Pairs are exact to rounding, but for tens of thousands of laws that bend at places of their own (quantiles, uniform
    laws) with a Laplacian or Matern k_Y: of 50,000 laws of nine quantiles single pairs are off by up to 6e-5, by either
    sign, and means over all pairs by at most 3e-9.

    Args:
        predictive: n predictive distributions.
        y: targets.
        prediction_kernel: k_P; Wasserstein() = exp(-W_2) by default.
        output_kernel: k_Y; by default RBF with gamma = 1 / (2 var(y)).
        estimator: which of the three.
        block_size: rows of a block, 2 to n; floor(sqrt(n)) by default. Only for "block".
        shuffle: False makes blocks of consecutive rows, as other software does. Only for "block"; rows in an order that
            means something (time, a sorted column) then make blocks that are not alike.
        seed: of the dealing of rows to blocks.
        runner: where the pairs are computed; in this process by default.
        weights: what each row counts, (n,): h_ij counts w_i w_j. Not for "block".

    Raises:
        InvalidInputError: fewer than two rows, lengths differ, not finite, an unknown estimator or block size, or
            weights that are negative, missing or all 0.
    """
    if estimator not in ("unbiased", "biased", "block"):
        raise InvalidInputError(f"estimator: {estimator!r} is unknown; choose 'unbiased', 'biased' or 'block'")
    if block_size is not None and estimator != "block":
        raise InvalidInputError(f"block_size: {block_size} has no meaning for estimator={estimator!r}; use 'block'")
    if not shuffle and estimator != "block":
        raise InvalidInputError(f"shuffle: False has no meaning for estimator={estimator!r}; use 'block'")
    if weights is not None and estimator == "block":
        raise InvalidInputError("weights: have no meaning for estimator='block'; use 'unbiased' or 'biased'")
    terms = pair_terms(predictive, y, prediction_kernel, output_kernel)
    if estimator == "block":
        return float(np.mean(block_estimates(terms, block_size, seed, runner, shuffle=shuffle)))
    counts = None if weights is None else require_weights(weights, terms.n)
    return pair_estimate(terms, runner, weights=counts, biased=estimator == "biased")


def pair_estimate(
    terms: PairTerms, runner: BlockRunner = SERIAL, *, weights: Array | None = None, biased: bool = False
) -> float:
    """Mean of h_ij over i != j (Widmann et al. 2021, lemma 2 with one block), or ``biased`` over all i, j (lemma 1).

    Under ``weights`` (n,) a pair counts w_i w_j: over all pairs, weight 2 is then the row twice.

    Raises:
        InvalidInputError: no pair counts.
    """
    counts = np.ones(terms.n) if weights is None else weights
    total, count, of_rows = off_diagonal_sum(terms, runner, weights), float(np.sum(counts)) ** 2, counts**2
    if biased:  # a squared norm: rounding alone could leave it below zero
        return max(total + float(np.sum(of_rows * terms.diagonal())), 0.0) / count
    if np.count_nonzero(counts) < 2:
        raise InvalidInputError("weights: fewer than two rows count; the error compares pairs of them")
    return total / (count - float(np.sum(of_rows)))


def block_estimates(
    terms: PairTerms,
    block_size: int | None = None,
    seed: int = 0,
    runner: BlockRunner = SERIAL,
    *,
    shuffle: bool = True,
) -> Array:
    """The unbiased estimate of each of floor(n / block_size) blocks (lemma 2); the rows left over are not used.

    Rows are dealt to blocks at random; ``shuffle=False`` takes them in their order.

    Raises:
        InvalidInputError: a block size that is not a whole number from 2 to n.
    """
    size = default_block_size(terms.n) if block_size is None else block_size
    if int(size) != size or not 2 <= size <= terms.n:
        raise InvalidInputError(f"block_size: {size}, expected a whole number from 2 to the {terms.n} rows")
    size = int(size)
    rows = stream(seed, "blocks of rows").permutation(terms.n) if shuffle else np.arange(terms.n)
    order = rows[: terms.n // size * size]
    per_call = max(1, BLOCK_ROWS // size) * size
    calls = [(terms.h, terms.rows(order[start : start + per_call]), size) for start in range(0, len(order), per_call)]
    sums = np.concatenate(runner.run(blockwise_sums, calls))
    return sums / (size * (size - 1))


def default_block_size(n: int) -> int:
    """floor(sqrt(n)), at least 2: blocks and their number grow together."""
    return max(2, int(np.sqrt(n)))


def unnormalized_calibration_mean_embedding(
    y: Any,
    predictive: Distribution,
    test_y: Any,
    test_predictive: Distribution,
    *,
    prediction_kernel: PredictionKernel | None = None,
    output_kernel: Kernel | None = None,
) -> float:
    """UCME^2 = mean over test locations t_j of (mean over i of k((p_i, y_i), t_j) - E_Z k((p_i, Z), t_j))^2.

    Widmann et al. 2021, appendix C. O(nm) time for n rows and m test locations (test_predictive_j, test_y_j), which
    must not be chosen by looking at the rows.

    Raises:
        InvalidInputError: lengths differ, or a value is not finite.
    """
    mean = witness_values(predictive, y, test_predictive, test_y, prediction_kernel, output_kernel).mean(axis=0)
    return float(np.mean(mean**2))


def witness_values(
    predictive: Distribution,
    y: Any,
    test_predictive: Distribution,
    test_y: Any,
    prediction_kernel: PredictionKernel | None = None,
    output_kernel: Kernel | None = None,
) -> Array:
    """k_P(p_i, p'_j) (k_Y(y_i, y'_j) - E_Z k_Y(Z, y'_j)), (n, m): mean zero over i if calibrated."""
    y = require_targets(y, "y", len(predictive))
    test_y = require_targets(test_y, "test_y", len(test_predictive))
    if y.ndim != test_y.ndim or y.shape[1:] != test_y.shape[1:]:
        raise InvalidInputError(f"test_y: shape {test_y.shape} does not match y of shape {y.shape}")
    kernel = output_kernel_or_marginal(output_kernel, y)
    chosen = Wasserstein() if prediction_kernel is None else prediction_kernel
    coordinates, locations = chosen.coordinates([predictive, test_predictive], kernel)
    values = kernel(y, test_y) - predictive.kernel_expectation(kernel, test_y)
    values *= chosen.fitted(coordinates)(coordinates, locations)
    return np.asarray(values)
