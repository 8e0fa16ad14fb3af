r"""The terms of the kernel calibration error, pair by pair, without an n x n array.

.. math::  h_{ij} = k_P(p_i, p_j) \langle \Delta_i, \Delta_j \rangle, \qquad
           \Delta_i = \psi(y_i) - E_{Z \sim p_i} \psi(Z)

(Widmann et al. 2021, section 3.2, with k = k_P k_Y and k_Y(y, y') = psi(y).psi(y').) The pure functions of row
blocks run here in a loop, or anywhere through a runner, with the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, require_targets
from congruence.kernels.calibration_error.execution import SERIAL, BlockRunner
from congruence.kernels.calibration_error.prediction_kernels import PredictionKernel, Wasserstein
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.feature_maps import FeatureMap, output_features
from congruence.kernels.functions import Kernel
from congruence.kernels.target_errors import marginal_kernel, target_errors

BLOCK_ROWS = 8192  # one task: 0.6 s
_TILE = 512  # one pass: stays in cache


@dataclass(frozen=True)
class PairTerms:
    """Everything h_ij needs of n rows.

    Attributes:
        kernel: k_P on the coordinates.
        coordinates: phi(p_i), (n, e).
        delta: Delta_i, (n, r).
        features: psi, with the bound on its error.
        target_kernel: k_Y.
        target_kernel_is_fitted: whether k_Y was read off the targets.
    """

    kernel: PredictionKernel
    coordinates: Array = field(repr=False)
    delta: Array = field(repr=False)
    features: FeatureMap = field(repr=False)
    target_kernel: Kernel
    target_kernel_is_fitted: bool

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.delta)

    def rows(self, index: Any) -> tuple[Array, Array]:
        """Coordinates and Delta of some rows."""
        return self.coordinates[index], self.delta[index]

    def diagonal(self) -> Array:
        """h_ii = |Delta_i|^2, (n,)."""
        return np.asarray(np.einsum("ij,ij->i", self.delta, self.delta))


def pair_terms(
    predictive: Distribution,
    y: Any,
    prediction_kernel: PredictionKernel | None = None,
    target_kernel: Kernel | None = None,
) -> PairTerms:
    """The terms of n predictive distributions and targets y, (n,) or (n, q).

    Args:
        predictive: n predictive distributions.
        y: targets.
        prediction_kernel: k_P; Wasserstein() by default.
        target_kernel: k_Y; by default RBF with gamma = 1 / (2 var(y)), as for the conditional congruence error.

    Raises:
        InvalidInputError: fewer than two rows, lengths differ, or a value is not finite.
    """
    y = require_targets(y, "y")
    if len(y) < 2:
        raise InvalidInputError("y: the kernel calibration error compares pairs of rows; give at least two")
    kernel = marginal_kernel(y) if target_kernel is None else target_kernel
    features = output_features(kernel, y, predictive)
    delta = target_errors(y, predictive, kernel, features=features).delta
    chosen = Wasserstein() if prediction_kernel is None else prediction_kernel
    (coordinates,) = chosen.coordinates([predictive], features)
    return PairTerms(chosen.fitted(coordinates), coordinates, delta, features, kernel, target_kernel is None)


def pair_sum(kernel: PredictionKernel, left: tuple[Array, Array], right: tuple[Array, Array] | None = None) -> float:
    """Sum of h_ij over rows i of one block and j of another; without another, over all i != j of the one.

    Args:
        kernel: k_P.
        left: coordinates (b, e) and Delta (b, r) of a block.
        right: the same of another block.
    """
    coordinates, delta = left
    other_coordinates, other_delta = left if right is None else right
    totals = []
    for i in _tiles(len(delta)):
        for j in _tiles(len(other_delta)):
            if right is None and j.start > i.start:
                break
            on_diagonal = right is None and i == j
            gram = kernel(coordinates[i], other_coordinates[j])
            if on_diagonal:
                index = array_namespace(gram).arange(gram.shape[0])
                gram[index, index] = 0.0
            total = float((delta[i] * (gram @ other_delta[j])).sum())
            totals.append(total if right is not None or on_diagonal else 2.0 * total)
    return math.fsum(totals)


def blockwise_sums(kernel: PredictionKernel, rows: tuple[Array, Array], size: int) -> Array:
    """``pair_sum`` of each run of ``size`` rows: the block estimator's terms."""
    coordinates, delta = rows
    starts = range(0, len(delta), size)
    return np.array([pair_sum(kernel, (coordinates[i : i + size], delta[i : i + size])) for i in starts])


def weighted_rows(
    kernel: PredictionKernel, left: tuple[Array, Array], whole: tuple[Array, Array], weights: Array
) -> Array:
    """sum_j h_ij w_j for the rows i of a block, the term j = i included: shape (b, k) for weights (n, k)."""
    coordinates, delta = left
    all_coordinates, all_delta = whole
    result = np.zeros((len(delta), weights.shape[1]))
    for i in _tiles(len(delta)):
        for j in _tiles(len(all_delta)):
            gram = kernel(coordinates[i], all_coordinates[j])
            gram *= delta[i] @ all_delta[j].T
            result[i] += gram @ weights[j]
    return result


def gram_rows(kernel: PredictionKernel, coordinates: Array, all_coordinates: Array, columns: Array) -> Array:
    """sum_j k_P(p_i, p_j) c_j for the rows i of a block, the term j = i included: shape (b, k) for columns (n, k)."""
    result = np.zeros((len(coordinates), columns.shape[1]))
    for i in _tiles(len(coordinates)):
        for j in _tiles(len(all_coordinates)):
            result[i] += kernel(coordinates[i], all_coordinates[j]) @ columns[j]
    return result


def off_diagonal_sum(terms: PairTerms, runner: BlockRunner = SERIAL) -> float:
    """Sum of h_ij over i != j: every unordered pair of row blocks once, O(n) memory."""
    blocks = row_blocks(terms.n)
    shared = [runner.share(terms.rows(rows)) for rows in blocks]
    kernel = runner.share(terms.kernel)
    within = runner.run(pair_sum, [(kernel, block) for block in shared])
    pairs = [(kernel, shared[i], shared[j]) for i in range(len(blocks)) for j in range(i)]
    return math.fsum(within) + 2.0 * math.fsum(runner.run(pair_sum, pairs))


def weighted_sums(terms: PairTerms, weights: Array, runner: BlockRunner = SERIAL) -> Array:
    """H W for weights W (n, k), one row block a call: shape (n, k)."""
    blocks = [terms.rows(rows) for rows in row_blocks(terms.n)]
    shared = [runner.share(value) for value in (terms.kernel, terms.rows(slice(None)), weights)]
    kernel, whole, columns = shared
    return np.concatenate(runner.run(weighted_rows, [(kernel, block, whole, columns) for block in blocks]))


def gram_products(terms: PairTerms, columns: Array, runner: BlockRunner = SERIAL) -> Array:
    """K_P C for columns C (n, k), one row block a call: shape (n, k)."""
    blocks = [terms.coordinates[rows] for rows in row_blocks(terms.n)]
    kernel, whole, shared = (runner.share(value) for value in (terms.kernel, terms.coordinates, columns))
    return np.concatenate(runner.run(gram_rows, [(kernel, block, whole, shared) for block in blocks]))


def row_blocks(n: int) -> list[slice]:
    """The row blocks of the plan: one call's share of the rows."""
    return [slice(start, min(start + BLOCK_ROWS, n)) for start in range(0, n, BLOCK_ROWS)]


def _tiles(n: int) -> Iterator[slice]:
    for start in range(0, n, _TILE):
        yield slice(start, min(start + _TILE, n))
