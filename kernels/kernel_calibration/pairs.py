r"""The terms of the kernel calibration error, pair by pair, without an n x n array.

.. math::  h_{ij} = k_P(p_i, p_j) \langle \Delta_i, \Delta_j \rangle, \qquad
           \Delta_i = \psi(y_i) - E_{Z \sim p_i} \psi(Z)

(Widmann et al. 2021, section 3.2, with k = k_P k_Y and k_Y(y, y') = psi(y).psi(y').)

Products under Laplacian and Matern output kernels of one target are exact. Of mass 0, the measure mu_i = delta(y_i) -
P_i has an error D_i with

.. math::  \langle D_i, D_j \rangle = c^2 \int g_i(u) g_j(u) \, du, \qquad
           g_i(u) = \int_{t > u} (t - u)^{p-1} e^{-a (t - u)} \, \mu_i(dt), \quad p = \nu + 1/2,

since exp(-a r) times its polynomial is the correlation of that function with itself. g_i is made of the cdf of mu_i,
1[y_i <= u] - F_i(u), on cells of a line that it is smooth in, and the integrals are Gauss-Legendre's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.linalg import get_blas_funcs

from congruence.kernels.arrays import Array, require_targets, row_slices
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.distributions.base import require_dimension, target_range
from congruence.kernels.distributions.expectations import gaussian_expectation
from congruence.kernels.engine.plan import output_kernel_or_marginal
from congruence.kernels.engine.targets import Density, few_counts, in_cells, target_errors
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_calibration.prediction_kernels import PredictionKernel, Wasserstein
from congruence.kernels.kernel_functions import RBF, Kernel, Sum
from congruence.kernels.pit import cell_steps

ORDER = 12  # nodes of a cell
_TAIL = 1e-13  # of every prediction on each side of the line
_TOLERANCE = 1e-12
_REACH, _WIDEST = 50.0, 2.0  # in units of 1 / a: where a jump is forgotten, and cells that are nearer to one
_FIRST_CELLS, _DEEPEST = 16, 60
_ENTRIES = 8_000_000  # of a temporary array

_ROOTS, _WEIGHTS = np.polynomial.legendre.leggauss(ORDER)
NODES, WEIGHTS = (1.0 + _ROOTS) / 2.0, _WEIGHTS / 2.0


def line_products(y: Array, predictive: Distribution, term: Density) -> Array:
    """Returns [<D_i, D_j>], (n, n), for targets y (n,) under one Laplacian or Matern kernel."""
    edges = line_cells(y, predictive, term.scale)
    power = round(term.nu + 0.5)
    norm = (2.0 * term.scale) ** (2 * power - 1) / math.factorial(2 * power - 2) * math.factorial(power - 1) ** 2
    products, right = np.zeros((len(y), len(y))), np.zeros((len(y), power))
    at_once = max(1, _ENTRIES // (ORDER * len(y)))
    for last in range(len(edges) - 1, 0, -at_once):  # g is an integral from the right
        some = edges[max(last - at_once, 0) : last + 1]
        widths = np.diff(some)
        places = some[:-1, None] + widths[:, None] * NODES
        cdf = predictive.cdf(places.ravel()[None, :]).reshape(len(y), *places.shape)
        values: Array = np.asarray((y[:, None, None] <= places) - cdf)  # the cdf of each mu_i at the nodes
        solved = np.linalg.inv(np.eye(ORDER) + term.scale * widths[:, None, None] * _FROM_NODE)
        for cell in range(len(widths) - 1, -1, -1):
            values[:, cell] = _passed(values[:, cell], right, widths[cell], solved[cell], term.scale)
        values *= np.sqrt(norm * widths[:, None] * WEIGHTS)
        flat = values.reshape(len(y), -1)
        products += flat @ flat.T
    return products


def _passed(cdf: Array, right: Array, width: float, solved: Array, rate: float) -> Array:
    """Returns g (n, ORDER) at the nodes of a cell; moves its integrals ``right`` (n, p) from the end to the start.

    x(u), the integral of f(t) exp(-a (t - u)) over t > u, has x' = a x - f: collocation, stiff cells too.
    """
    values = cdf
    for stage in range(right.shape[1]):
        found = (right[:, stage, None] + width * values @ _FROM_NODE.T) @ solved.T
        right[:, stage] += width * (values - rate * found) @ WEIGHTS
        values = rate * found - cdf if stage == 0 else found
    return values


def line_cells(y: Array, predictive: Distribution, rate: float) -> Array:
    """Returns edges of cells in which every measure has a smooth cdf, narrow where a jump to the right is near."""
    low, high = target_range(y, predictive, _TAIL)
    breaks = predictive.breaks()
    breaks = np.unique(np.concatenate([y, breaks[np.isfinite(breaks)].ravel()]))
    breaks = breaks[(breaks >= low) & (breaks <= high)]
    start = low - _REACH / rate
    cells = np.union1d(np.linspace(start, high, _FIRST_CELLS + 1), np.append(breaks, low))
    left, right = cells[:-1], cells[1:]
    done = [np.array([start])]
    for _ in range(_DEEPEST):
        following = np.append(breaks, np.inf)[np.searchsorted(breaks, right)]
        wide = (rate * (right - left) > _WIDEST) & (following - right < _REACH / rate)
        middle = (left + right) / 2.0
        halved = (wide | (_roughness(predictive, left, right) * rate > _TOLERANCE)) & (left < middle) & (middle < right)
        done += [right[~halved]]
        left, middle, right = left[halved], middle[halved], right[halved]
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
        if len(left) == 0:
            break
    return np.unique(np.concatenate([*done, right]))


def _roughness(predictive: Distribution, left: Array, right: Array) -> Array:
    """Returns by how much an integral over each cell may be wrong, of any row: the last coefficients of the cdf."""
    rough = np.empty(len(left))
    at_once = max(1, _ENTRIES // (ORDER * len(predictive)))
    for first in range(0, len(left), at_once):
        some = slice(first, first + at_once)
        widths = right[some] - left[some]
        places = left[some, None] + widths[:, None] * NODES
        values = predictive.cdf(places.ravel()[None, :]).reshape(len(predictive), -1, ORDER)
        rough[some] = np.max(np.abs(values @ _LAST_COEFFICIENTS), axis=(0, 2)) * widths
    return rough


def _to_coefficients() -> Array:
    """Returns the matrix from values at the nodes to coefficients of Legendre polynomials, (ORDER, ORDER)."""
    return np.asarray(np.linalg.inv(np.polynomial.legendre.legvander(_ROOTS, ORDER - 1)).T)


def _integrals_from_nodes() -> Array:
    """Returns the integral of each node's polynomial from node k to the end of the unit cell, (ORDER, ORDER)."""
    whole = np.polynomial.legendre.legint(np.eye(ORDER))  # (ORDER + 1, ORDER), a column each
    values = np.polynomial.legendre.legval(np.ones(1), whole).T - np.polynomial.legendre.legval(_ROOTS, whole).T
    return np.asarray(values @ _to_coefficients().T / 2.0)


_FROM_NODE = _integrals_from_nodes()
_LAST_COEFFICIENTS = _to_coefficients()[:, -2:]


TILE = 512
"""Rows of a tile of pairs: one pass over it stays in cache."""
EXACT_ROWS = 4096
"""Rows up to which products under Laplacian and Matern kernels are exact and held whole (134 MB); features beyond."""


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
        y: targets; of predictions that state quantiles or bins alone each at a random place in its cell.
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
    y, predictive = in_cells(y, predictive, np.arange(len(y)), 0, cell_steps(y, predictive))
    # Given few draws alone a target lies nearer to the middle of all rows than they do, if they are right; given the
    # values of both it is any of these.
    pooled = predictive.pooled(y)
    (coordinates,) = chosen.coordinates([predictive if pooled is None else Samples(pooled)], kernel)
    fitted = chosen.fitted(coordinates)
    gammas = np.array([term.gamma for term in kernel.terms if isinstance(term, RBF)])
    if y.ndim == 2 and len(gammas) == len(kernel.terms) and predictive.whitened(y) is not None:
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
    kernel, left = Sum(tuple(map(RBF, gammas.tolist()))), ((1.0, y, 0.0 * scale), (-1.0, loc, scale**2))
    right = (1.0, other_y, 0.0 * other_scale), (-1.0, other_loc, other_scale**2)
    products = (s * t * gaussian_expectation(kernel, m, v, n, w) for s, m, v in left for t, n, w in right)
    return np.asarray(sum(products))


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


def signed_sums(
    terms: PairTerms, signs: Array, reach: int | None = None, precision: type[np.floating] = np.float64
) -> tuple[float, float, Array]:
    """Return the sum of h_ij over pairs i != j, their number, and the sums of h_ij s_i s_j, (k,), for signs s (n, k).

    Each unordered pair of ``tile_pairs`` is met once and counts twice. Signs, 1 and -1 in bytes (50,000 rows of 999
    floats take 400 MB), become numbers of a ``precision`` a tile at a time; the sum without signs is in double
    precision.
    """
    # No h_ij is larger than the largest h_ii: as shares of it, terms of any size have a place in single precision.
    scale = float(np.max(terms.diagonal())) or 1.0
    total, count, sums = 0.0, 0.0, np.zeros(signs.shape[1])
    for i, j in tile_pairs(terms.n, reach):
        block, twice = terms.h(i, j), 2.0
        pairs, shares = block.size, (block / scale).astype(precision)
        one, two = (signs[rows].astype(precision) for rows in (i, j))
        if i == j:
            np.fill_diagonal(block, 0.0)
            np.fill_diagonal(shares, 0.0)
            pairs, twice = pairs - len(block), 1.0
            # Below the diagonal stands all that a symmetric block says, by half of its products.
            products = get_blas_funcs("trmm", (shares,))(1.0, shares.T, two.T, side=1, overwrite_b=1).T
        else:
            products = shares @ two
        total += twice * float(block.sum())
        count += twice * pairs
        sums += 2.0 * np.einsum("ik,ik->k", one, products)
    return total, count, scale * sums
