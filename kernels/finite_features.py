"""Finite features psi of an output kernel: k_Y(y, y') = psi(y).psi(y') to a stated tolerance on a stated range.

They turn the norm in the output RKHS into a Euclidean norm of r numbers (r = 15 to 60 for one RBF), so the error of a
model is a difference first and a norm second: no cancellation, and never the root of a negative number.

* Stationary kernels of one target: the spectral integral, see ``engine.targets``, which chooses among all of them.
* The same between whole numbers: a table, and E psi(Y) is a sum of masses.
* Polynomials of one target: monomials, and E psi(Y) are moments.
* Vector targets, and kernels of another shape: nodes, by a pivoted Cholesky. Errors of few vectors are exact, see
  ``error_features``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions.base import Distribution, mass_outside, target_range
from congruence.kernels.distributions.expectations import coefficients
from congruence.kernels.kernel_functions import Kernel, Polynomial
from congruence.kernels.rng import stream

TAIL = 1e-9
FRESH_DRAWS = 8
MAX_NODES = 1024
NODE_TOLERANCE = 1e-9
_SEEN = 4096  # values among which nodes are chosen, and at which features are checked
_GRID = 1024
_MEANS_CHECKED = 64  # rows
_ROUNDING = 16.0 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Missed:
    """What features leave out of the errors D_i = k_Y(y_i, .) - E k_Y(Y_i, .) of some rows.

    The products <D_i, D_j> are off by at most sqrt(rows_i rows_j) + sqrt(outside_i) + sqrt(outside_j).

    Attributes:
        rows: of each row's squared norm, (n,).
        outside: the square of what lies outside of the features' range, (n,).
    """

    rows: Array = field(repr=False)
    outside: Array = field(repr=False)

    def weighted(self, squares: Array) -> Missed:
        """Returns what is missed of rows that count with weights ``squares``, (n,)."""
        return Missed(squares * self.rows, squares**2 * self.outside)

    def plus(self, other: Missed) -> Missed:
        """Returns what is missed where two kernels' features stand side by side."""
        return Missed(self.rows + other.rows, (np.sqrt(self.outside) + np.sqrt(other.outside)) ** 2)


class FeatureMap(ABC):
    """psi: targets -> R^r. ``error`` bounds |k(y, y') - psi(y).psi(y')| on the range it was built for."""

    error: float
    is_sampled: ClassVar[bool] = False
    """Whether what is missed is read off draws rather than bounded."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """Number of features r."""

    @abstractmethod
    def __call__(self, y: Any) -> Array:
        """Returns psi(y_i), (n, r), in float64."""

    def on_grid(self, low: float, step: float, count: int, directions: Array) -> Array:
        """Returns psi at low + j step, j < ``count``, in the ``directions`` (r, d): (count, d), in float64."""
        return np.asarray(self(low + step * np.arange(count)) @ directions)

    def along(self, directions: Array) -> Callable[[Array], Array]:
        """Returns what gives psi of targets in the ``directions`` (r, d), (n, d), in float64."""
        return lambda y: np.asarray(self(y) @ directions)

    @abstractmethod
    def expectation(self, distribution: Distribution) -> Array:
        """Returns E psi(Y_i) for Y_i ~ distribution[i], (n, r), in float64."""

    @abstractmethod
    def missed(self, y: Array, distribution: Distribution) -> Missed:
        """Returns what psi(y_i) - E psi(Y_i) leaves out of the errors of targets y (n,) or (n, q)."""

    @property
    def range(self) -> tuple[float, float]:
        """The interval of targets that the features were built for; everything where they have none."""
        return -np.inf, np.inf


@dataclass(frozen=True)
class MonomialFeatures(FeatureMap):
    """psi(y) = (a_q^(1/2) y^q)_q for k(y, y') = sum_q a_q (y y')^q; E psi(Y) are moments."""

    weights: Array
    error: float = field(repr=False)

    @classmethod
    def of(cls, polynomials: Sequence[Polynomial], y: Array) -> MonomialFeatures:
        """Returns features of a sum of polynomial kernels, with the rounding at targets y."""
        weights = np.zeros(1 + max(polynomial.degree for polynomial in polynomials))
        for polynomial in polynomials:
            weights[: polynomial.degree + 1] += coefficients(polynomial)
        largest = float(np.max(np.abs(y), initial=0.0))
        with np.errstate(over="ignore"):
            return cls(weights, _ROUNDING * float(np.sum(weights * largest ** (2.0 * np.arange(len(weights))))))

    @property
    def _powers(self) -> Array:
        return np.flatnonzero(self.weights)

    @property
    def rank(self) -> int:
        return len(self._powers)

    def __call__(self, y: Any) -> Array:
        powers = self._powers
        return np.asarray(np.sqrt(self.weights[powers]) * np.asarray(y, dtype=np.float64)[..., None] ** powers)

    def expectation(self, distribution: Distribution) -> Array:
        powers = self._powers
        return np.asarray(np.sqrt(self.weights[powers]) * distribution.raw_moments(int(powers[-1]))[:, powers])

    def missed(self, y: Array, distribution: Distribution) -> Missed:  # noqa: ARG002
        """See FeatureMap: rounding."""
        return Missed(np.full(len(y), 4.0 * self.error), np.zeros(len(y)))


@dataclass(frozen=True)
class StackedFeatures(FeatureMap):
    """The features of two kernels side by side: those of their sum."""

    first: FeatureMap
    second: FeatureMap

    @property
    def rank(self) -> int:
        return self.first.rank + self.second.rank

    @property
    def error(self) -> float:  # type: ignore[override]
        """See FeatureMap."""
        return self.first.error + self.second.error

    @property
    def is_sampled(self) -> bool:  # type: ignore[override]
        """See FeatureMap."""
        return self.first.is_sampled or self.second.is_sampled

    @property
    def range(self) -> tuple[float, float]:
        return self.first.range

    def __call__(self, y: Any) -> Array:
        return np.concatenate([self.first(y), self.second(y)], axis=-1)

    def expectation(self, distribution: Distribution) -> Array:
        return np.concatenate([self.first.expectation(distribution), self.second.expectation(distribution)], axis=-1)

    def missed(self, y: Array, distribution: Distribution) -> Missed:
        return self.first.missed(y, distribution).plus(self.second.missed(y, distribution))


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

    def along(self, directions: Array) -> Callable[[Array], Array]:
        weights = scipy.linalg.solve_triangular(self.factor, directions, lower=True, trans="T")
        return lambda y: np.asarray(self.kernel(np.asarray(y, dtype=np.float64), self.nodes) @ weights)

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
    low, high = target_range(y, distribution, TAIL)
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
