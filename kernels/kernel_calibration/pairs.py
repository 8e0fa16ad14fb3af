r"""The terms of the kernel calibration error, pair by pair, without an n x n array.

.. math::  h_{ij} = k_P(p_i, p_j) \langle \Delta_i, \Delta_j \rangle, \qquad
           \Delta_i = \psi(y_i) - E_{Z \sim p_i} \psi(Z)

(Widmann et al. 2021, section 3.2, with k = k_P k_Y and k_Y(y, y') = psi(y).psi(y').) The pure functions of row
blocks run here in a loop, or anywhere through a runner, with the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, require_targets, row_slices
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_calibration.execution import SERIAL, BlockRunner
from congruence.kernels.kernel_calibration.prediction_kernels import PredictionKernel, Wasserstein
from congruence.kernels.kernel_calibration.target_products import TargetProduct, TargetRows, target_rows
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.mean_embeddings.residuals import output_kernel_or_marginal

BLOCK_ROWS = 8192  # one call: 0.6 s
_TILE = 512  # one pass: stays in cache

Rows: TypeAlias = tuple[Array, Array]


@dataclass(frozen=True)
class PairKernel:
    """h: a block [h_ij] from two blocks of rows (coordinates of p_i, target rows); k_P alone without a product."""

    prediction_kernel: PredictionKernel
    product: TargetProduct | None

    def __call__(self, left: Rows, right: Rows) -> Any:
        """The block of h, (n, m)."""
        block = self.prediction_kernel(left[0], right[0])
        if self.product is not None:
            block *= self.product(left[1], right[1])
        return block


@dataclass(frozen=True)
class PairTerms:
    """Everything h_ij needs of n rows.

    Attributes:
        h: the function of two row blocks.
        coordinates: phi(p_i), (n, e).
        targets: the target rows, with their features where they have any.
        output_kernel: k_Y.
        target_kernel_is_fitted: whether k_Y was read off the targets.
    """

    h: PairKernel
    coordinates: Array = field(repr=False)
    targets: TargetRows = field(repr=False)
    output_kernel: Kernel
    target_kernel_is_fitted: bool

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.coordinates)

    def rows(self, index: Any) -> Rows:
        """What h reads of some rows."""
        return self.coordinates[index], self.targets.values[index]

    def diagonal(self) -> Array:
        """h_ii, (n,); k_P(p, p) = 1."""
        return np.asarray(self.targets.product.diagonal(self.targets.values))


def pair_terms(
    predictive: Distribution,
    y: Any,
    prediction_kernel: PredictionKernel | None = None,
    output_kernel: Kernel | None = None,
) -> PairTerms:
    """The terms of n predictive distributions and targets y, (n,) or (n, q).

    Args:
        predictive: n predictive distributions.
        y: targets.
        prediction_kernel: k_P; Wasserstein() by default.
        output_kernel: k_Y; by default RBF with gamma = 1 / (2 var(y)), as for the conditional congruence error.

    Raises:
        InvalidInputError: fewer than two rows, lengths differ, or a value is not finite.
    """
    y = require_targets(y, "y", len(predictive))
    if len(y) < 2:
        raise InvalidInputError("y: the kernel calibration error compares pairs of rows; give at least two")
    kernel = output_kernel_or_marginal(output_kernel, y)
    chosen = Wasserstein() if prediction_kernel is None else prediction_kernel
    (coordinates,) = chosen.coordinates([predictive], kernel)
    targets = target_rows(predictive, y, kernel)
    h = PairKernel(chosen.fitted(coordinates), targets.product)
    return PairTerms(h, coordinates, targets, kernel, output_kernel is None)


def pair_sum(
    h: PairKernel, left: Rows, right: Rows | None = None, counts: tuple[Array | None, Array | None] = (None, None)
) -> float:
    """Sum of h_ij over rows i of one block and j of another; without another, over all i != j of the one.

    ``counts``: what the rows of both count, h_ij as the product of the two; as 1 by default.
    """
    if right is not None:
        tiles = [(i, j) for i in _tiles(left) for j in _tiles(right)]
        return math.fsum(_added(h(_cut(left, i), _cut(right, j)), counts, i, j) for i, j in tiles)
    counts, totals = (counts[0], counts[0]), []
    for i in _tiles(left):
        tile = _cut(left, i)
        block = h(tile, tile)
        index = array_namespace(block).arange(block.shape[0])
        block[index, index] = 0.0
        totals.append(_added(block, counts, i, i))
        below = [j for j in _tiles(left) if j.start < i.start]
        totals.extend(2.0 * _added(h(_cut(left, i), _cut(left, j)), counts, i, j) for j in below)
    return math.fsum(totals)


def _added(block: Any, counts: tuple[Array | None, Array | None], rows: slice, columns: slice) -> float:
    one, two = counts
    return float(block.sum() if one is None or two is None else one[rows] @ block @ two[columns])


def blockwise_sums(h: PairKernel, rows: Rows, size: int) -> Array:
    """``pair_sum`` of each run of ``size`` rows: the block estimator's terms."""
    return np.array([pair_sum(h, _cut(rows, run)) for run in row_slices(len(rows[0]), size)])


def weighted_rows(h: PairKernel, left: Rows, whole: Rows, weights: Array) -> Array:
    """sum_j h_ij w_j for the rows i of a block, the term j = i included: shape (b, k) for weights (n, k)."""
    return np.concatenate(
        [sum(h(_cut(left, i), _cut(whole, j)) @ weights[j] for j in _tiles(whole)) for i in _tiles(left)]
    )


def off_diagonal_sum(terms: PairTerms, runner: BlockRunner = SERIAL, weights: Array | None = None) -> float:
    """Sum of h_ij, or of w_i w_j h_ij, over i != j: every unordered pair of row blocks once, O(n) memory."""
    places = row_slices(terms.n, BLOCK_ROWS)
    shared = [runner.share(terms.rows(rows)) for rows in places]
    counts = [None if weights is None else weights[rows] for rows in places]
    within = runner.run(pair_sum, [(terms.h, shared[i], None, (counts[i], None)) for i in range(len(shared))])
    pairs = [(i, j) for i in range(len(shared)) for j in range(i)]
    between = runner.run(pair_sum, [(terms.h, shared[i], shared[j], (counts[i], counts[j])) for i, j in pairs])
    return math.fsum(within) + 2.0 * math.fsum(between)


def weighted_sums(terms: PairTerms, weights: Array, runner: BlockRunner = SERIAL) -> Array:
    """H W for weights W (n, k), one row block a call: shape (n, k)."""
    whole, columns = runner.share(terms.rows(slice(None))), runner.share(weights)
    calls = [(terms.h, terms.rows(rows), whole, columns) for rows in row_slices(terms.n, BLOCK_ROWS)]
    return np.concatenate(runner.run(weighted_rows, calls))


def gram_products(terms: PairTerms, columns: Array, runner: BlockRunner = SERIAL) -> Array:
    """K_P C for columns C (n, k): shape (n, k)."""
    return weighted_sums(replace(terms, h=replace(terms.h, product=None)), columns, runner)


def _tiles(rows: Rows) -> list[slice]:
    return row_slices(len(rows[0]), _TILE)


def _cut(rows: Rows, tile: slice) -> Rows:
    return rows[0][tile], rows[1][tile]
