"""Distributions given by some quantiles (quantile regression), or by the probabilities of bins (histograms).

Beyond the outer quantiles of a row a normal or an exponential tail goes on through the outer two. Histograms are bar
distributions, binned and ordinal regression.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from scipy.special import erfinv, ndtr, ndtri

from congruence.kernels.arrays import Array, align, as_numbers, to_numpy
from congruence.kernels.distributions.base import Stated
from congruence.kernels.distributions.cells import Cells, cells_between, cells_of_rounded
from congruence.kernels.distributions.piecewise import (
    PiecewiseLinear,
    Tail,
    count_below,
    cumulative,
    require_masses,
    require_points,
)
from congruence.kernels.errors import InvalidInputError

Tails = Literal["normal", "exponential", "none"]
TAILS: tuple[Tails, ...] = get_args(Tails)
_SAME_LEVEL = 1e-9  # of the mass beyond


@dataclass(frozen=True, repr=False)
class Quantiles(PiecewiseLinear):
    """Quantile functions that are linear between given points: ``values`` (n, L) at ``levels`` (L,), L >= 2.

    ``tails`` says how it goes on beyond the outer levels, on each side through the outer two points:

    - ``normal``: linear in Phi^-1(level), the tail of a normal distribution;
    - ``exponential``: linear in the logarithm of the mass beyond, the tail of an exponential distribution;
    - ``none``: the outer segments go on at their slope to levels 0 and 1: the support is bounded, and the log score is
      infinite outside of it.

    Equal neighbours are a point of mass: then there is no density (``has_density``). Values that decrease with the
    level (crossing quantiles) are refused; ``Quantiles.rearranged`` sorts them first.
    """

    _shared: ClassVar[tuple[str, ...]] = ("levels", "tails")

    levels: Array
    values: Array
    tails: Tails = "normal"
    crossed: Array | None = None
    """Whether a row's values crossed before they were sorted, (n,); None stands for no row."""

    def __post_init__(self) -> None:
        levels = np.asarray(to_numpy(self.levels, "Quantiles.levels"), dtype=np.float64)
        values = as_numbers(self.values, "Quantiles.values", "(n, L), one column per level", 2)
        if levels.ndim != 1 or len(levels) < 2 or not bool(np.all((levels > 0) & (levels < 1))):
            percents = levels.ndim == 1 and len(levels) > 1 and bool(np.all((levels > 0) & (levels < 100)))
            shares = f"; of percentages give the shares {(levels / 100.0).round(12).tolist()}" if percents else ""
            raise InvalidInputError(f"Quantiles.levels: {levels} must be two or more levels inside (0, 1){shares}")
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
        """Levels (m,) and the values at them (n, m), linear between; without tails from level 0 to level 1."""
        levels, values = self.levels, self.values
        if self.tails != "none":
            return levels, values
        slopes = np.diff(values, axis=1) / np.diff(levels)
        first = values[:, :1] - slopes[:, :1] * levels[0]
        last = values[:, -1:] + slopes[:, -1:] * (1.0 - levels[-1])
        return np.concatenate([[0.0], levels, [1.0]]), np.concatenate([first, values, last], axis=1)

    @property
    def _points(self) -> Array:
        return self.points[1]

    @property
    def _levels(self) -> Array:
        return self.points[0][None, :]

    @cached_property
    def _tails(self) -> tuple[Tail, ...]:
        kind = self.tails
        if kind == "none":
            return ()
        found = []
        for is_upper, ends in ((False, [0, 1]), (True, [-1, -2])):
            mass = np.abs(float(is_upper) - self.levels[ends])
            places = ndtri(mass) if kind == "normal" else np.log(mass)
            end, inner = (self.values[:, [k]] for k in ends)
            scale = np.abs(inner - end) / (places[1] - places[0])
            found.append(Tail(kind, is_upper, mass[:1, None], end, scale, float(ndtri(mass[0]))))
        return tuple(found)

    @property
    def stated(self) -> Stated:
        return "cells"

    @property
    def quantile_levels(self) -> Array:
        return self.levels

    def cells(self, y: Array, step: float | None = None) -> Cells:
        """See Distribution: those between the given levels."""
        if step is not None:
            return cells_of_rounded(self.levels, self.values, y, step)
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

    def parameters(self) -> dict[str, Array]:
        """See Distribution; the tails by their number in ``TAILS``, for arrays that hold distributions."""
        return {
            "levels": self.levels,
            "values": self.values,
            "tails": np.array([TAILS.index(self.tails)]),
            "crossed": np.asarray(self.crossed),
        }

    def _crps(self, y: Array) -> Array:
        """By what is stated, see ``quantile_score``: the interpolation would favour quantiles that are not true."""
        return quantile_score(self.levels, self.values, y)

    def has_density(self) -> bool:
        return bool(np.all(np.diff(self._points, axis=1) > 0))

    def _log_prob(self, y: Array) -> Array:
        """The density is constant on each segment, and that of the tails beyond.

        Raises:
            InvalidInputError: equal neighbouring quantiles in a row, so no density.
        """
        flat = ~np.all(np.diff(self._points, axis=1) > 0, axis=1)
        if np.any(flat):
            row = int(np.argmax(flat))
            raise InvalidInputError(
                f"Quantiles.log_prob: row {row} repeats a value at neighbouring levels ({int(flat.sum())} rows do), so "
                "it has no density; leave the log score out, or use crps"
            )
        return super()._log_prob(y)


def quantile_score(levels: Array, quantiles: Array, y: Array) -> Array:
    """The CRPS as some quantiles know it: sum_k w_k 2 (1[y <= q_k] - tau_k)(q_k - y), (n, m). Lower is better.

    The CRPS is the integral of these losses over all levels (Laio and Tamea 2007). Those at the stated levels are
    lowest in the mean where these quantiles are the true ones, whatever lies between and beyond.

    Args:
        levels: tau, increasing inside (0, 1), (L,).
        quantiles: q, (n, L).
        y: (n, m).
    """
    score = np.zeros(y.shape)
    for level, weight, column in zip(levels, weights_of_levels(levels), quantiles.T, strict=True):
        above = y - column[:, None]
        score += 2.0 * weight * np.maximum(level * above, (level - 1.0) * above)
    return score


def weights_of_levels(levels: Array) -> Array:
    """w_k of an integral over all levels, sum_k w_k g(tau_k), of mean losses g, (L,).

    A level counts by the share of levels to which it is the nearest in normal scores, times what makes the sum exact
    for a normal distribution's own quantiles. Of others the CRPS differs by 1 % at levels .05, .5 and .95 (t(3),
    lognormal), by less at more levels.
    """
    z = ndtri(levels)
    shares = np.diff(ndtr(np.concatenate([[-np.inf], (z[1:] + z[:-1]) / 2.0, [np.inf]])))
    losses_of_a_normal = np.sqrt(2.0 / np.pi) * np.exp(-0.5 * z * z)  # whose CRPS is 1 / pi^(1/2)
    return np.asarray(shares / (np.sqrt(np.pi) * (shares @ losses_of_a_normal)))


@dataclass(frozen=True, repr=False)
class Histogram(PiecewiseLinear):
    """Density constant within each of B bins: ``probabilities`` (n, B) between ``borders`` (B + 1,) or (n, B + 1).

    Tails: with ``tail_share`` 0 (the default) all mass lies within the borders, and the log score is infinite outside.
    With 0 < ``tail_share`` < 1 the mass of the first and of the last bin is half-normal from the bin's inner border
    outwards, that share of it beyond the outer border: .5 is the bar distribution of TabPFN and of prior-data fitted
    networks (Mueller et al. 2022). Probabilities must sum to 1 within 1e-4 and are then normalised.
    """

    _shared: ClassVar[tuple[str, ...]] = ("tail_share",)
    _shared_points: ClassVar[tuple[str, ...]] = ("borders",)

    borders: Array
    probabilities: Array
    tail_share: Array | float = 0.0

    def __post_init__(self) -> None:
        borders = require_points(self.borders, "Histogram.borders")
        probabilities = require_masses(self.probabilities, "Histogram.probabilities")
        n, bins = probabilities.shape
        if borders.shape[-1] != bins + 1 or (borders.ndim == 2 and len(borders) != n):
            raise InvalidInputError(
                f"Histogram.borders: shape {borders.shape} does not fit probabilities of shape {(n, bins)}; expected "
                f"({bins + 1},) or ({n}, {bins + 1}): one more border than bins"
            )
        falling = np.diff(np.atleast_2d(borders), axis=1) <= 0
        if np.any(falling):
            row, column = (int(i) for i in np.argwhere(falling)[0])
            raise InvalidInputError(
                f"Histogram.borders: {'' if borders.ndim == 1 else f'row {row}: '}border {column + 1} is not above "
                f"border {column} ({np.atleast_2d(borders)[row, column]:g}); borders must increase strictly"
            )
        share = float(np.ravel(to_numpy(self.tail_share))[0])
        if not 0.0 <= share < 1.0 or (share > 0.0 and bins < 2):
            raise InvalidInputError(
                f"Histogram.tail_share: is {share:g} with {bins} bins; expected a share in [0, 1) of the mass of the "
                "outermost bins, and 0 where there is one bin only"
            )
        self._hold(borders=borders, probabilities=probabilities, tail_share=np.array(share))

    def tempered(self, temperature: float) -> Self:
        """See Distribution: a tail keeps its shape, and its bin's probability is tempered as those of others."""
        shares = self.probabilities / self.probabilities.max(axis=1, keepdims=True)
        shares = shares ** (1.0 / temperature)
        return replace(self, probabilities=shares / shares.sum(axis=1, keepdims=True))

    @property
    def _edges(self) -> Array:
        return np.atleast_2d(self.borders)

    @cached_property
    def _cumulative(self) -> Array:
        return cumulative(self.probabilities)

    @property
    def _inner(self) -> Any:
        """Which of the borders have no tail beyond them, twice where that is one."""
        if self.tail_share == 0.0:
            return slice(None)
        return slice(1, -1) if self.probabilities.shape[1] > 2 else [1, 1]

    @property
    def _points(self) -> Array:
        return self._edges[:, self._inner]

    @property
    def _levels(self) -> Array:
        return self._cumulative[:, self._inner]

    @cached_property
    def _tails(self) -> tuple[Tail, ...]:
        if self.tail_share == 0.0:
            return ()
        scales = np.diff(self._edges, axis=1) / (np.sqrt(2.0) * erfinv(1.0 - self.tail_share))
        masses, points = self.probabilities, self._points
        return (
            Tail("normal", False, masses[:, :1], points[:, :1], scales[:, :1]),
            Tail("normal", True, masses[:, -1:], points[:, -1:], scales[:, -1:]),
        )

    @property
    def stated(self) -> Stated:
        return "cells"

    def cells(self, y: Array, step: float | None = None) -> Cells:  # noqa: ARG002
        """See Distribution: the bins, with what lies beyond the borders; a value at a border is in the bin below it."""
        place = count_below(self._edges[:, 1:-1], y[:, None], or_equal=False)[:, 0]
        return Cells(self._cumulative[:, 1:], place, self._cumulative[:, :-1])
