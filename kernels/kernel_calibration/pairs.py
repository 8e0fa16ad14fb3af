r"""The terms of the kernel calibration error, pair by pair, without an n x n array.

.. math::  h_{ij} = k_P(p_i, p_j) \langle \Delta_i, \Delta_j \rangle, \qquad
           \Delta_i = \psi(y_i) - E_{Z \sim p_i} \psi(Z)

(Widmann et al. 2021, section 3.2, with k = k_P k_Y and k_Y(y, y') = psi(y).psi(y').)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, require_targets, row_slices
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.distributions.base import require_dimension
from congruence.kernels.engine.targets import output_kernel_or_marginal, target_errors
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.features import Density, few_counts, rbf_gammas
from congruence.kernels.kernel_calibration.line_products import line_products
from congruence.kernels.kernel_calibration.prediction_kernels import PredictionKernel, Wasserstein
from congruence.kernels.kernel_functions import Kernel, Sum

TILE = 512
"""Rows of a tile of pairs: one pass over it stays in cache."""
EXACT_ROWS = 4096
"""Rows up to which products under Laplacian and Matern kernels are exact and held whole (134 MB); features beyond."""
_ENTRIES = 8_000_000  # of a temporary array


@dataclass(frozen=True)
class PairTerms:
    """Everything that h_ij needs of n rows.

    Attributes:
        prediction_kernel: k_P, fitted to the coordinates.
        coordinates: phi(p_i), (n, e).
        targets: Delta_i in features of k_Y, (n, r); of vectors of independent normals (y, loc, scale), (n, 3q).
        gammas: of the sum of RBF kernels under which ``targets`` are of normals; None where they are features.
        products: [<Delta_i, Delta_j>] where features would miss some of it, (n, n); ``targets`` are then its rows (n,).
    """

    prediction_kernel: PredictionKernel
    coordinates: Array = field(repr=False)
    targets: Array = field(repr=False)
    gammas: Array | None = None
    products: Array | None = field(default=None, repr=False)

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.coordinates)

    def of_rows(self, rows: Any) -> PairTerms:
        """Return the terms of some rows."""
        return replace(self, coordinates=self.coordinates[rows], targets=self.targets[rows])

    def h(self, i: Any, j: Any) -> Array:
        """Return the block [h_ij] of two choices of rows."""
        block = self.prediction_kernel(self.coordinates[i], self.coordinates[j])
        if self.products is not None:
            return np.asarray(block * self.products[np.ix_(self.targets[i], self.targets[j])])
        if self.gammas is None:
            return np.asarray(block * (self.targets[i] @ self.targets[j].T))
        return np.asarray(block * _normal_products(self.targets[i], self.targets[j], self.gammas))

    def diagonal(self) -> Array:
        """Return h_ii, (n,); k_P(p, p) = 1."""
        if self.products is not None:
            return np.asarray(self.products[self.targets, self.targets])
        if self.gammas is None:
            return np.asarray(np.einsum("ij,ij->i", self.targets, self.targets))
        tiles = [self.targets[rows] for rows in row_slices(self.n, TILE)]
        return np.concatenate([np.diag(_normal_products(tile, tile, self.gammas)) for tile in tiles])


def pair_terms(
    predictive: Distribution,
    y: Any,
    prediction_kernel: PredictionKernel | None = None,
    output_kernel: Kernel | None = None,
) -> PairTerms:
    """Return the terms of n predictive distributions and targets y, (n,) or (n, q).

    Args:
        predictive: n predictive distributions.
        y: targets.
        prediction_kernel: k_P; Wasserstein() by default.
        output_kernel: k_Y; by default RBF with gamma = 1 / (2 var(y)), as for the conditional congruence error.

    Raises:
        InvalidInputError: fewer than two rows, lengths or numbers of targets differ, or a value is not finite.
    """
    y = require_targets(y, "y", len(predictive))
    if len(y) < 2:
        raise InvalidInputError("y: the kernel calibration error compares pairs of rows; give at least two")
    require_dimension(predictive, y)
    kernel = output_kernel_or_marginal(output_kernel, y)
    chosen = Wasserstein() if prediction_kernel is None else prediction_kernel
    (coordinates,) = chosen.coordinates([predictive], kernel)
    fitted, gammas = chosen.fitted(coordinates), rbf_gammas(kernel)
    if y.ndim == 2 and gammas is not None and predictive.whitened(y) is not None:
        # No short list of features is exact for vectors; the Gaussian integrals are.
        return PairTerms(fitted, coordinates, np.column_stack([y, predictive.mean(), predictive.std()]), gammas)
    if y.ndim == 1 and len(y) <= EXACT_ROWS and (products := _rough_products(y, predictive, kernel)) is not None:
        return PairTerms(fitted, coordinates, np.arange(len(y)), products=products)
    return PairTerms(fitted, coordinates, target_errors(y, predictive, kernel, measured=False).delta)


def _rough_products(y: Array, predictive: Distribution, kernel: Kernel) -> Array | None:
    """Return [<Delta_i, Delta_j>], (n, n), under Laplacian and Matern kernels, which features do not meet."""
    spectra = [(term, Density.of(term)) for term in kernel.terms]
    rough = [density for _, density in spectra if density is not None and density.is_rough]
    if not rough or few_counts(y, predictive) is not None:
        return None
    if predictive.draws is not None:
        return _products_of_draws(y, predictive, predictive.draws, kernel)
    products = np.sum([line_products(y, predictive, density) for density in rough], axis=0)
    smooth = tuple(term for term, density in spectra if density is None or not density.is_rough)
    if smooth:
        delta = target_errors(y, predictive, Sum(smooth), measured=False).delta
        products += delta @ delta.T
    return np.asarray(products)


def _products_of_draws(y: Array, predictive: Distribution, draws: Array, kernel: Kernel) -> Array:
    """Return [<Delta_i, Delta_j>], (n, n), as sums over draws."""
    members = draws.shape[1]
    at_targets = predictive.kernel_expectation(kernel, y)
    products = -at_targets - at_targets.T
    products += Samples(y[:, None]).kernel_expectation(kernel, y)
    for rows in row_slices(len(y), max(1, _ENTRIES // (len(y) * members))):
        values = predictive.kernel_expectation(kernel, draws[rows].ravel())
        products[:, rows] += values.reshape(len(y), -1, members).mean(axis=2)
    return products


def _normal_products(a: Array, b: Array, gammas: Array) -> Array:
    """Return <Delta_i, Delta_j> of rows (y, loc, scale), (n, m), in closed form (Widmann et al. 2021, appendix D.1)."""
    y, loc, scale = np.split(a, 3, axis=1)
    other_y, other_loc, other_scale = np.split(b, 3, axis=1)
    none, variance, other_none, other = 0.0 * scale, scale**2, 0.0 * other_scale, other_scale**2
    products = np.zeros((len(a), len(b)))
    for gamma in gammas:
        products += _gaussian_mean(y, none, other_y, other_none, gamma)
        products -= _gaussian_mean(loc, variance, other_y, other_none, gamma)
        products -= _gaussian_mean(y, none, other_loc, other, gamma)
        products += _gaussian_mean(loc, variance, other_loc, other, gamma)
    return products


def _gaussian_mean(a: Array, variance: Array, b: Array, other: Array, gamma: float) -> Array:
    """Return E exp(-gamma |Z - Z'|^2) for independent normals with means a (n, q), b (m, q), (n, m)."""
    exponent = np.zeros((len(a), len(b)))
    for k in range(a.shape[1]):
        widened = 1.0 + 2.0 * gamma * (variance[:, k, None] + other[None, :, k])
        exponent -= gamma * (a[:, k, None] - b[None, :, k]) ** 2 / widened + 0.5 * np.log(widened)
    return np.exp(exponent)


def tile_pairs(n: int, reach: int | None = None) -> Iterator[tuple[slice, slice]]:
    """Yield unordered pairs of tiles of n rows, each tile with itself among them.

    All pairs, or, where there are more than some ``reach`` rows, those of each row with about so many others, which are
    near it around a circle.
    """
    tiles = row_slices(n, TILE)
    farthest = len(tiles) if reach is None else max(1, -(-reach // (2 * TILE)))
    for i, one in enumerate(tiles):
        for j in range(i + 1):
            if min(i - j, len(tiles) - (i - j)) <= farthest:
                yield one, tiles[j]


def quadratic_forms(terms: PairTerms, columns: Array, reach: int | None = None) -> tuple[Array, Array]:
    """Return sums of h_ij c_i c_j over pairs i != j, (k,), for columns c (n, k), and those of the c_i c_j themselves.

    Each unordered pair of ``tile_pairs`` is met once and counts twice.
    """
    sums, counts = np.zeros(columns.shape[1]), np.zeros(columns.shape[1])
    for i, j in tile_pairs(terms.n, reach):
        block, one, two = terms.h(i, j), columns[i], columns[j]
        counted = one.sum(axis=0) * two.sum(axis=0)
        twice = 2.0
        if i == j:
            np.fill_diagonal(block, 0.0)
            counted, twice = counted - (one**2).sum(axis=0), 1.0
        sums += twice * np.einsum("ik,ik->k", one, block @ two)
        counts += twice * counted
    return sums, counts
