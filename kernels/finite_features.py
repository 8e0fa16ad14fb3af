"""Output features that finitely many points make: the counts of a table, nodes, and the errors of few vectors.

In a volume that is wide for the kernel no short list of features holds all targets and predictions. But n errors
D_i = k_Y(y_i, .) - E k_Y(Y_i, .) span n directions, whatever the volume: normals, ensembles and their mixtures are
weighted points and normals, so every <D_i, D_j> is a sum of kernel values and Gaussian integrals, and a factor L of the
matrix of them makes the features psi(y) = L^-1 [<D_j, k_Y(y, .)>]_j, in which Delta_i . Delta_j = <D_i, D_j>.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.distributions.expectations import (
    gaussian_expectation,
    has_gaussian_expectation,
    point_values,
)
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.fourier import TAILS, FeatureMap, Missed, mass_outside, target_range
from congruence.kernels.kernel_functions import Kernel, Matern
from congruence.kernels.rng import stream
from congruence.kernels.threads import map_on_threads

FRESH_DRAWS = 8
MAX_NODES = 1024
NODE_TOLERANCE = 1e-9
_SEEN = 4096  # values among which nodes are chosen, and at which features are checked
_GRID = 1024
_MEANS_CHECKED = 64  # rows
MOST_ROWS = 2048
BUDGET = 1e9  # operations of the Gram matrix of the errors: some seconds
_FACTOR_TOLERANCE = 1e-11  # of the largest |D_i|^2 that a factor may miss of any row
_MATERN_TERMS = 60  # Gaussian integrals in one of a Matern kernel
_BLOCK_ENTRIES = 250_000  # a block and its scratch stay in a core's cache
_OWN_ATOMS = 16
_ROUNDING = 32.0 * float(np.finfo(np.float64).eps)


def fresh_draws(distribution: Distribution) -> Array:
    """Returns eight draws of each row, by which what was chosen is checked, (n, 8) or (n, 8, q)."""
    return np.asarray(distribution.sample(FRESH_DRAWS, seed=stream(0, "fresh draws")))


@dataclass(frozen=True)
class CountFeatures(FeatureMap):
    """psi(y) = row y - first of T (s, r), with T T' = k_Y between the counts first, ..., first + s - 1.

    At other values psi(y) is the projection on what those counts span: ``inverse`` (s, r) maps k_Y(y, counts) to it.
    """

    kernel: Kernel
    first: float
    table: Array = field(repr=False)
    inverse: Array = field(repr=False)
    error: float

    @property
    def rank(self) -> int:
        return int(self.table.shape[1])

    @property
    def range(self) -> tuple[float, float]:
        return self.first, self.first + len(self.table) - 1

    def __call__(self, y: Any) -> Array:
        y = np.asarray(y, dtype=np.float64)
        inside = self._is_listed(y)
        features = self.table[np.where(inside, y - self.first, 0.0).astype(np.intp)]
        if not np.all(inside):
            features[~inside] = self.kernel(y[~inside], self._counts) @ self.inverse
        return np.asarray(features)

    def expectation(self, distribution: Distribution) -> Array:
        """See FeatureMap: sums over the masses of counts, means over draws, else the kernel's expectation."""
        if distribution.mixture is not None:
            weights, components = distribution.mixture
            parts = (self.expectation(component) for component in components)
            return np.asarray(sum(weight[:, None] * part for weight, part in zip(weights.T, parts, strict=True)))
        if distribution.counts is not None:
            return distribution.counts.sum_over(self.first, self.table)
        if (draws := distribution.draws) is not None:
            return np.concatenate([self(draws[rows]).mean(axis=1) for rows in row_slices(len(draws), 1024)])
        return np.asarray(distribution.kernel_expectation(self.kernel, self._counts) @ self.inverse)

    def missed(self, y: Array, distribution: Distribution) -> Missed:
        """See FeatureMap: the mass outside of counts; what targets and draws project away."""
        maximum = float(np.max(self.kernel.diagonal(np.array([self.first]))))
        rows, outside = 4.0 * self.error + self._power(y), np.zeros(len(y))
        if distribution.is_discrete:
            outside = mass_outside(distribution, *self.range)
            outside = (2.0 * maximum * np.where(outside < 1e-15, 0.0, outside)) ** 2
        else:
            draws = fresh_draws(distribution) if distribution.draws is None else distribution.draws
            of_draws = np.sqrt(self._power(draws.ravel())).reshape(draws.shape).mean(axis=1)
            rows = 4.0 * self.error + (np.sqrt(self._power(y)) + of_draws) ** 2
        return Missed(rows, outside)

    @property
    def _counts(self) -> Array:
        return np.arange(self.range[0], self.range[1] + 1.0)

    def _power(self, y: Array) -> Array:
        """Returns k(t, t) - |psi(t)|^2 at values t (m,): what is projected away, 0 at the counts of the table, (m,)."""
        power, other = np.zeros(len(y)), ~self._is_listed(y)
        if np.any(other):
            power[other] = np.maximum(self.kernel.diagonal(y[other]) - np.sum(self(y[other]) ** 2, axis=1), 0.0)
        return power

    def _is_listed(self, y: Array) -> Array:
        return np.asarray((y == np.floor(y)) & (y >= self.range[0]) & (y <= self.range[1]))


def count_features(kernel: Kernel, first: float, last: float, tolerance: float) -> CountFeatures:
    """Returns features on first, ..., last in the directions that the kernel uses there."""
    counts = np.arange(first, last + 1.0)
    energy, directions = np.linalg.eigh(np.asarray(kernel(counts, counts), dtype=np.float64))
    kept = energy > tolerance / 10.0
    # What was dropped of an entry is at most what was dropped of the diagonal; half of the tolerance is for rounding.
    dropped = directions[:, ~kept] ** 2 @ np.maximum(energy[~kept], 0.0)
    error = tolerance / 2.0 + float(np.max(dropped, initial=0.0))
    directions, roots = directions[:, kept][:, ::-1], np.sqrt(energy[kept][::-1])
    return CountFeatures(
        kernel, first, np.ascontiguousarray(directions * roots), np.ascontiguousarray(directions / roots), error
    )


@dataclass(frozen=True)
class NodeFeatures(FeatureMap):
    """psi(y) = L^-1 k(T, y) with K_TT = L L' on nodes T (r,) or (r, q): exact wherever k(., y) lies in their span."""

    is_sampled: ClassVar[bool] = True

    kernel: Kernel
    nodes: Array = field(repr=False)
    factor: Array = field(repr=False)
    error: float

    @property
    def rank(self) -> int:
        return len(self.nodes)

    def __call__(self, y: Any) -> Array:
        return self._whiten(self.kernel(np.asarray(y, dtype=np.float64), self.nodes))

    def expectation(self, distribution: Distribution) -> Array:
        """See FeatureMap: E k(t_j, Y) by the family's closed form or quadrature."""
        return self._whiten(distribution.kernel_expectation(self.kernel, self.nodes))

    def missed(self, y: Array, distribution: Distribution) -> Missed:
        """See FeatureMap: k(t, t) - |psi(t)|^2 at the targets; of means |E k(Y, .)|^2 - |E psi(Y)|^2, of some rows."""
        rows = np.linspace(0, len(y) - 1, min(len(y), _MEANS_CHECKED)).astype(np.intp)
        some = distribution[rows]
        squares, draws = np.sum(self.expectation(some) ** 2, axis=1), fresh_draws(some)
        pairs = ~np.eye(FRESH_DRAWS, dtype=bool)
        # Of two independent draws the kernel is |E k(Y, .)|^2 on average; one row says little, all together enough.
        wholes = [np.mean(np.asarray(self.kernel(own))[pairs]) for own in draws]
        # What is missed of a mean is at most what is missed of draws, of which next to nothing is known to be so.
        powers = self.power(np.concatenate(list(draws))).reshape(len(rows), -1).mean(axis=1)
        of_means = min(max(_with_error(wholes - squares), 0.0), _with_error(powers))
        return Missed((np.sqrt(self.power(y)) + np.sqrt(of_means)) ** 2, np.zeros(len(y)))

    def power(self, points: Array) -> Array:
        """Returns k(t, t) - |psi(t)|^2 at points t (m,) or (m, q): what psi misses of k(t, .), (m,)."""
        chunks = [points[rows] for rows in row_slices(len(points), 8192)]
        powers = [self.kernel.diagonal(chunk) - np.sum(self(chunk) ** 2, axis=1) for chunk in chunks]
        return np.asarray(np.maximum(np.concatenate(powers), 0.0))

    def _whiten(self, block: Array) -> Array:
        return np.asarray(scipy.linalg.solve_triangular(self.factor, block.T, lower=True).T)


def node_features(kernel: Kernel, candidates: Array, tolerance: float) -> NodeFeatures:
    """Diagonally pivoted Cholesky over the candidates until the largest residual of k is below the tolerance."""
    residual = np.asarray(kernel.diagonal(candidates), dtype=np.float64).copy()
    limit = max(tolerance, 1e-13) * residual.max()
    rows = np.empty((64, len(candidates)))
    pivots: list[int] = []
    while residual.max() > limit and len(pivots) < min(MAX_NODES, len(candidates)):
        pivot, rank = int(np.argmax(residual)), len(pivots)
        if rank == len(rows):
            rows = np.concatenate([rows, np.empty_like(rows)])
        row = np.asarray(kernel(candidates[pivot : pivot + 1], candidates), dtype=np.float64)[0]
        row -= rows[:rank, pivot] @ rows[:rank]
        rows[rank] = row / np.sqrt(residual[pivot])
        residual = np.maximum(residual - rows[rank] ** 2, 0.0)
        residual[pivot] = 0.0
        pivots.append(pivot)
    return NodeFeatures(kernel, candidates[pivots], np.tril(rows[: len(pivots), pivots].T), float(residual.max()))


def scalar_features(kernel: Kernel, y: Array, distribution: Distribution | None, tolerance: float) -> NodeFeatures:
    """Returns features of a kernel of another shape, with nodes at targets y (n,) and over the range of predictions."""
    low, high = target_range(y, distribution, TAILS[0])
    distinct = np.unique(y)
    grid = 0.5 * (low + high) - 0.5 * (high - low) * np.cos(np.pi * (np.arange(_GRID) + 0.5) / _GRID)
    some = distinct if len(distinct) <= MAX_NODES else distinct[:: len(distinct) // MAX_NODES + 1]
    return node_features(kernel, np.union1d(some, grid), max(tolerance, NODE_TOLERANCE))


def vector_features(kernel: Kernel, y: Array, distribution: Distribution | None, tolerance: float) -> NodeFeatures:
    """Returns features of vectors, with nodes at some targets y (n, q) and draws of the predictions."""
    rng = stream(0, "feature candidates")
    targets = y[rng.choice(len(y), min(len(y), _SEEN), replace=False)]
    drawn, fresh = targets[:0], [y]
    if distribution is not None:
        rows = rng.choice(len(distribution), min(len(distribution), _SEEN), replace=False)
        # Where a model predicts, features must see.
        some, count = distribution[rows], max(4, 2 * MAX_NODES // len(rows))
        drawn = some.sample(count, seed=stream(0, "feature range")) if some.draws is None else some.draws
        drawn = drawn.reshape(-1, y.shape[1])
        fresh.append(some.sample(2, seed=stream(0, "fresh draws")).reshape(-1, y.shape[1]))
    if len(targets) + len(drawn) > _SEEN:
        drawn = drawn[rng.choice(len(drawn), max(_SEEN - len(targets), min(_SEEN // 2, len(drawn))), replace=False)]
    # Draws of a few atoms repeat them.
    candidates = np.concatenate([targets, drawn if len(drawn) > _SEEN // 2 else np.unique(drawn, axis=0)])
    features = node_features(kernel, candidates, max(tolerance, NODE_TOLERANCE))
    # What was interpolated says nothing of the rest: the error is read where the nodes had no say.
    return replace(features, error=max(features.error, *(float(np.max(features.power(points))) for points in fresh)))


def _with_error(values: Array) -> float:
    """Returns the mean and two of its standard errors."""
    return float(np.mean(values)) + 2.0 * float(np.std(values)) / float(np.sqrt(len(values)))


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

    def squared_means(self, distribution: Distribution, means: Array) -> Array:  # noqa: ARG002
        """See FeatureMap: errors span no means, whose norms are known in closed form."""
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
