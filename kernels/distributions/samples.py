"""Masses on the values of each row: draws (ensembles, dropout, posteriors), point forecasts, and weights on points."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from congruence.kernels.arrays import (
    Array,
    align_levels,
    as_numbers,
    average_wave,
    require_targets,
    row_slices,
    to_numpy,
)
from congruence.kernels.distributions import quadrature
from congruence.kernels.distributions.base import ByRows, Distribution, Seed, Uniforms, refuse
from congruence.kernels.distributions.expectations import BLOCK_ENTRIES, energy_score, mean_distance
from congruence.kernels.distributions.piecewise import (
    PiecewiseLinear,
    count_below,
    cumulative,
    require_masses,
    require_points,
)
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.rng import stream

FEWEST_SCORED = 5
"""Draws; fewer have no log score."""

# By simulation, the mean log score of so many smoothed draws of a normal distribution less its entropy:
_DRAWS = (5, 6, 7, 8, 9, 10, 12, 15, 20, 30, 50, 70, 100, 200, 500, 1000, 3000)
_EXCESS = (
    0.4676, 0.3008, 0.2326, 0.2006, 0.1906, 0.1615, 0.1329, 0.1081, 0.0860, 0.0643, 0.0456, 0.0368, 0.0296, 0.0190,
    0.0108, 0.0070, 0.0035,
)  # fmt: skip
_LOG_AT_0 = float(np.log(2.0 / (np.pi * np.sqrt(3.0))))  # of the density of Student's t with 3 degrees of freedom
_SMALLEST = float(np.finfo(np.float64).tiny)


class PointMasses(ByRows):
    """Masses on points of each row: a family gives ``_atoms``, ``_shares``, ``_quartiles``, and what needs an order.

    Log scores are those of a density: each point is smoothed by Student's t with 3 degrees of freedom. Normal tails
    made the score of an outcome beyond all points grow with the square of its distance, and one row of twenty thousand
    decide their mean.
    """

    @property
    @abstractmethod
    def _atoms(self) -> Array:
        """The points, (1 or n, l), or (n, l, q) for vector targets."""

    @property
    @abstractmethod
    def _shares(self) -> Array:
        """Their masses, (1 or n, l)."""

    @abstractmethod
    def _quartiles(self) -> Array:
        """The lower and the upper quartile, (2, n)."""

    def has_density(self) -> bool:
        """See Distribution; rows without spread have none."""
        return bool(np.all(self.std() > 0))

    @cached_property
    def _bandwidth(self) -> Array:
        """Silverman's .9 min(std, IQR / 1.34) l^(-1/5), l the effective number of points, (n, 1).

        Raises:
            InvalidInputError: a row has all its mass on one point.
        """
        spread = self.std()
        if not np.all(spread > 0):
            row = int(np.argmin(spread > 0))
            raise InvalidInputError(
                f"{type(self).__name__}.log_prob: row {row} has all its mass on {self.mean()[row]:g} "
                f"({int(np.sum(spread == 0))} rows do), so it has no density; leave the log score out, use crps, or "
                "let the model return its distribution instead of draws of its mean"
            )
        lower, upper = self._quartiles()
        robust = np.where(upper > lower, (upper - lower) / 1.34, spread)
        effective = np.sum(self._shares**2, axis=1) ** -1.0
        return np.asarray(0.9 * np.minimum(spread, robust) * effective**-0.2)[:, None]

    def _log_prob(self, y: Array) -> Array:
        """Log of the density that the points are smoothed to.

        Raises:
            InvalidInputError: a row has all its mass on one point.
        """
        density = self._smoothed(y, lambda z: (1.0 + z * z / 3.0) ** -2.0)
        return np.asarray(np.log(density) + _LOG_AT_0 - np.log(self._bandwidth))

    def log_mass(self, low: Array, high: Array) -> Array:
        """See Distribution: of the density that the points are smoothed to."""
        return quadrature.log_mass(self, low, high, lambda y: self._smoothed(y[:, None], _student_cdf)[:, 0])

    def _smoothed(self, y: Array, kernel: Callable[[Array], Array]) -> Array:
        """The weighted mean of ``kernel`` over the points in bandwidths from values y (n, k), (n, k)."""
        atoms, shares, bandwidth, result = self._atoms, self._shares, self._bandwidth, np.empty(y.shape)
        for rows in row_slices(len(self), BLOCK_ENTRIES // atoms.shape[1]):
            points, weights = (part if len(part) < len(self) else part[rows] for part in (atoms, shares))
            for column in range(y.shape[1]):
                each = kernel((y[rows, column, None] - points) / bandwidth[rows])
                result[rows, column] = np.sum(weights * each, axis=1)
        return result

    def breaks(self) -> Array:
        """See Distribution: the points."""
        return np.broadcast_to(self._atoms, (len(self), self._atoms.shape[1]))

    def knots(self) -> Array:
        """See Distribution: the points."""
        return np.sort(self.breaks(), axis=1)

    def characteristic_function(self, t: Array) -> Array:
        """See Distribution: the weighted mean over the points."""
        if self.dimension > 1:
            refuse(type(self).__name__, "characteristic_function", self.dimension)
        t, atoms, shares = np.asarray(t, dtype=np.float64), self._atoms, self._shares
        if len(atoms) < len(self):
            return np.asarray(shares @ np.exp(1j * np.multiply.outer(atoms[0], t)))
        return average_wave(atoms, shares[0] if len(shares) < len(self) else shares, t)

    def raw_moments(self, order: int) -> Array:
        """See Distribution: weighted means of powers."""
        atoms, shares = self._atoms, self._shares
        return np.stack([np.einsum("il,il...->i...", shares, atoms**k) for k in range(order + 1)], axis=1)

    def _expected_diagonal(self, kernel: Kernel) -> Array:
        atoms = self._atoms
        diagonal = np.asarray(kernel.diagonal(atoms.reshape(-1, *atoms.shape[2:])))
        return np.asarray(np.sum(self._shares * diagonal.reshape(atoms.shape[:2]), axis=1))

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        """See Distribution: the weighted mean over the points; nodes (r,) or (r, q)."""
        atoms, shares = self._atoms, self._shares
        if len(atoms) < len(self):
            return np.asarray(shares @ np.asarray(kernel(atoms[0], nodes)))
        result = np.empty((len(self), len(nodes)))
        for rows in row_slices(len(self), BLOCK_ENTRIES // (atoms.shape[1] * max(1, len(nodes)))):
            gram = np.asarray(kernel(atoms[rows].reshape(-1, *atoms.shape[2:]), nodes))
            of_rows = shares if len(shares) < len(self) else shares[rows]
            result[rows] = np.sum(of_rows[:, :, None] * gram.reshape(-1, atoms.shape[1], len(nodes)), axis=1)
        return result


def _student_cdf(z: Array) -> Array:
    """Of Student's t with 3 degrees of freedom."""
    root = z / np.sqrt(3.0)
    return np.asarray(0.5 + (root / (1.0 + root**2) + np.arctan(root)) / np.pi)


class Empirical(PointMasses):
    """Mass 1/l on each of l values a row, ``_atoms`` (n, l) or (n, l, q): a dataclass of one array."""

    @property
    def _shares(self) -> Array:
        return np.full((1, self._size), 1.0 / self._size)

    def _quartiles(self) -> Array:
        return np.asarray(np.quantile(self._atoms, [0.25, 0.75], axis=1))

    @property
    def _size(self) -> int:
        return int(self._atoms.shape[1])

    @cached_property
    def _sorted(self) -> Array:
        return np.sort(self._atoms, axis=1)

    @property
    def dimension(self) -> int:
        return 1 if self._atoms.ndim == 2 else int(self._atoms.shape[2])

    def translated(self, by: float) -> Self:
        return type(self)(*(held + by for held in self.parameters().values()))

    def _cdf(self, y: Array) -> Array:
        return count_below(self._sorted, y, or_equal=True) / self._size

    def _cdf_left(self, y: Array) -> Array:
        return count_below(self._sorted, y, or_equal=False) / self._size

    def _quantile(self, q: Array) -> Array:
        """The smallest value with at least a share q at or below it."""
        # A level k / l computed in floating point must give the k-th value, not the next one.
        index = np.clip(np.ceil(q * self._size - 1e-9).astype(np.int64) - 1, 0, self._size - 1)
        return np.take_along_axis(self._sorted, index, axis=1)

    def mean(self) -> Array:
        """See Distribution; (n,), or (n, q) for vectors."""
        return np.asarray(self._atoms.mean(axis=1))

    def sample(self, size: int, seed: Seed = 0) -> Array:
        """``size`` draws with replacement from each row's values, (n, size) or (n, size, q)."""
        index = stream(seed, "samples").integers(self._size, size=(len(self), size))
        return np.asarray(self._atoms[np.arange(len(self))[:, None], index])

    def sample_by(self, uniforms: Uniforms, size: int) -> Array:
        """See Distribution: each draw one of the values."""
        index = (uniforms(size, "") * self._size).astype(np.intp)
        return np.asarray(self._atoms[np.arange(len(self))[:, None], index])

    def marginal(self, column: int) -> Distribution | None:
        values = next(iter(self.parameters().values()))
        return type(self)(*[values[..., column]]) if self.dimension > 1 else super().marginal(column)

    def crps(self, y: Any) -> Array:
        """The fair CRPS: mean_k |x_k - y| - sum_jk |x_j - x_k| / (2 l (l - 1)), (n, l log l); for l = 1 |x - y|.

        Its mean over draws is the CRPS of the distribution behind them (Ferro 2014), so that ensembles of different
        sizes compare; it may be slightly negative. For vectors the fair energy score.
        """
        if self.dimension > 1:
            return energy_score(self._atoms, as_vectors(y, len(self), self.dimension), self._apart)
        return super().crps(y)

    def _crps(self, y: Array) -> Array:
        deviation = np.stack([np.mean(np.abs(self._sorted - column[:, None]), axis=1) for column in y.T], axis=1)
        return np.asarray(deviation - self._half_difference[:, None])

    @property
    def _half_difference(self) -> Array:
        """Half the mean distance of two different values of a row, (n,)."""
        size = self._size
        ranks = (2.0 * np.arange(1, size + 1) - size - 1.0) / (size * max(size - 1, 1))
        return np.asarray((self._sorted - self.mean()[:, None]) @ ranks)

    @cached_property
    def _apart(self) -> Array:
        """Mean distance of two different values of a row, vectors, (n,)."""
        return mean_distance(self._atoms, fair=True)


@dataclass(frozen=True, repr=False)
class Samples(Empirical):
    """l exchangeable draws of each row's predictive distribution: ``values`` (n, l), or (n, l, q) for vector targets.

    Scores judge the distribution behind the draws, not the draws' own empirical distribution, which even a perfect
    ensemble is not: ``crps`` is the fair one, ``std`` is of the unbiased variance (ddof 1), ``pit_range`` the share of
    a rank among l + 1, and ``predictive_quantile`` an order statistic k at level k / (l + 1). One target of shape (n,
    l, 1) is the same as (n, l).

    ``cdf``, ``quantile``, ``mean``, ``sample``, ``characteristic_function`` and ``kernel_expectation`` are
    those of the empirical distribution, mass 1/l on each value; the mean and the expectations are unbiased for the
    distribution behind. ``log_prob`` is that of the values smoothed. Rows without spread have none, and fewer than five
    draws say too little of a density to be scored: ``has_density`` says so.
    """

    values: Array

    def __post_init__(self) -> None:
        values = as_numbers(self.values, "Samples.values", "(n, l) or (n, l, q)", 2, 3)
        if 0 in values.shape[1:]:
            raise InvalidInputError(f"Samples.values: expected shape (n, l) or (n, l, q), got {values.shape}")
        if values.ndim == 3 and values.shape[2] == 1:
            values = values[:, :, 0]
        self._hold(values=values)

    @property
    def _atoms(self) -> Array:
        return self.values

    @property
    def draws(self) -> Array:
        return self.values

    def has_density(self) -> bool:
        scored = self.dimension == 1 and self.values.shape[1] >= FEWEST_SCORED
        return scored and super().has_density()

    @property
    def log_score_excess(self) -> float:
        """See Distribution: of draws of a normal distribution, whatever its mean and spread."""
        size = self.values.shape[1]
        return float(np.exp(np.interp(np.log(size), np.log(_DRAWS), np.log(_EXCESS)))) if size < _DRAWS[-1] else 0.0

    def pit_range(self, y: Any) -> tuple[Array, Array]:
        """See Distribution: [r, r + e + 1] / (l + 1), for r draws below y and e equal to it.

        If y is one more draw, its rank among l + 1 is uniform, ties broken at random (Hamill 2001; Gneiting et al.
        2007).
        """
        counts = (partial(count_below, self._sorted, or_equal=either) for either in (False, True))
        below, at_most = (self._shaped(count, "cdf", y) for count in counts)
        places = self.values.shape[1] + 1.0
        return below / places, (at_most + 1.0) / places

    def predictive_quantile(self, q: Any) -> Array:
        """See Distribution: the k-th smallest draw at k / (l + 1), linear between (Hyndman and Fan 1996, type 6).

        Levels below 1 / (l + 1) and above l / (l + 1) have the smallest and the largest draw: l draws know no more.
        """
        return self._shaped(self._between_draws, "quantile", q, align_levels)

    def _between_draws(self, q: Array) -> Array:
        size = self.values.shape[1]
        position = np.clip(q * (size + 1.0) - 1.0, 0.0, size - 1.0)
        lower = np.floor(position).astype(np.int64)
        ends = (np.take_along_axis(self._sorted, np.minimum(k, size - 1), axis=1) for k in (lower, lower + 1))
        first, last = ends
        return np.asarray(first + (position - lower) * (last - first))

    def std(self) -> Array:
        """The root of the unbiased variance of the distribution behind the draws (ddof 1); 0 for one draw."""
        return np.asarray(self.values.std(axis=1, ddof=min(1, self.values.shape[1] - 1)))


@dataclass(frozen=True, repr=False)
class Deterministic(Empirical):
    """All mass on ``value`` (n,), or (n, q) for vector targets. Its CRPS is the absolute error; it has no density."""

    states_tails = False

    value: Array

    def __post_init__(self) -> None:
        self._hold(value=require_targets(np.atleast_1d(self.value), "Deterministic.value"))

    @property
    def _atoms(self) -> Array:
        return self.value[:, None]

    def has_density(self) -> bool:
        return False

    def _log_prob(self, y: Any) -> NoReturn:  # noqa: ARG002
        """Raises InvalidInputError: a point forecast has no density."""
        raise InvalidInputError(
            "Deterministic.log_prob: a point forecast has no density, so no log score; use crps (here the absolute "
            "error), or let the model return a distribution"
        )

    log_prob = _log_prob  # of vectors, too
    log_mass = Distribution.log_mass  # which is that of the cdf

    def std(self) -> Array:
        """See Distribution: 0."""
        return np.zeros_like(self.value)


@dataclass(frozen=True, repr=False)
class WeightedSamples(PointMasses, PiecewiseLinear):
    """Mass ``weights`` (n, m) on the points ``support`` (m,), which the rows share, or (n, m).

    A distribution that is known, unlike the draws of ``Samples``: scores, PIT and quantiles are those of the weighted
    distribution. The points may repeat. Weights must be at least 0 and sum to 1 within 1e-4, and are then normalised.

    ``log_prob`` is that of the values smoothed. Rows without spread have none: ``has_density`` says so.
    """

    states_tails = False
    _shared_points: ClassVar[tuple[str, ...]] = ("support",)

    support: Array
    weights: Array

    def __post_init__(self) -> None:
        support = require_points(self.support, "WeightedSamples.support")
        weights = require_masses(self.weights, "WeightedSamples.weights")
        if support.shape not in (weights.shape[1:], weights.shape):
            raise InvalidInputError(
                f"WeightedSamples.support: shape {support.shape} does not fit weights of shape {weights.shape}; "
                f"expected ({weights.shape[1]},), or {weights.shape} where each row has its own points"
            )
        if np.any(np.diff(support) < 0):
            order = np.argsort(support, axis=-1, kind="stable")
            support = np.take_along_axis(support, order, axis=-1)
            weights = np.take_along_axis(weights, np.broadcast_to(order, weights.shape), axis=1)
        self._hold(support=support, weights=weights)

    @property
    def _atoms(self) -> Array:
        return np.atleast_2d(self.support)

    @property
    def _shares(self) -> Array:
        return self.weights

    @cached_property
    def _points(self) -> Array:
        """Each point twice, so that F jumps there."""
        return np.repeat(self._atoms, 2, axis=1)

    @cached_property
    def _levels(self) -> Array:
        return np.repeat(cumulative(self.weights), 2, axis=1)[:, 1:-1]

    def _quartiles(self) -> Array:
        return self.quantile(np.array([[0.25, 0.75]])).T

    def _quantile(self, q: Array) -> Array:
        """The smallest point with at least the mass q at or below it."""
        # A level that is a sum of weights, computed in floating point, must give its own point, not the next one; and
        # at level 0 a point without mass is not the answer.
        return super()._quantile(np.maximum(q - 1e-12, _SMALLEST))

    def std(self) -> Array:
        return np.where(np.max(self.weights, axis=1) == 1.0, 0.0, super().std())


def as_vectors(y: Any, n: int, dimension: int) -> Array:
    """Targets as (n, q) float64.

    Raises:
        InvalidInputError: another shape.
    """
    array = np.asarray(to_numpy(y, "y"), dtype=np.float64)
    if array.shape != (n, dimension):
        raise InvalidInputError(f"y: shape {array.shape} does not fit {n} rows of {dimension} targets")
    return array
