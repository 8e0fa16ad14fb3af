"""Masses on points of each row: their expectations, the smooth densities of their log scores, and energy scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from congruence.kernels.arrays import Array, row_slices, to_numpy
from congruence.kernels.distributions.base import refuse
from congruence.kernels.distributions.quadrature import BLOCK_ENTRIES
from congruence.kernels.distributions.scalar import ScalarDistribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.product_forms import average_wave

_LOG_AT_0 = float(np.log(2.0 / (np.pi * np.sqrt(3.0))))  # of the density of Student's t with 3 degrees of freedom


class PointMasses(ScalarDistribution):
    """A family gives ``_atoms``, ``_shares`` and ``_quartiles``, and what needs an order of its points."""

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
    def _smoothed(self) -> SmoothedPoints:
        spread = self.std()
        if not np.all(spread > 0):
            row = int(np.argmin(spread > 0))
            raise InvalidInputError(
                f"{type(self).__name__}.log_prob: row {row} has all its mass on {self.mean()[row]:g} "
                f"({int(np.sum(spread == 0))} rows do), so it has no density; leave the log score out, use crps, or "
                "let the model return its distribution instead of draws of its mean"
            )
        lower, upper = self._quartiles()
        return SmoothedPoints.of(self._atoms, self._shares, spread, upper - lower)

    def _log_prob(self, y: Array) -> Array:
        """Log of the density that the points are smoothed to, see ``SmoothedPoints``.

        Raises:
            InvalidInputError: a row has all its mass on one point.
        """
        return self._smoothed._log_prob(y)

    def log_mass(self, low: Array, high: Array) -> Array:
        """See Distribution: of the density that the points are smoothed to."""
        return self._smoothed.log_mass(low, high)

    def breaks(self) -> Array:
        """See Distribution: the points; vectors have none."""
        atoms = self._atoms
        return np.broadcast_to(atoms, (len(self), atoms.shape[1])) if self.dimension == 1 else super().breaks()

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


@dataclass(frozen=True)
class SmoothedPoints(ScalarDistribution):
    """Points (1 or n, m) with ``weights`` (1 or n, m), each smoothed.

    By the density of Student's t with 3 degrees of freedom and ``bandwidth`` (n,). Normal tails made the score of an
    outcome beyond all points grow with the square of its distance, and one row of twenty thousand decide their mean.
    """

    points: Array
    weights: Array
    bandwidth: Array

    @classmethod
    def of(cls, points: Array, weights: Array, spread: Array, quartiles_apart: Array) -> Self:
        """With Silverman's bandwidth .9 min(std, IQR / 1.34) l^(-1/5), l the effective number of points."""
        robust = np.where(quartiles_apart > 0.0, quartiles_apart / 1.34, spread)
        return cls(points, weights, 0.9 * np.minimum(spread, robust) * np.sum(weights**2, axis=1) ** 0.2)

    def __len__(self) -> int:
        return len(self.bandwidth)

    def __getitem__(self, rows: Any) -> Self:
        points, weights = (part if len(part) < len(self) else part[rows] for part in (self.points, self.weights))
        return type(self)(points, weights, self.bandwidth[rows])

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        shapes = [(len(part), part.points.shape[1]) for part in parts]
        points = [np.broadcast_to(part.points, shape) for part, shape in zip(parts, shapes, strict=True)]
        weights = [np.broadcast_to(part.weights, shape) for part, shape in zip(parts, shapes, strict=True)]
        return cls(np.concatenate(points), np.concatenate(weights), np.concatenate([part.bandwidth for part in parts]))

    def _averaged(self, y: Array, kernel: Any) -> Array:
        """The weighted mean of ``kernel`` over the points, at values y (n, k)."""
        result = np.empty(y.shape)
        for rows in row_slices(len(self), BLOCK_ENTRIES // self.points.shape[1]):
            some = self[rows]
            for column in range(y.shape[1]):
                each = kernel((y[rows, column, None] - some.points) / some.bandwidth[:, None])
                result[rows, column] = np.sum(some.weights * each, axis=1)
        return result

    def _log_prob(self, y: Array) -> Array:
        density = self._averaged(y, lambda z: (1.0 + z * z / 3.0) ** -2.0)
        return np.asarray(np.log(density) + _LOG_AT_0 - np.log(self.bandwidth)[:, None])

    def _cdf(self, y: Array) -> Array:
        return self._averaged(y, _cdf)


def _cdf(z: Array) -> Array:
    """Of Student's t with 3 degrees of freedom."""
    root = z / np.sqrt(3.0)
    return np.asarray(0.5 + (root / (1.0 + root**2) + np.arctan(root)) / np.pi)


def as_vectors(y: Any, n: int, dimension: int) -> Array:
    """Targets as (n, q) float64.

    Raises:
        InvalidInputError: another shape.
    """
    array = np.asarray(to_numpy(y, "y"), dtype=np.float64)
    if array.shape != (n, dimension):
        raise InvalidInputError(f"y: shape {array.shape} does not fit {n} rows of {dimension} targets")
    return array


def energy_score(draws: Array, y: Array, apart: Array) -> Array:
    """E |Y - y| - E |Y - Y'| / 2 with Euclidean norms, from draws (n, l, q), y (n, q) and ``mean_distance``: (n,).

    The CRPS of vectors (Gneiting and Raftery 2007, equation 22).
    """
    n, size, dimension = draws.shape
    to_target = np.empty(n)
    for rows in row_slices(n, BLOCK_ENTRIES // (size * dimension)):
        to_target[rows] = np.linalg.norm(draws[rows] - y[rows, None, :], axis=2).mean(axis=1)
    return np.asarray(to_target - 0.5 * apart)


def mean_distance(draws: Array, *, fair: bool) -> Array:
    """E |Y - Y'| of draws (n, l, q), shape (n,).

    Exact for the empirical distribution of the draws, or, if ``fair``, unbiased for the distribution behind them: pairs
    of two different draws alone count. One draw has no pairs.
    """
    n, size, dimension = draws.shape
    result = np.empty(n)
    correction = size / max(size - 1, 1) if fair else 1.0
    for rows in row_slices(n, BLOCK_ENTRIES // (size * size * dimension)):
        values = draws[rows]
        apart = np.linalg.norm(values[:, :, None, :] - values[:, None, :, :], axis=3).mean(axis=(1, 2))
        result[rows] = correction * apart
    return result
