r"""Target errors of scalar targets under Laplacian and Matern kernels, for any family that has a distribution function.

Such kernels have no short list of features: a kink has a slow spectrum. On sorted nodes z the span of the k(z_j, .) is
the space to work in; targets are nodes themselves where they are few, and a law becomes masses on the nodes.

Laplacian. The process with this covariance is Markov, so the orthogonal projection of k(y, .) lies on the two
neighbours of y, with weights sinh(gamma (z' - y)) / sinh(gamma h) and its mirror image: the masses of a law are the
integrals of these weights. What the projection misses is, with G = F - F~ the difference of the distribution functions
before and after, at most 2 pi max_w w^2 Lambda(w) int G^2 = 2 gamma int G^2 (Bochner, Parseval; Lambda is the kernel's
spectral density), and it is orthogonal to everything kept.

Matern 3/2 and 5/2. Masses that keep the mass and the mean of every cell move the kernel mean by at most
2 pi max_w w^4 Lambda(w) (h / pi)^2 int G^2 in squared norm, where the law is smooth within the cell (Wirtinger's
inequality for the integral of G, which vanishes at both nodes), and by the first bound where it is not.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions import Deterministic, Distribution, Samples
from congruence.kernels.kernel_functions import RBF, Kernel, Laplacian, Matern, Sum
from congruence.kernels.mean_embeddings.base import EmbeddedErrors, FeatureError
from congruence.kernels.mean_embeddings.gram import FACTORED_ROWS, factored, lower_factor
from congruence.kernels.mean_embeddings.line_means import HalfIntegerKernel
from congruence.kernels.streams import stream
from congruence.kernels.threads import map_on_threads

TARGET_NODES = 4096  # up to so many distinct targets are nodes
_GRID = 1024
_FINE_GRID = 2048
_POOLED_DRAWS = 32_768
_TAIL = 1e-7
_CHUNK_ENTRIES = 2_000_000
_FEW_COORDINATES = 256


@dataclass(frozen=True)
class _Embedded:
    """Coordinates (n, r), what an orthogonal projection missed, and squared displacements, (n,) each."""

    coordinates: Array
    missed: Array
    displaced: Array
    between: Array | None = None  # further coordinates of laws, orthogonal to those of points at nodes


def line_errors(y: Array, predictive: Distribution, kernel: Kernel) -> EmbeddedErrors:
    """Coordinates of the errors for targets y (n,); ``kernel`` is a Laplacian, Matern or RBF, or a sum of them.

    Up to 4,096 rows a term with a kink at 0 has nodes, and coordinates, apart from the smooth ones.
    """
    kinked = tuple(term for term in kernel.terms if _laplacian_gamma(term) is not None)
    if 0 < len(kinked) < len(kernel.terms) + (len(kinked) > 1) and len(y) <= FACTORED_ROWS:
        smooth = tuple(term for term in kernel.terms if _laplacian_gamma(term) is None)
        groups = [*((term,) for term in kinked), *([smooth] if smooth else [])]
        return reduce(EmbeddedErrors.joined, [line_errors(y, predictive, Sum(group)) for group in groups])
    gamma = _laplacian_gamma(kernel)
    nodes = _nodes(y, predictive, with_targets=gamma is not None)
    basis: _Basis = _PivotedBasis(kernel, nodes) if gamma is None else _MarkovBasis(gamma, nodes)
    n = len(y)
    compress = basis.rank > min(n, _FEW_COORDINATES) and n <= FACTORED_ROWS
    delta = np.empty((n, basis.rank))
    between = np.empty((n, len(nodes) - 1 if compress and gamma is not None else 0))
    squared_means, missed, displaced, of_target = np.empty((4, n))

    def fill(rows: slice) -> None:
        law, target = _embed(predictive[rows], basis), basis.of_points(y[rows, None])
        squared_means[rows] = np.einsum("ij,ij->i", law.coordinates, law.coordinates)
        if law.between is not None and between.shape[1]:
            between[rows] = law.between
            squared_means[rows] += np.einsum("ij,ij->i", law.between, law.between)
        elif law.between is not None:
            law = replace(law, missed=law.missed + np.einsum("ij,ij->i", law.between, law.between))
        elif between.shape[1]:
            between[rows] = 0.0
        delta[rows] = target.coordinates - law.coordinates
        missed[rows], displaced[rows], of_target[rows] = law.missed, law.displaced, target.missed

    map_on_threads(fill, row_slices(n, _CHUNK_ENTRIES // len(nodes)))
    double = 2.0 if np.max(of_target) > 0.0 else 1.0  # |a + b|^2 <= 2 |a|^2 + 2 |b|^2
    rows, shared = double * missed, double * basis.together(y, of_target)
    if compress:
        delta, compressed = factored(delta @ delta.T + between @ between.T)
        rows = rows + compressed
    return EmbeddedErrors(delta, squared_means, FeatureError(rows, shared, displaced))


def is_line_kernel(kernel: Kernel) -> bool:
    """Whether ``line_errors`` knows the kernel."""
    return all(isinstance(term, (RBF, Laplacian, Matern)) for term in kernel.terms)


def _nodes(y: Array, predictive: Distribution, *, with_targets: bool) -> Array:
    low, high = predictive.interval(_TAIL)
    low, high = min(low, float(np.min(y))), max(high, float(np.max(y)))
    distinct = np.unique(y)
    distinct = distinct if with_targets and len(distinct) <= TARGET_NODES else distinct[:0]
    breaks = np.unique(predictive.breaks())
    if len(breaks) <= _GRID:
        distinct = np.union1d(distinct, breaks[(breaks > low) & (breaks < high)])
    if predictive.is_discrete and high - low < TARGET_NODES:
        return np.union1d(np.arange(np.floor(low), np.ceil(high) + 1.0), distinct)
    size = _FINE_GRID if len(y) <= _GRID or not with_targets else _GRID
    # Nodes go with the pooled density to the power that makes the error least: h^3 f^2 per cell, or h^5 f^2 if smooth.
    grid = _grid(y, predictive, low, high, size, power=1.0 / 3.0 if with_targets else 2.0 / 3.0)
    nodes = np.union1d(distinct, grid)
    # Nodes closer than rounding have no cell between them; targets stay.
    apart = np.diff(nodes, prepend=-np.inf) > 1e-12 * (high - low)
    return np.union1d(nodes[apart], distinct)


def _grid(y: Array, predictive: Distribution, low: float, high: float, size: int, *, power: float) -> Array:
    """``size`` nodes, equally many for equal sums of (gap between pooled draws)^power."""
    rng = stream(0, "nodes on the line")
    rows = rng.choice(len(predictive), min(len(predictive), 2048), replace=False)
    draws = predictive[rows].sample(max(1, _POOLED_DRAWS // len(rows)), seed=rng)
    pooled = np.quantile(np.concatenate([draws.ravel(), y]), np.linspace(0.0, 1.0, size))
    pooled = np.unique(np.concatenate([[low], np.clip(pooled, low, high), [high]]))
    arc = np.concatenate([[0.0], np.cumsum(np.diff(pooled) ** power)])
    return np.asarray(np.interp(np.linspace(0.0, arc[-1], size), arc, pooled))


class _Basis(ABC):
    """Orthonormal coordinates of the span of k(z_j, .) over sorted nodes z (T,)."""

    rank: int
    nodes: Array

    @abstractmethod
    def of_points(self, points: Array) -> _Embedded:
        """The mean over l points of k(p, .) in each row, for points (n, l)."""

    @abstractmethod
    def of_cells(self, law: _Cells) -> _Embedded:
        """The kernel means of laws with these distribution functions."""

    def together(self, y: Array, missed: Array) -> float:  # noqa: ARG002
        """Bound on the spectral norm of what is missed of the k(y_i, .) together."""
        return float(np.sum(missed))


class _MarkovBasis(_Basis):
    """The Laplacian's: the Cholesky factor of its Gram matrix on a line is known (the Ornstein-Uhlenbeck process)."""

    def __init__(self, gamma: float, nodes: Array) -> None:
        self.rank, self.nodes, self.gamma = len(nodes), nodes, gamma
        steps = gamma * np.diff(nodes)
        self.decay = np.exp(-steps)
        self.innovation = np.sqrt(np.concatenate([[1.0], -np.expm1(-2.0 * steps)]))

    def of_points(self, points: Array) -> _Embedded:
        cell, inside = _cells_of(points, self.nodes)
        left, right = self._weights(inside, cell)
        missed = _mean_square(cell, np.maximum(1.0 - left**2 - right**2 - 2.0 * left * right * self._decay(cell), 0.0))
        missed = (np.sqrt(missed) + np.sqrt(2.0) * np.mean(points != inside, axis=1)) ** 2
        weights = _spread_over(cell, left, right, self.rank)
        return _Embedded(self._coordinates(weights), missed, np.zeros(len(points)))

    def together(self, y: Array, missed: Array) -> float:
        """See _Basis: what is missed in different cells is orthogonal."""
        return float(np.max(np.bincount(_cells_of(y, self.nodes)[0], missed)))

    def of_cells(self, law: _Cells) -> _Embedded:
        weights = law.atoms.copy()
        middle, end, mirrored_middle, mirrored_end = self._rules
        left = law.middle * middle + law.mass * end
        right = law.mass - law.middle * mirrored_middle - law.mass * mirrored_end
        weights[:, :-1] += left
        weights[:, 1:] += right
        rough, _ = law.energies()
        # Between nodes a uniform density counts exactly; a jump may be missed, and what was taken for it.
        missed = 2.0 * self.gamma * (4.0 * rough + law.uneven()).sum(axis=1)
        # Where a law jumps within a cell, its masses at the nodes are not the projection's either.
        displaced = (np.sqrt(8.0 * self.gamma * rough.sum(axis=1)) + np.sqrt(2.0) * law.outside) ** 2
        return _Embedded(self._coordinates(weights), missed, displaced, law.mass * self._uniform)

    @cached_property
    def _uniform(self) -> Array:
        """The norm of what the nodes miss of the uniform law on each cell, (T - 1,): 2 (x - 2 tanh(x / 2)) / x^2."""
        x = self.gamma * np.diff(self.nodes)
        series = x / 6.0 * (1.0 - x * x / 10.0 * (1.0 - 17.0 * x * x / 168.0))
        large = np.maximum(x, 0.05)
        return np.asarray(np.sqrt(np.where(x < 0.05, series, 2.0 * (large - 2.0 * np.tanh(large / 2.0)) / large**2)))

    def _decay(self, cell: Array) -> Array:
        return self.decay[cell] if len(self.decay) else np.ones(cell.shape)

    def _weights(self, points: Array, cell: Array) -> tuple[Array, Array]:
        if self.rank == 1:
            return np.ones(points.shape), np.zeros(points.shape)
        x = self.gamma * np.diff(self.nodes)[cell]
        s = self.gamma * (points - self.nodes[cell])
        return _sinh_ratio(x - s, x), _sinh_ratio(s, x)

    @cached_property
    def _rules(self) -> tuple[Array, Array, Array, Array]:
        """Integrals of -w' and of w' over each cell against the quadratic through F at its ends and its middle."""
        t, weights = np.polynomial.legendre.leggauss(24)
        t, weights = (t + 1.0) / 2.0, weights / 2.0
        x = self.gamma * np.diff(self.nodes)[:, None]
        falling, rising = x * _cosh_over_sinh(x * (1.0 - t), x), x * _cosh_over_sinh(x * t, x)
        at_middle, at_end = weights * 4.0 * t * (1.0 - t), weights * t * (2.0 * t - 1.0)
        return falling @ at_middle, falling @ at_end, rising @ at_middle, rising @ at_end

    def _coordinates(self, weights: Array) -> Array:
        result = np.ascontiguousarray(weights.T)
        for j in range(self.rank - 2, -1, -1):
            result[j] += self.decay[j] * result[j + 1]
        result *= self.innovation[:, None]
        return np.asarray(result.T)


class _PivotedBasis(_Basis):
    """Any kernel's: the pivoted Cholesky factor of the Gram matrix of the nodes."""

    def __init__(self, kernel: Kernel, nodes: Array) -> None:
        self.kernel, self.nodes = kernel, nodes
        self.center = float(np.median(nodes))  # squares of numbers far from the origin would lose their digits
        gram = np.asarray(kernel(nodes - self.center))
        self.maximum = float(gram[0, 0])
        factor = lower_factor(gram)
        self.psi = np.empty(factor.whole.shape)
        self.psi[factor.order] = factor.whole
        self.rank, self.factor = int(factor.whole.shape[1]), factor.lower
        self.pivots = nodes[factor.pivots] - self.center
        self.residual = float(np.max(np.maximum(self.maximum - np.einsum("ij,ij->i", self.psi, self.psi), 0.0)))
        self.first, self.second = _smoothness(kernel)

    def of_points(self, points: Array) -> _Embedded:
        block = self.kernel(points.ravel() - self.center, self.pivots)
        psi = scipy.linalg.solve_triangular(self.factor, block.T, lower=True).T
        missed = np.maximum(self.maximum - np.einsum("ij,ij->i", psi, psi), 0.0).reshape(points.shape)
        mean = psi.reshape(*points.shape, -1).mean(axis=1)
        return _Embedded(mean, np.mean(np.sqrt(missed), axis=1) ** 2, np.zeros(len(points)))

    def of_cells(self, law: _Cells) -> _Embedded:
        weights = law.atoms.copy()
        left = (4.0 * law.middle + law.mass) / 6.0  # Simpson's mean of F over the cell keeps the cell's mean
        weights[:, :-1] += left
        weights[:, 1:] += law.mass - left
        rough, smooth = law.energies()
        moved = smooth @ np.minimum(self.first, self.second * (law.widths / np.pi) ** 2)
        roots = np.sqrt(moved) + np.sqrt(4.0 * self.first * rough.sum(axis=1))
        displaced = (roots + np.sqrt(2.0 * self.maximum) * law.outside) ** 2
        return _Embedded(np.asarray(weights @ self.psi), np.full(len(weights), self.residual), displaced)


@dataclass(frozen=True)
class _Cells:
    """What distribution functions say of the cells between nodes.

    Attributes:
        atoms: mass on each node, with what lies beyond the first and the last one, (n, T).
        mass: between the nodes, (n, T - 1).
        middle: in the first half of each cell, (n, T - 1).
        outside: mass beyond the first and the last node, (n,).
        widths: of the cells, (T - 1,).
    """

    atoms: Array
    mass: Array
    middle: Array
    outside: Array
    widths: Array

    @classmethod
    def of(cls, law: Distribution, nodes: Array) -> _Cells:
        at = law.cdf(nodes[None, :])
        before = law.cdf_left(nodes[None, :]) if law.may_jump else at
        mass = np.maximum(before[:, 1:] - at[:, :-1], 0.0)
        middle = np.clip(law.cdf(((nodes[:-1] + nodes[1:]) / 2.0)[None, :]) - at[:, :-1], 0.0, mass)
        atoms = at - before
        atoms[:, 0] += before[:, 0]
        atoms[:, -1] += 1.0 - at[:, -1]
        return cls(atoms, mass, middle, before[:, 0] + 1.0 - at[:, -1], np.diff(nodes))

    def uneven(self) -> Array:
        """int G^2 over each cell, less the part of a uniform density, for cells where the law does not jump."""
        left = (4.0 * self.middle + self.mass) / 6.0
        energy = (2.0 * (left - self.mass / 2.0) ** 2 + 4.0 * (self.middle - left) ** 2) * (self.widths / 6.0)
        return np.where(self._is_smooth, energy, 0.0)

    @property
    def _is_smooth(self) -> Array:
        return np.abs(self.middle - self.mass / 2.0) <= 0.25 * self.mass

    def energies(self) -> tuple[Array, Array]:
        """int G^2 over each cell, for cells where the law may jump and for the others, (n, T - 1) each."""
        left = (4.0 * self.middle + self.mass) / 6.0
        right = self.mass - left
        energy = (left**2 + 4.0 * (self.middle - left) ** 2 + right**2) * (self.widths / 6.0)
        return np.where(self._is_smooth, 0.0, energy), np.where(self._is_smooth, energy, 0.0)


def _embed(law: Distribution, basis: _Basis) -> _Embedded:
    if isinstance(law, Samples):
        return basis.of_points(law.values)
    if isinstance(law, Deterministic):
        return basis.of_points(law.value[:, None])
    return basis.of_cells(_Cells.of(law, basis.nodes))


def _laplacian_gamma(kernel: Kernel) -> float | None:
    term, *others = kernel.terms
    known = HalfIntegerKernel.of(term)
    return known.rate if known is not None and known.degree == 0 and not others else None


def _smoothness(kernel: Kernel) -> tuple[float, float]:
    """2 pi max w^2 Lambda(w) and 2 pi max w^4 Lambda(w), summed over the parts of a kernel."""
    parts = [_smoothness_of_term(term) for term in kernel.terms]
    return sum(first for first, _ in parts), sum(second for _, second in parts)


def _smoothness_of_term(kernel: Kernel) -> tuple[float, float]:
    if isinstance(kernel, RBF):
        g = kernel.gamma
        return 4.0 * float(np.sqrt(np.pi * g)) / math.e, 64.0 * float(np.exp(-2.0) * np.sqrt(np.pi)) * g**1.5
    known = HalfIntegerKernel.of(kernel)
    if known is None:
        raise TypeError(f"{type(kernel).__name__} is not a kernel of distances on the line")
    return known.smoothness


def _cells_of(points: Array, nodes: Array) -> tuple[Array, Array]:
    """The cell of each point, and the point, or the nearest node where it lies beyond all."""
    inside = np.clip(points, nodes[0], nodes[-1])
    return np.clip(np.searchsorted(nodes, inside, side="right") - 1, 0, max(len(nodes) - 2, 0)), inside


def _spread_over(cell: Array, left: Array, right: Array, size: int) -> Array:
    """The row means of weights on the nodes ``cell`` and ``cell + 1``, (n, T)."""
    n, count = cell.shape
    index = (cell + size * np.arange(n)[:, None]).ravel()
    total: Array = np.bincount(index, left.ravel(), n * size)
    if size > 1:
        total += np.bincount(index + 1, right.ravel(), n * size)
    return np.asarray(total.reshape(n, size) / count)


def _mean_square(cell: Array, squares: Array) -> Array:
    """sum over cells of (mean over the points of sqrt(squares) in the cell)^2, (n,): cells are orthogonal."""
    n, count = cell.shape
    if count == 1:
        return squares[:, 0]
    cells = int(cell.max()) + 1
    index = (cell + cells * np.arange(n)[:, None]).ravel()
    roots = np.bincount(index, np.sqrt(squares).ravel() / count, n * cells).reshape(n, cells)
    return np.asarray(np.einsum("ij,ij->i", roots, roots))


def _sinh_ratio(a: Array, b: Array) -> Array:
    """sinh(a) / sinh(b) for 0 <= a <= b, b > 0, without overflow."""
    return np.asarray(np.exp(a - b) * np.expm1(-2.0 * a) / np.expm1(-2.0 * b))


def _cosh_over_sinh(a: Array, b: Array) -> Array:
    return np.asarray(np.exp(a - b) * (1.0 + np.exp(-2.0 * a)) / -np.expm1(-2.0 * b))
