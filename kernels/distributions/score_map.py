"""The map of levels of a recalibrated distribution: G(u) = H(Phi((Phi^-1(u) - b) / c)), row by row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import ndtr, ndtri

from congruence.kernels.arrays import Array, RowFields, as_rows, equal_rows, require_parameter
from congruence.kernels.distributions.piecewise import count_below, pick
from congruence.kernels.errors import InvalidInputError

_MAP = "NormalScoreMap"


@dataclass(frozen=True)
class NormalScoreMap(RowFields):
    """G_i of n rows.

    Attributes:
        shift: b, (n,), in normal scores: predicted standard deviations where the distribution is normal.
        factor: c > 0, (n,).
        levels: v, increasing from 0 to 1, (L,), L >= 2.
        shares: H_i(v), strictly increasing from 0 to 1, (n, L).
    """

    _shared: ClassVar[tuple[str, ...]] = ("levels",)

    shift: Array
    factor: Array
    levels: Array = field(repr=False)
    shares: Array = field(repr=False)

    def __post_init__(self) -> None:
        shift, factor = (as_rows(getattr(self, name), name, _MAP) for name in ("shift", "factor"))
        levels = np.asarray(self.levels, dtype=np.float64)
        shares = np.atleast_2d(np.asarray(self.shares, dtype=np.float64))
        if levels.ndim != 1 or shares.shape[1:] != levels.shape or not _rises(levels[None, :]).all():
            raise InvalidInputError(
                f"{_MAP}: levels {levels.shape} and shares {shares.shape}; expected levels rising from 0 to 1 "
                "and one column of shares for each"
            )
        rising = _rises(shares)
        if not rising.all():
            row = int(np.argmin(rising))
            raise InvalidInputError(
                f"{_MAP}.shares: row {row} does not increase strictly from 0 to 1 ({int(np.sum(~rising))} of "
                f"{len(shares)} rows do not); sort it and mix it with the levels themselves"
            )
        shift, factor, shares = equal_rows(_MAP, shift=shift, factor=factor, shares=shares)
        require_parameter(factor > 0, factor, "factor", _MAP, "a positive number")
        for name, value in (("shift", shift), ("factor", factor), ("levels", levels), ("shares", shares)):
            object.__setattr__(self, name, value)

    @classmethod
    def affine(cls, shift: Any, factor: Any) -> Self:
        """Without a correction of shape."""
        return cls(shift, factor, np.array([0.0, 1.0]), np.array([[0.0, 1.0]]))

    @property
    def changes_shape(self) -> bool:
        """Whether H is anything but the identity."""
        return bool(np.any(np.abs(self.shares - self.levels) > 0.0))

    @property
    def is_identity(self) -> bool:
        """Whether no row is changed."""
        return not self.changes_shape and bool(np.all(self.shift == 0.0) and np.all(self.factor == 1.0))

    def standardised(self, z: Array) -> Array:
        """(z - b) / c for normal scores z (n, k)."""
        return np.asarray((z - self.shift[:, None]) / self.factor[:, None])

    def below(self, z: Array) -> Array:
        """G(Phi(z)) for normal scores z (n, k)."""
        return _interpolated(ndtr(self.standardised(z)), self.levels[None, :], self.shares)

    def above(self, z: Array) -> Array:
        """1 - G(Phi(z)) with the digits of small numbers."""
        return _interpolated(ndtr(-self.standardised(z)), *self._mirrored)

    @property
    def _mirrored(self) -> tuple[Array, Array]:
        """1 - v and 1 - H(v), which keep the digits that v has lost near 1."""
        return 1.0 - self.levels[None, ::-1], 1.0 - self.shares[:, ::-1]

    def log_slope(self, z: Array) -> Array:
        """log of dG(Phi(z)) / dz over the standard normal density's own constant: log h(v) - t^2 / 2 - log c."""
        t = self.standardised(z)
        density = np.diff(self.shares, axis=1) / np.diff(self.levels)
        chosen = pick(density, _segment(self.levels[None, :], ndtr(t)))
        return np.asarray(np.log(chosen) - 0.5 * t * t - np.log(self.factor)[:, None])

    def log_between(self, low: Array, high: Array) -> Array:
        """log of G(Phi(high)) - G(Phi(low)), on the side where both are small; for normal scores (n, k)."""
        below, above = self.below(high) - self.below(low), self.above(low) - self.above(high)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.maximum(np.where(self.standardised(low) > 0.0, above, below), 0.0)))

    def inverse(self, p: Array) -> Array:
        """The normal score z with G(Phi(z)) = p, for p (n, k)."""
        low = _interpolated(p, self.shares, self.levels[None, :])
        high = _interpolated(1.0 - p, *self._mirrored[::-1])
        return np.asarray(self.shift[:, None] + self.factor[:, None] * normal_scores(low, high))


def _segment(points: Array, x: Array) -> Array:
    """The number of the segment between ``points`` (1 or n, L) in which values x (n, k) lie."""
    return np.asarray(np.clip(count_below(points, x, or_equal=True) - 1, 0, points.shape[1] - 2))


def _interpolated(x: Array, points: Array, values: Array) -> Array:
    """The function that has the ``values`` at ``points``, (1 or n, L) each, and is linear between, at x (n, k)."""
    k = _segment(points, x)
    start, low = pick(points, k), pick(values, k)
    return np.asarray(low + (x - start) / (pick(points, k + 1) - start) * (pick(values, k + 1) - low))


def _rises(rows: Array) -> Array:
    """Whether each row (n, L) increases strictly from 0 to 1."""
    ends = (rows[:, 0] == 0.0) & (rows[:, -1] == 1.0)
    return np.asarray(ends & np.all(np.diff(rows, axis=1) > 0.0, axis=1))


def normal_scores(level: Array, above: Array) -> Array:
    """Phi^-1 of levels known from both ends."""
    return np.asarray(np.where(level <= 0.5, ndtri(level), -ndtri(above)))
