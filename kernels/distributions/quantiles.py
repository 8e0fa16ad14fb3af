"""Distributions given by some quantiles: quantile regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from congruence.kernels.arrays import Array, require_finite, to_numpy
from congruence.kernels.distributions.base import Distribution, Seed, align, align_levels
from congruence.kernels.distributions.quadrature import BLOCK_ENTRIES
from congruence.kernels.distributions.waves import average_wave
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.streams import stream


@dataclass(frozen=True)
class Quantiles(Distribution):
    """The law whose quantile function is linear between given points: ``values`` (n, L) at ``levels`` (L,), L >= 2.

    Tails: the first and the last segment continue at their slope to levels 0 and 1, so the support is bounded and the
    log score is infinite outside. Equal neighbours are a point of mass: then there is no density (``has_density``).
    Values that decrease with the level (crossing quantiles) are refused; ``Quantiles.rearranged`` sorts them first.
    """

    levels: Array
    values: Array

    def __post_init__(self) -> None:
        levels = np.asarray(to_numpy(self.levels, "Quantiles.levels"), dtype=np.float64)
        values = to_numpy(self.values, "Quantiles.values")
        if levels.ndim != 1 or len(levels) < 2 or not bool(np.all((levels > 0) & (levels < 1))):
            raise InvalidInputError(f"Quantiles.levels: {levels} must be two or more levels inside (0, 1)")
        if not bool(np.all(np.diff(levels) > 0)):
            raise InvalidInputError(
                f"Quantiles.levels: {levels} must increase strictly; sort levels and values together"
            )
        if values.dtype.kind not in "biuf" or values.ndim != 2 or values.shape[1] != len(levels):
            raise InvalidInputError(
                f"Quantiles.values: expected numbers of shape (n, {len(levels)}), one column per level, got "
                f"{values.dtype} of shape {values.shape}"
            )
        values = values.astype(np.float64)
        require_finite(values, "Quantiles.values")
        crossing = np.diff(values, axis=1) < 0
        if np.any(crossing):
            row, column = (int(i) for i in np.argwhere(crossing)[0])
            raise InvalidInputError(
                f"Quantiles.values: row {row} falls from {values[row, column]:g} at level {levels[column]:g} to "
                f"{values[row, column + 1]:g} at level {levels[column + 1]:g} ({int(crossing.any(axis=1).sum())} rows "
                "cross); use Quantiles.rearranged, which sorts each row, or a model whose quantiles do not cross"
            )
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "values", values)

    @classmethod
    def rearranged(cls, levels: Array, values: Array) -> Self:
        """Each row's values sorted: the nearest law to crossing quantiles (Chernozhukov et al. 2010)."""
        return cls(levels, np.sort(to_numpy(values), axis=1))

    @cached_property
    def points(self) -> tuple[Array, Array]:
        """Levels (L + 2,) from 0 to 1, and the quantile function at them (n, L + 2)."""
        levels, values = self.levels, self.values
        slopes = np.diff(values, axis=1) / np.diff(levels)
        first = values[:, :1] - slopes[:, :1] * levels[0]
        last = values[:, -1:] + slopes[:, -1:] * (1.0 - levels[-1])
        return np.concatenate([[0.0], levels, [1.0]]), np.concatenate([first, values, last], axis=1)

    @property
    def _segments(self) -> tuple[Array, Array, Array]:
        """Mass (L + 1,), left end and length (n, L + 1) of each linear piece."""
        levels, values = self.points
        return np.diff(levels), values[:, :-1], np.diff(values, axis=1)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> Self:
        """See Distribution."""
        return type(self)(self.levels, np.atleast_2d(self.values[rows]))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """See Distribution; all parts need the same levels."""
        if any(not np.array_equal(part.levels, parts[0].levels) for part in parts):
            raise InvalidInputError("Quantiles.concatenate: the parts have different levels")
        return cls(parts[0].levels, np.concatenate([part.values for part in parts]))

    def has_density(self) -> bool:
        """See Distribution."""
        return bool(np.all(self._segments[2] > 0))

    def log_prob(self, y: Any) -> Array:
        """See Distribution: the density is constant on each segment.

        Raises:
            InvalidInputError: equal neighbouring quantiles in a row, so no density.
        """
        mass, left, length = self._segments
        flat = ~np.all(length > 0, axis=1)
        if np.any(flat):
            row = int(np.argmax(flat))
            raise InvalidInputError(
                f"Quantiles.log_prob: row {row} repeats a value at neighbouring levels ({int(flat.sum())} rows do), so "
                "it has no density; leave the log score out, or use crps"
            )
        y, columns = align(y, len(self))
        y = y if columns else y[:, None]
        density = np.zeros(y.shape)
        for k, weight in enumerate(mass):
            start, size = left[:, k, None], length[:, k, None]
            density = np.where((y >= start) & (y <= start + size), weight / size, density)
        with np.errstate(divide="ignore"):
            result = np.log(density)
        return result if columns else result[:, 0]

    def cdf(self, y: Any) -> Array:
        """See Distribution."""
        return self._below(y, np.greater_equal)

    def cdf_left(self, y: Any) -> Array:
        """See Distribution."""
        return self._below(y, np.greater)

    def _below(self, y: Any, passed: np.ufunc) -> Array:
        y, columns = align(y, len(self))
        y = y if columns else y[:, None]
        total = np.zeros(y.shape)
        for weight, left, length in zip(self._segments[0], self._segments[1].T, self._segments[2].T, strict=True):
            start, size = left[:, None], length[:, None]
            share = np.clip((y - start) / np.where(size > 0, size, 1.0), 0.0, 1.0)
            total += weight * np.where(size > 0, share, passed(y, start))
        return np.minimum(total, 1.0) if columns else np.minimum(total[:, 0], 1.0)

    def quantile(self, q: Any) -> Array:
        """See Distribution."""
        q, columns = align_levels(q, len(self))
        q = q if columns else q[:, None]
        levels, values = self.points
        k = np.clip(np.searchsorted(levels, q) - 1, 0, len(levels) - 2)
        share = (q - levels[k]) / (levels[k + 1] - levels[k])
        left, right = np.take_along_axis(values, k, axis=1), np.take_along_axis(values, k + 1, axis=1)
        result = left + share * (right - left)
        return np.asarray(result if columns else result[:, 0])

    def mean(self) -> Array:
        """See Distribution."""
        mass, left, length = self._segments
        return np.asarray((left + length / 2.0) @ mass)

    def std(self) -> Array:
        """See Distribution."""
        mass, left, length = self._segments
        centered = left + length / 2.0 - self.mean()[:, None]
        return np.sqrt((centered**2 + length**2 / 12.0) @ mass)

    def sample(self, size: int, seed: Seed = 0) -> Array:
        """See Distribution."""
        return self.quantile(stream(seed, "samples").random((len(self), size)))

    def crps(self, y: Any) -> Array:
        """See Distribution; exact: E |Y - y| segment by segment, and E |Y - Y'| / 2 = integral of (2 p - 1) Q(p)."""
        y, columns = align(y, len(self))
        y = y if columns else y[:, None]
        levels, values = self.points
        mass, left, length = self._segments
        deviation = np.zeros(y.shape)
        for k, weight in enumerate(mass):
            half = length[:, k, None] / 2.0
            distance = np.abs(y - left[:, k, None] - half)
            inside = (distance**2 + half**2) / np.where(half > 0, 2.0 * half, 1.0)
            deviation += weight * np.where(distance < half, inside, distance)
        centered = values - self.mean()[:, None]
        middle = (centered[:, 1:] + centered[:, :-1]) / 2.0
        rise = 2.0 * levels - 1.0
        ends = centered * rise
        simpson = (ends[:, 1:] + ends[:, :-1] + 4.0 * middle * (rise[1:] + rise[:-1]) / 2.0) / 6.0
        scores = np.maximum(deviation - (simpson @ mass)[:, None], 0.0)
        return np.asarray(scores if columns else scores[:, 0])

    def knots(self) -> Array:
        """See Distribution: the ends of the segments."""
        return self.points[1]

    def characteristic_function(self, t: Array) -> Array:
        """See Distribution: each segment is a uniform law."""
        mass, left, length = self._segments
        half = length / 2.0
        return average_wave(left + half, mass, t, half_widths=half)

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        """See Distribution: Gauss-Legendre nodes on each segment, 128 or more in all."""
        points, weights = np.polynomial.legendre.leggauss(max(8, 128 // (len(self.levels) + 1)))
        mass, left, length = self._segments
        values = (left[:, :, None] + length[:, :, None] * (points + 1.0) / 2.0).reshape(len(self), -1)
        weight = np.multiply.outer(mass, weights / 2.0).ravel()
        result = np.empty((len(self), len(nodes)))
        block = max(1, BLOCK_ENTRIES // (len(weight) * max(1, len(nodes))))
        for start in range(0, len(self), block):
            chosen = values[start : start + block]
            gram = np.asarray(kernel(chosen.ravel(), nodes)).reshape(len(chosen), len(weight), len(nodes))
            result[start : start + block] = np.einsum("ikr,k->ir", gram, weight)
        return result
