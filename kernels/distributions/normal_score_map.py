r"""A monotone map of levels, row by row: how a predicted level u is to be read if the model is recalibrated.

.. math::  G_i(u) = H_i\big(\Phi((\Phi^{-1}(u) - b_i) / c_i)\big)

b moves and c stretches the distribution in normal scores, so that a distribution that is c times too narrow becomes
right in its tails, too; H, piecewise linear and strictly increasing from 0 to 1, corrects the shape. b = 0, c = 1 and
H(v) = v change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from scipy.special import ndtr, ndtri

from congruence.kernels.arrays import Array, as_rows, equal_rows, require_parameter
from congruence.kernels.errors import InvalidInputError

_FAMILY = "NormalScoreMap"
IDENTITY_LEVELS = np.array([0.0, 1.0])


@dataclass(frozen=True)
class NormalScoreMap:
    """G_i of n rows.

    Attributes:
        shift: b, (n,), in normal scores: predicted standard deviations where the distribution is normal.
        factor: c > 0, (n,).
        levels: v, increasing from 0 to 1, (L,), L >= 2.
        shares: H_i(v), strictly increasing from 0 to 1, (n, L).
    """

    shift: Array
    factor: Array
    levels: Array = field(repr=False)
    shares: Array = field(repr=False)

    def __post_init__(self) -> None:
        shift, factor = (as_rows(getattr(self, name), name, _FAMILY) for name in ("shift", "factor"))
        levels = np.asarray(self.levels, dtype=np.float64)
        shares = np.atleast_2d(np.asarray(self.shares, dtype=np.float64))
        if levels.ndim != 1 or shares.shape[1:] != levels.shape or not _rises(levels[None, :]).all():
            raise InvalidInputError(
                f"{_FAMILY}: levels {levels.shape} and shares {shares.shape}; expected levels rising from 0 to 1 "
                "and one column of shares for each"
            )
        rising = _rises(shares)
        if not rising.all():
            row = int(np.argmin(rising))
            raise InvalidInputError(
                f"{_FAMILY}.shares: row {row} does not increase strictly from 0 to 1 ({int(np.sum(~rising))} of "
                f"{len(shares)} rows do not); sort it and mix it with the levels themselves"
            )
        shift, factor, shares = equal_rows(_FAMILY, shift=shift, factor=factor, shares=shares)
        require_parameter(factor > 0, factor, "factor", _FAMILY, "a positive number")
        for name, value in (("shift", shift), ("factor", factor), ("levels", levels), ("shares", shares)):
            object.__setattr__(self, name, value)

    @classmethod
    def affine(cls, shift: Any, factor: Any) -> Self:
        """Without a correction of shape."""
        return cls(shift, factor, IDENTITY_LEVELS, IDENTITY_LEVELS[None, :])

    def __len__(self) -> int:
        return len(self.shift)

    def __getitem__(self, rows: Any) -> Self:
        """The maps of some rows."""
        shift, factor = np.atleast_1d(self.shift[rows]), np.atleast_1d(self.factor[rows])
        return type(self)(shift, factor, self.levels, np.atleast_2d(self.shares[rows]))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """The rows of ``parts`` one after another; all need the same levels."""
        if any(not np.array_equal(part.levels, parts[0].levels) for part in parts):
            raise InvalidInputError(f"{_FAMILY}.concatenate: the parts have different levels")
        columns = [np.concatenate([getattr(part, name) for part in parts]) for name in ("shift", "factor", "shares")]
        return cls(columns[0], columns[1], parts[0].levels, columns[2])

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
        return self._shared(ndtr(self.standardised(z)), self.levels, self.shares)

    def above(self, z: Array) -> Array:
        """1 - G(Phi(z)) with the digits of small numbers."""
        return self._shared(ndtr(-self.standardised(z)), 1.0 - self.levels[::-1], 1.0 - self.shares[:, ::-1])

    def log_slope(self, z: Array) -> Array:
        """log of dG(Phi(z)) / dz over the standard normal density's own constant: log h(v) - t^2 / 2 - log c."""
        t = self.standardised(z)
        density = np.diff(self.shares, axis=1) / np.diff(self.levels)
        chosen = np.take_along_axis(density, self._segment(ndtr(t), self.levels), axis=1)
        return np.asarray(np.log(chosen) - 0.5 * t * t - np.log(self.factor)[:, None])

    def log_between(self, low: Array, high: Array) -> Array:
        """log of G(Phi(high)) - G(Phi(low)), on the side where both are small; for normal scores (n, k)."""
        below, above = self.below(high) - self.below(low), self.above(low) - self.above(high)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.maximum(np.where(self.standardised(low) > 0.0, above, below), 0.0)))

    def inverse(self, p: Array) -> Array:
        """The normal score z with G(Phi(z)) = p, for p (n, k)."""
        low = self._level(p, self.levels, self.shares)
        # Above the median from the other end: 1 - v keeps the digits that v has lost.
        high = self._level(1.0 - p, 1.0 - self.levels[::-1], 1.0 - self.shares[:, ::-1])
        t = np.where(low <= 0.5, ndtri(low), -ndtri(high))
        return np.asarray(self.shift[:, None] + self.factor[:, None] * t)

    def _shared(self, v: Array, levels: Array, shares: Array) -> Array:
        k = self._segment(v, levels)
        left, right = (np.take_along_axis(shares, index, axis=1) for index in (k, k + 1))
        return np.asarray(left + (v - levels[k]) / (levels[k + 1] - levels[k]) * (right - left))

    def _segment(self, v: Array, levels: Array) -> Array:
        return np.asarray(np.clip(np.searchsorted(levels, v, side="right") - 1, 0, len(levels) - 2))

    def _level(self, p: Array, levels: Array, shares: Array) -> Array:
        k = np.zeros(p.shape, dtype=np.intp)
        for column in range(1, len(levels) - 1):
            k += p >= shares[:, column, None]
        left, right = (np.take_along_axis(shares, index, axis=1) for index in (k, k + 1))
        return np.asarray(levels[k] + (p - left) / (right - left) * (levels[k + 1] - levels[k]))


def _rises(rows: Array) -> Array:
    """Whether each row (n, L) increases strictly from 0 to 1."""
    ends = (rows[:, 0] == 0.0) & (rows[:, -1] == 1.0)
    return np.asarray(ends & np.all(np.diff(rows, axis=1) > 0.0, axis=1))
