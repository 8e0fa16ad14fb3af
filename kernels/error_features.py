"""Exact features of the errors of few vectors.

In a volume that is wide for the kernel no short list of features holds all targets and predictions. But n errors
D_i = k_Y(y_i, .) - E k_Y(Y_i, .) span n directions, whatever the volume: normals, ensembles and their mixtures are
weighted points and normals, so every <D_i, D_j> is a sum of kernel values and Gaussian integrals, and a factor L of the
matrix of them makes the features psi(y) = L^-1 [<D_j, k_Y(y, .)>]_j, in which Delta_i . Delta_j = <D_i, D_j>.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.distributions.expectations import gaussian_expectation, has_gaussian_expectation, point_values
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.finite_features import FeatureMap, Missed
from congruence.kernels.kernel_functions import Kernel, Matern
from congruence.kernels.threads import map_on_threads

MOST_ROWS = 2048
BUDGET = 1e9  # operations of the Gram matrix of the errors: some seconds
_FACTOR_TOLERANCE = 1e-11  # of the largest |D_i|^2 that a factor may miss of any row
_MATERN_TERMS = 60  # Gaussian integrals in one of a Matern kernel
_BLOCK_ENTRIES = 250_000  # a block and its scratch stay in a core's cache
_OWN_ATOMS = 16
_ROUNDING = 32.0 * float(np.finfo(np.float64).eps)


class Atoms(NamedTuple):
    """C weighted components a row: points, or normals with independent components where they have a variance.

    Attributes:
        weights: (n, C).
        loc: (n, C, q).
        variance: (n, C, q); None of points.
    """

    weights: Array
    loc: Array
    variance: Array | None = None

    def rows(self, some: Any) -> Atoms:
        """Returns those of some rows."""
        return Atoms(self.weights[some], self.loc[some], None if self.variance is None else self.variance[some])


def error_features(kernel: Kernel, y: Array, predictive: Distribution) -> ErrorFeatures | None:
    """Returns exact features for the errors of a few rows of vectors; None where there is no closed form, or no time.

    Args:
        kernel: k_Y.
        y: targets, (n, q).
        predictive: n predictive distributions.

    Raises:
        InvalidInputError: k_Y overflows.
    """
    atoms = mean_atoms(predictive) if len(y) <= MOST_ROWS else None
    if atoms is None or not _is_affordable(kernel, y, atoms):
        return None
    # Distances of numbers far from the origin would lose their digits; kernels of products keep theirs.
    center = np.median(y, axis=0) if kernel.is_stationary else np.zeros(y.shape[1])
    whole = ErrorFeatures(kernel, center, [], np.empty((0, 0)), 0.0)
    parts = _merged([*whole.points(y), *(part._replace(weights=-part.weights) for part in whole.centred(atoms))])
    gram = _products(kernel, parts, parts)
    if not np.isfinite(gram).all():
        raise InvalidInputError(
            "y: the output kernel overflows on these targets and predictions; rescale both to a spread near 1, or use "
            "a stationary output kernel (RBF)"
        )
    largest = float(np.max(np.diagonal(gram)))
    limit = max(_FACTOR_TOLERANCE * largest, float(np.finfo(np.float64).tiny))
    factor, order, rank, status = scipy.linalg.lapack.dpstrf(gram.T, tol=limit, lower=1, overwrite_a=1)
    rank = int(rank) if status > 0 else len(gram)
    pivots = order[:rank].astype(np.intp) - 1
    lower = np.ascontiguousarray(np.tril(factor[:rank, :rank]))
    error = _ROUNDING * largest + (limit if rank < len(gram) else 0.0)
    return replace(whole, errors=[part.rows(pivots) for part in parts], factor=lower, error=error)


@dataclass(frozen=True)
class ErrorFeatures(FeatureMap):
    """psi(y) = L^-1 [<D_j, k_Y(y, .)>]_j of errors D_j with the Gram matrix L L'.

    Attributes:
        kernel: k_Y.
        center: subtracted from targets and predictions, (q,).
        errors: D_j, whose weights are signed.
        factor: L, (r, r).
        error: of <D_i, D_j>.
    """

    kernel: Kernel
    center: Array = field(repr=False)
    errors: list[Atoms] = field(repr=False)
    factor: Array = field(repr=False)
    error: float

    @property
    def rank(self) -> int:
        return len(self.factor)

    def __call__(self, y: Any) -> Array:
        return self._coordinates(self.points(np.asarray(y, dtype=np.float64)))

    def expectation(self, distribution: Distribution) -> Array:
        """See FeatureMap: by the atoms of the distribution."""
        return self._coordinates(self._atoms(distribution))

    def squared_means(self, distribution: Distribution) -> Array:
        """Returns |E k_Y(Y_i, .)|^2, (n,): errors span no means, whose norms are known in closed form."""
        return _own_products(self.kernel, self._atoms(distribution))

    def missed(self, y: Array, distribution: Distribution) -> Missed:
        """See FeatureMap: |D_i|^2 - |Delta_i|^2."""
        signed = [*self.points(y), *(part._replace(weights=-part.weights) for part in self._atoms(distribution))]
        delta = self._coordinates(_merged(signed))
        left = _own_products(self.kernel, _merged(signed)) - np.einsum("ij,ij->i", delta, delta)
        return Missed(np.maximum(left, 0.0) + self.error, np.zeros(len(y)))

    def points(self, y: Array) -> list[Atoms]:
        """Returns targets y (n, q) as atoms."""
        return [Atoms(np.ones((len(y), 1)), (y - self.center)[:, None])]

    def centred(self, atoms: list[Atoms]) -> list[Atoms]:
        """Returns atoms moved by the center."""
        return [part._replace(loc=part.loc - self.center) for part in atoms]

    def _atoms(self, distribution: Distribution) -> list[Atoms]:
        atoms = mean_atoms(distribution)
        assert atoms is not None
        return _merged(self.centred(atoms))

    def _coordinates(self, parts: list[Atoms]) -> Array:
        products = _products(self.kernel, self.errors, parts)
        return np.ascontiguousarray(scipy.linalg.solve_triangular(self.factor, products, lower=True).T)


def mean_atoms(predictive: Distribution) -> list[Atoms] | None:
    """Returns predictive distributions of vectors as weighted points and normals; None of others."""
    if predictive.mixture is not None:
        parts: list[Atoms] = []
        for weights, component in zip(predictive.mixture[0].T, predictive.mixture[1], strict=True):
            atoms = mean_atoms(component)
            if atoms is None:
                return None
            parts += [part._replace(weights=weights[:, None] * part.weights) for part in atoms]
        return parts
    mean, scale, values = predictive.mean(), predictive.std(), predictive.draws
    if values is None and not np.any(scale):
        values = mean[:, None]
    if values is not None:
        return [Atoms(np.full(values.shape[:2], 1.0 / values.shape[1]), values)]
    if predictive.whitened(mean) is None:
        return None
    return [Atoms(np.ones((len(mean), 1)), mean[:, None], scale[:, None] ** 2)]


def _is_affordable(kernel: Kernel, y: Array, atoms: list[Atoms]) -> bool:
    is_normal = any(part.variance is not None for part in atoms)
    if is_normal and not has_gaussian_expectation(kernel):
        return False
    integrals = sum(_MATERN_TERMS if is_normal and isinstance(term, Matern) else 1 for term in kernel.terms)
    per_row = 1 + sum(part.weights.shape[1] for part in atoms)
    return bool(float(len(y) * per_row) ** 2 * integrals * y.shape[1] <= BUDGET)


def _merged(parts: list[Atoms]) -> list[Atoms]:
    """Returns all points in one part, and all normals in another."""
    merged = []
    for is_normal in (False, True):
        some = [part for part in parts if (part.variance is not None) == is_normal]
        if some:
            weights = np.concatenate([part.weights for part in some], axis=1)
            loc = np.concatenate([part.loc for part in some], axis=1)
            variances = [part.variance for part in some if part.variance is not None]
            merged.append(Atoms(weights, loc, np.concatenate(variances, axis=1) if variances else None))
    return merged


def _products(kernel: Kernel, left: list[Atoms], right: list[Atoms]) -> Array:
    """Returns the inner products of n rows with m others, (n, m)."""
    n, m = len(left[0].weights), len(right[0].weights)
    per_pair = sum(part.weights.shape[1] for part in left) * sum(part.weights.shape[1] for part in right)
    size, symmetric = np.sqrt(_BLOCK_ENTRIES / per_pair), left is right
    result, columns = np.empty((n, m)), row_slices(m, size)

    def fill(rows: slice) -> None:
        own = [part.rows(rows) for part in left]
        for others in columns:
            if symmetric and others.start < rows.start:
                continue
            block = np.asarray(sum(_part_products(kernel, a, b.rows(others)) for a in own for b in right))
            result[rows, others] = block
            if symmetric:
                result[others, rows] = block.T

    map_on_threads(fill, row_slices(n, size))
    return result


def _part_products(kernel: Kernel, a: Atoms, b: Atoms) -> Array:
    q = a.loc.shape[2]
    loc, others = a.loc.reshape(-1, q), b.loc.reshape(-1, q)
    if a.variance is None and b.variance is None:
        values = point_values(kernel, loc, others)
    else:
        variance = np.zeros_like(loc) if a.variance is None else a.variance.reshape(-1, q)
        other_variance = np.zeros_like(others) if b.variance is None else b.variance.reshape(-1, q)
        values = gaussian_expectation(kernel, loc, variance, others, other_variance)
    values = values.reshape(*a.weights.shape, *b.weights.shape)
    return np.asarray(np.einsum("ijb,jb->ij", np.einsum("iajb,ia->ijb", values, a.weights), b.weights))


def _own_products(kernel: Kernel, parts: list[Atoms]) -> Array:
    """Returns the squared norm of each row, (n,), from blocks of a few rows: a call costs more than their waste."""
    some = row_slices(len(parts[0].weights), _OWN_ATOMS // max(part.weights.shape[1] for part in parts))

    def squares(rows: slice) -> Array:
        own = [part.rows(rows) for part in parts]
        return np.asarray(np.diagonal(np.asarray(sum(_part_products(kernel, a, b) for a in own for b in own))))

    return np.concatenate([squares(rows) for rows in some])
