"""Distributions given by some quantiles: quantile regression.

Beyond the outer quantiles of a row a normal or an exponential tail goes on through the outer two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self, get_args

import numpy as np
from scipy.special import ndtr, ndtri

from congruence.kernels.arrays import Array, to_numpy
from congruence.kernels.distributions.base import KNOT_LEVELS, ScalarDistribution, Stated, align, as_numbers
from congruence.kernels.distributions.bounded_normal import TruncatedNormal
from congruence.kernels.distributions.cells import Cells, cells_between
from congruence.kernels.distributions.waves import average_wave
from congruence.kernels.errors import InvalidInputError

Tails = Literal["normal", "exponential", "none"]
TAILS: tuple[Tails, ...] = get_args(Tails)
_SAME_LEVEL = 1e-9  # of the mass beyond


@dataclass(frozen=True, repr=False)
class Quantiles(ScalarDistribution):
    """Quantile functions that are linear between given points: ``values`` (n, L) at ``levels`` (L,), L >= 2.

    ``tails`` says how it goes on beyond the outer levels, on each side through the outer two points:

    - ``normal``: linear in Phi^-1(level), the tail of a normal distribution;
    - ``exponential``: linear in the logarithm of the mass beyond, the tail of an exponential distribution;
    - ``none``: the outer segments go on at their slope to levels 0 and 1: the support is bounded, and the log score is
      infinite outside of it.

    Equal neighbours are a point of mass: then there is no density (``has_density``). Values that decrease with the
    level (crossing quantiles) are refused; ``Quantiles.rearranged`` sorts them first.
    """

    levels: Array
    values: Array
    tails: Tails = "normal"
    crossed: Array | None = None
    """Whether a row's values crossed before they were sorted, (n,); None stands for no row."""

    def __post_init__(self) -> None:
        levels = np.asarray(to_numpy(self.levels, "Quantiles.levels"), dtype=np.float64)
        values = as_numbers(self.values, "Quantiles.values", "(n, L), one column per level", 2)
        if levels.ndim != 1 or len(levels) < 2 or not bool(np.all((levels > 0) & (levels < 1))):
            raise InvalidInputError(f"Quantiles.levels: {levels} must be two or more levels inside (0, 1)")
        if not bool(np.all(np.diff(levels) > 0)):
            raise InvalidInputError(
                f"Quantiles.levels: {levels} must increase strictly; sort levels and values together"
            )
        near = np.diff(levels) < _SAME_LEVEL * np.minimum(levels[1:], 1.0 - levels[1:])
        if np.any(near):
            first, second = levels[int(np.argmax(near)) :][:2].tolist()
            raise InvalidInputError(
                f"Quantiles.levels: {first!r} and {second!r} are one level up to rounding, so the mass between them is "
                "none; keep one of the two, with its column of values"
            )
        if values.shape[1] != len(levels):
            raise InvalidInputError(
                f"Quantiles.values: shape {values.shape}, expected (n, {len(levels)}): one column per level"
            )
        crossing = np.diff(values, axis=1) < 0
        if np.any(crossing):
            row, column = (int(i) for i in np.argwhere(crossing)[0])
            raise InvalidInputError(
                f"Quantiles.values: row {row} falls from {values[row, column]:g} at level {levels[column]:g} to "
                f"{values[row, column + 1]:g} at level {levels[column + 1]:g} ({int(crossing.any(axis=1).sum())} rows "
                "cross); use Quantiles.rearranged, which sorts each row, or a model whose quantiles do not cross"
            )
        tails = self.tails if isinstance(self.tails, str) else TAILS[int(np.ravel(self.tails)[0])]
        if tails not in TAILS:
            raise InvalidInputError(f"Quantiles.tails: is {tails!r}, expected one of {', '.join(TAILS)}")
        crossed = np.zeros(len(values), dtype=bool) if self.crossed is None else np.asarray(self.crossed, dtype=bool)
        self._hold(levels=levels, values=values, tails=tails, crossed=crossed)

    @classmethod
    def rearranged(cls, levels: Array, values: Array, tails: Tails = "normal") -> Self:
        """Each row's values sorted: never farther from the true quantiles than before (Chernozhukov et al. 2010)."""
        values = np.atleast_2d(to_numpy(values))
        return cls(levels, np.sort(values, axis=1), tails, np.any(np.diff(values, axis=1) < 0, axis=1))

    @cached_property
    def points(self) -> tuple[Array, Array]:
        """Levels and the quantile function at them (n, ...), linear between; without tails from level 0 to level 1."""
        levels, values = self.levels, self.values
        if self.tails != "none":
            return levels, values
        slopes = np.diff(values, axis=1) / np.diff(levels)
        first = values[:, :1] - slopes[:, :1] * levels[0]
        last = values[:, -1:] + slopes[:, -1:] * (1.0 - levels[-1])
        return np.concatenate([[0.0], levels, [1.0]]), np.concatenate([first, values, last], axis=1)

    @property
    def _segments(self) -> tuple[Array, Array, Array]:
        """Mass, left end and length (n, ...) of each linear piece."""
        levels, values = self.points
        return np.diff(levels), values[:, :-1], np.diff(values, axis=1)

    @cached_property
    def _tails(self) -> tuple[QuantileTail, ...]:
        """What lies below the first level and above the last one, each with its sign."""
        if self.tails == "none":
            return ()
        levels, values = self.levels, self.values
        return (
            QuantileTail.of(self.tails, -1.0, levels[:2], values[:, :2]),
            QuantileTail.of(self.tails, 1.0, 1.0 - levels[:-3:-1], -values[:, :-3:-1]),
        )

    @property
    def stated(self) -> Stated:
        return "cells"

    @property
    def quantile_levels(self) -> Array:
        return self.levels

    def cells(self, y: Array) -> Cells:
        """See Distribution: those between the given levels."""
        return cells_between(self.levels, self.values, y)

    def outside(self, y: Any) -> Array:
        """-1 where y lies below the quantile at the first level, 1 where above that at the last one, else 0."""
        y, columns = align(y, len(self))
        first, last = self.values[:, 0], self.values[:, -1]
        return np.asarray(np.sign(y - np.clip(y, *((end[:, None] if columns else end) for end in (first, last)))))

    def remarks(self, y: Array) -> dict[str, Array]:
        """Whether a row's quantiles crossed, and whether its target lies beyond the outer ones."""
        return {
            "quantile_crossing": np.asarray(self.crossed, dtype=np.float64),
            "beyond_quantiles": np.abs(self.outside(y)),
        }

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> Self:
        crossed = np.atleast_1d(np.asarray(self.crossed)[rows])
        return type(self)(self.levels, np.atleast_2d(self.values[rows]), self.tails, crossed)

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """See Distribution; all parts need the same levels and tails."""
        first = parts[0]
        if any(part.tails != first.tails or not np.array_equal(part.levels, first.levels) for part in parts):
            raise InvalidInputError("Quantiles.concatenate: the parts have different levels or tails")
        values = np.concatenate([part.values for part in parts])
        return cls(first.levels, values, first.tails, np.concatenate([np.asarray(part.crossed) for part in parts]))

    def parameters(self) -> dict[str, Array]:
        """See Distribution; the tails by their number in ``TAILS``, for arrays that hold distributions."""
        return {
            "levels": self.levels,
            "values": self.values,
            "tails": np.array([TAILS.index(self.tails)]),
            "crossed": np.asarray(self.crossed),
        }

    def has_density(self) -> bool:
        return bool(np.all(self._segments[2] > 0))

    def _log_prob(self, y: Array) -> Array:
        """The density is constant on each segment, and that of the tails beyond.

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
        density = np.zeros(y.shape)
        for k, weight in enumerate(mass):
            start, size = left[:, k, None], length[:, k, None]
            density = np.where((y >= start) & (y <= start + size), weight / size, density)
        with np.errstate(divide="ignore"):
            result = np.log(density)
        for tail in self._tails:
            result = np.where(tail.holds(y), tail.log_density(y), result)
        return result

    def _cdf(self, y: Array) -> Array:
        return self._below(y, np.greater_equal)

    def _cdf_left(self, y: Array) -> Array:
        return self._below(y, np.greater)

    def _below(self, y: Array, passed: np.ufunc) -> Array:
        total = np.zeros(y.shape)
        for weight, left, length in zip(self._segments[0], self._segments[1].T, self._segments[2].T, strict=True):
            start, size = left[:, None], length[:, None]
            share = np.clip((y - start) / np.where(size > 0, size, 1.0), 0.0, 1.0)
            total += weight * np.where(size > 0, share, passed(y, start))
        for tail in self._tails:
            total += tail.below(y, passed)
        return np.minimum(total, 1.0)

    def _quantile(self, q: Array) -> Array:
        levels, values = self.points
        k = np.clip(np.searchsorted(levels, q) - 1, 0, len(levels) - 2)
        share = (q - levels[k]) / (levels[k + 1] - levels[k])
        left, right = np.take_along_axis(values, k, axis=1), np.take_along_axis(values, k + 1, axis=1)
        result = left + share * (right - left)
        for tail in self._tails:
            result = np.where(tail.reaches(q), tail.quantile(q), result)
        return np.asarray(result)

    def mean(self) -> Array:
        mass, left, length = self._segments
        return np.asarray((left + length / 2.0) @ mass + sum(tail.moments[0] for tail in self._tails))

    def std(self) -> Array:
        mass, left, length = self._segments
        mean = self.mean()
        centered = left + length / 2.0 - mean[:, None]
        variance = (centered**2 + length**2 / 12.0) @ mass
        for tail in self._tails:
            first, second = tail.moments
            variance += second - 2.0 * mean * first + mean**2 * tail.mass
        return np.asarray(np.sqrt(np.maximum(variance, 0.0)))

    def _crps(self, y: Array) -> Array:
        """Exact: 2 int (1[y < Q(p)] - p) (Q(p) - y) dp, segment by segment and tail by tail."""
        levels, _ = self.points
        scores = np.zeros(y.shape)
        for k, (weight, left, length) in enumerate(zip(*(part.T for part in self._segments), strict=True)):
            start, size = left[:, None] - y, length[:, None]
            # int p (Q - y) dp, and int (Q - y) dp over the part above y.
            product = weight * (levels[k] * (start + size / 2.0) + weight * (start / 2.0 + size / 3.0))
            above = np.clip(start + size, 0.0, None)
            steep = np.where(size > 0, size, 1.0)
            beyond = np.where(start >= 0.0, weight * (start + size / 2.0), weight * above**2 / (2.0 * steep))
            scores += 2.0 * (beyond - product)
        for tail in self._tails:
            scores += tail.score(y)
        scores = np.maximum(scores, 0.0)
        return np.asarray(scores)

    def knots(self) -> Array:
        """See Distribution: the ends of the segments, and levels of the tails."""
        values = self.points[1]
        if self.tails == "none":
            return values
        outer = KNOT_LEVELS[(self.levels[0] > KNOT_LEVELS) | (self.levels[-1] < KNOT_LEVELS)]
        return np.sort(np.concatenate([values, self.quantile(outer[None, :])], axis=1), axis=1)

    def characteristic_function(self, t: Array) -> Array:
        """See Distribution: each segment is a uniform distribution, and the tails have waves of their own."""
        mass, left, length = self._segments
        half = length / 2.0
        wave = average_wave(left + half, mass, t, half_widths=half)
        return np.asarray(wave + sum(tail.wave(np.asarray(t)) for tail in self._tails))

    def breaks(self) -> Array:
        return self.points[1]

    def kinks(self) -> Array:
        """See Distribution: the levels."""
        return self.levels


@dataclass(frozen=True)
class QuantileTail:
    """The distribution of side * -Y below its quantile ``end`` at level ``mass``: the upper tail is that of -Y.

    Attributes:
        kind: ``normal``: Q(p) = end + scale (Phi^-1(p) - Phi^-1(mass)); ``exponential``: end + scale log(p / mass).
        side: -1 for the lower tail of Y, 1 for the upper one.
        mass: a, of this tail.
        end: v, (n,), of side * -Y.
        scale: (n,); 0 is all mass at the end.
    """

    kind: Tails
    side: float
    mass: float
    end: Array
    scale: Array

    @classmethod
    def of(cls, kind: Tails, side: float, levels: Array, values: Array) -> QuantileTail:
        """Through two points: levels (2,), increasing, and values (n, 2) of side * -Y."""
        places = ndtri(levels) if kind == "normal" else np.log(levels)
        return cls(kind, side, float(levels[0]), values[:, 0], np.diff(values, axis=1)[:, 0] / np.diff(places)[0])

    @property
    def _score(self) -> float:
        return float(ndtri(self.mass))

    def _mirrored(self, y: Array) -> Array:
        return -self.side * y

    def _offset(self, y: Array) -> Array:
        """(side * -y - end) / scale, of values (n, k); -inf or inf where all mass is at the end."""
        with np.errstate(divide="ignore", invalid="ignore"):
            offset = (self._mirrored(y) - self.end[:, None]) / self.scale[:, None]
        return np.where(np.isnan(offset), 0.0, offset)

    def holds(self, y: Array) -> Array:
        """Whether values y (n, k) lie in the tail."""
        return self._mirrored(y) < self.end[:, None]

    def reaches(self, q: Array) -> Array:
        """Whether levels q (n, k) of Y do."""
        return q < self.mass if self.side < 0 else q > 1.0 - self.mass

    def quantile(self, q: Array) -> Array:
        """Quantiles of Y at levels q (n, k) of the tail."""
        level = np.minimum(q if self.side < 0 else 1.0 - q, self.mass)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = ndtri(level) - self._score if self.kind == "normal" else np.log(level / self.mass)
            value = self.end[:, None] + np.where(self.scale[:, None] > 0, self.scale[:, None] * steps, 0.0)
        return np.asarray(self._mirrored(value))

    def _below(self, y: Array) -> Array:
        """P(side * -Y < y) up to the end, for y mirrored and below it."""
        offset = np.minimum(self._offset(y), 0.0)
        return ndtr(self._score + offset) if self.kind == "normal" else self.mass * np.exp(offset)

    def below(self, y: Array, passed: np.ufunc) -> Array:
        """The tail's part of P(Y <= y), or of P(Y < y) where ``passed`` is strict, at values (n, k)."""
        end = self._mirrored(self.end)[:, None]
        inside = self._below(y) if self.side < 0 else self.mass - self._below(y)
        everything = self.mass if self.side < 0 else 0.0
        inside = np.where(self.holds(y), inside, everything)
        return np.asarray(np.where(self.scale[:, None] > 0, inside, self.mass * passed(y, end)))

    def log_density(self, y: Array) -> Array:
        """log density at values (n, k) of the tail; all rows have a scale above 0."""
        offset, log_scale = np.minimum(self._offset(y), 0.0), np.log(self.scale)[:, None]
        if self.kind == "exponential":
            return np.asarray(np.log(self.mass) + offset - log_scale)
        return np.asarray(-0.5 * (self._score + offset) ** 2 - 0.5 * np.log(2.0 * np.pi) - log_scale)

    @cached_property
    def moments(self) -> tuple[Array, Array]:
        """E[Y; tail] and E[Y^2; tail], (n,)."""
        a, v, s = self.mass, self.end, self.scale
        if self.kind == "exponential":
            first, second = -a, 2.0 * a
        else:
            z, density = self._score, float(_density(self._score))
            first, second = -density - z * a, a + z * density + z * z * a
        # Of steps e in Q = v + s e.
        return -self.side * (v * a + s * first), v * v * a + 2.0 * v * s * first + s * s * second

    def score(self, y: Array) -> Array:
        """2 int (1[y < Q(p)] - p) (Q(p) - y) dp over the levels of the tail, for y (n, k)."""
        a, s, start = self.mass, self.scale[:, None], self.end[:, None] - self._mirrored(y)
        low = np.where(self.holds(y), self._below(y), a)
        low = np.where(s > 0.0, low, np.where(start > 0.0, 0.0, a))
        first, product = self._integral(low), self._product
        return np.asarray(2.0 * (start * (a - low) + s * first - start * a * a / 2.0 - s * product))

    def _integral(self, low: Array) -> Array:
        """int e(p) dp from ``low`` to a for the steps e in Q = v + s e."""
        a = self.mass
        if self.kind == "exponential":
            safe = np.maximum(low, np.finfo(np.float64).tiny)
            return np.asarray(-a - low * (np.log(safe / a) - 1.0))
        return np.asarray(_density(ndtri(low)) - _density(self._score) - self._score * (a - low))

    @property
    def _product(self) -> float:
        """int p e(p) dp up to a."""
        a, z = self.mass, self._score
        if self.kind == "exponential":
            return -a * a / 4.0
        return float(ndtr(np.sqrt(2.0) * z) / (2.0 * np.sqrt(np.pi)) - a * _density(z) - z * a * a / 2.0)

    def wave(self, t: Array) -> Array:
        """E[exp(i t Y); tail], (n, m)."""
        turned = -self.side * t
        if self.kind == "exponential":
            wave = np.exp(1j * np.multiply.outer(self.end, turned)) / (1.0 + 1j * np.multiply.outer(self.scale, turned))
            return np.asarray(self.mass * wave)
        positive = self.scale > 0.0
        scale = np.where(positive, self.scale, 1.0)
        law = TruncatedNormal(self.end - scale * self._score, scale, np.full(len(scale), -np.inf), self.end)
        point = np.exp(1j * np.multiply.outer(self.end, turned))
        return np.asarray(self.mass * np.where(positive[:, None], law.characteristic_function(turned), point))


def _density(z: Array | float) -> Array:
    return np.asarray(np.exp(-0.5 * np.asarray(z) ** 2) / np.sqrt(2.0 * np.pi))
