"""Cells of probability: what a few quantiles, or a histogram, say of an outcome, and nothing beyond them.

A model that gives its quantiles q_1 <= ... <= q_K at levels tau_1 < ... < tau_K has said how probable each of the
K + 1 cells between them is. Where inside a cell the outcome falls is left open: only the cell of an outcome is judged.

An outcome that equals a quantile belongs to the cell below it, since P(Y <= q_k) = tau_k. That holds where outcomes tie
with quantiles by accident. Where many do, Y has an atom there, and P(Y <= q_k) is above tau_k even if q_k is right:

- of few values with a large share of the outcomes (zeros, a cap), a level whose quantile is such a value is left out,
  so that the cells beside it are one: its mass is known, whatever the atom's is. The level stays where more outcomes
  lie beyond the atom than beyond the level: then no mass of the atom makes it right.
- of many values with a small share each (whole numbers, a grid), the outcomes that tie with a level are dealt out to
  the cells beside it, evenly over the rows that state the same, so that as many as possible of their levels hold.

Of outcomes that are rounded, and quantiles that are not, P(Y <= q_k) is that of what was rounded: an outcome less than
half a step from q_k may have been on either side, and is dealt out as a smooth distribution through the quantiles says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from congruence.kernels.arrays import Array, RowFields

FEWEST_TIES, LEAST_TIED = 10, 0.01
"""Outcomes that tie with a quantile, and their share, from which they are no accident."""

ATOM = 0.05
"""Share of the outcomes that are equal from which they are an atom by themselves."""

MOST_ATOMS = 3
"""Of more, outcomes have a grid."""

LARGE_ATOM = 0.2
"""Share of the outcomes from which a value of a grid is an atom, too: how much lies below it depends on the input."""

_FEWEST_ALIKE = 20
"""Rows that state the same, from which they tell how many of their ties lie below a level."""

_GOLDEN = 0.6180339887498949  # fractions of its multiples fill (0, 1) evenly from any row on


@dataclass(frozen=True)
class Cells(RowFields):
    """The cells of n rows, and which of them holds each outcome.

    Attributes:
        ends: probability up to the end of each cell, increasing to 1, (n, C), or (1, C) where all rows have the same.
        place: number of the cell that holds the outcome, (n,).
        starts: probability below each cell, as ``ends``. Cells of one number of start and end are one cell.
    """

    ends: Array = field(repr=False)
    place: Array
    starts: Array = field(repr=False)

    @classmethod
    def of(cls, ends: Array, place: Array) -> Cells:
        """From ends that increase."""
        return cls(ends, place, np.concatenate([np.zeros((len(ends), 1)), ends[:, :-1]], axis=1))

    @property
    def range(self) -> tuple[Array, Array]:
        """Start and end of the outcome's cell, (n,) each."""
        if len(self.ends) == 1:
            return self.starts[0, self.place], self.ends[0, self.place]
        rows = np.arange(len(self.place))
        return self.starts[rows, self.place], self.ends[rows, self.place]

    @classmethod
    def _is_shared(cls, name: str, held: Any) -> bool:
        return name != "place" and len(held) == 1


def cells_between(levels: Array, values: Array, y: Array) -> Cells:
    """The K + 1 cells between quantiles ``values`` (n, K) at ``levels`` (K,), and those of outcomes y (n,)."""
    below = y[:, None] > values
    place, ties = np.count_nonzero(below, axis=1), values == y[:, None]
    ends = np.append(levels, 1.0)[None, :]
    tied = ties.any(axis=1)
    if np.count_nonzero(tied) < max(FEWEST_TIES, LEAST_TIED * len(y)):
        return Cells.of(ends, place)
    found, count = np.unique(y, return_counts=True)
    atoms = found[count >= ATOM * len(y)]
    if len(atoms) > MOST_ATOMS:
        atoms = found[count >= LARGE_ATOM * len(y)]
    free = ~np.isin(values, atoms)
    if np.count_nonzero((ties & free).any(axis=1)) >= max(FEWEST_TIES, LEAST_TIED * len(y)):
        place = place + _dealt(levels, values, y, free)
    return _around_atoms(ends, values, y, place, atoms) if len(atoms) else Cells.of(ends, place)


def cells_of_rounded(levels: Array, values: Array, y: Array, step: float) -> Cells:
    """The same of outcomes y that are rounded to a ``step``, which tie with no quantile."""
    low, high = (_smooth_cdf(levels, values, y + end) for end in (-step / 2.0, step / 2.0))
    share = np.arange(1, len(y) + 1) * _GOLDEN % 1.0
    return Cells.of(np.append(levels, 1.0)[None, :], np.searchsorted(levels, low + share * (high - low)))


def _smooth_cdf(levels: Array, values: Array, y: Array) -> Array:
    """P(Y_i <= y_i), (n,), of distributions whose normal scores are monotone cubics through n rows of quantiles.

    With the slopes of Fritsch and Butland (1984), and straight beyond the outer quantiles, as a normal distribution's.
    """
    scores, n = ndtri(levels), np.arange(len(y))
    widths = np.maximum(np.diff(values, axis=1), 1e-9 * np.ptp(values, axis=1, keepdims=True) + 1e-300)
    slopes = np.diff(scores) / widths
    tangents = np.empty_like(values)
    tangents[:, 1:-1] = 2.0 / (1.0 / slopes[:, :-1] + 1.0 / slopes[:, 1:])
    for end, beside in ((0, 1), (-1, -2)):
        if len(levels) == 2:
            beside = end
        width, next_width = widths[:, end], widths[:, beside]
        curved = slopes[:, end] + width / (width + next_width) * (slopes[:, end] - slopes[:, beside])
        tangents[:, end] = np.clip(curved, 0.2 * slopes[:, end], 3.0 * slopes[:, end])
    cell = np.clip(np.count_nonzero(values <= y[:, None], axis=1) - 1, 0, len(levels) - 2)
    width, rise = widths[n, cell], np.diff(scores)[cell]
    place = (y - values[n, cell]) / width
    inside = np.clip(place, 0.0, 1.0)
    first, last = width * tangents[n, cell], width * tangents[n, cell + 1]
    cubic = inside * (first + inside * (3.0 * rise - 2.0 * first - last + inside * (first + last - 2.0 * rise)))
    beyond = np.where(place < 0.0, first * place, last * np.maximum(place - 1.0, 0.0))
    return np.asarray(ndtr(scores[cell] + cubic + beyond))


def _around_atoms(ends: Array, values: Array, y: Array, place: Array, atoms: Array) -> Cells:
    """Without the ends that are quantiles at an atom, as far as an atom explains the outcomes beside it."""
    n, count = values.shape
    kept = np.ones((n, count + 1), dtype=bool)
    place = np.array(place)
    for atom in atoms:
        at = values == atom
        rows = np.flatnonzero(at.any(axis=1))
        first, last = np.argmax(at[rows], axis=1), count - 1 - np.argmax(at[rows, ::-1], axis=1)
        kept[rows] &= ~np.pad(at[rows], ((0, 0), (0, 1)))
        if np.count_nonzero(y[rows] > atom) > np.sum(1.0 - ends[0, last]):
            kept[rows, last] = True
        if np.count_nonzero(y[rows] < atom) > np.sum(ends[0, first]):
            kept[rows, first] = True
            place[rows[(y[rows] == atom) & (first < last)]] += 1
    merged = np.where(kept, ends, 1.0)
    merged = np.minimum.accumulate(merged[:, ::-1], axis=1)[:, ::-1]
    below = np.maximum.accumulate(np.where(kept, ends, 0.0), axis=1)
    return Cells(merged, place, np.concatenate([np.zeros((n, 1)), below[:, :-1]], axis=1))


def _dealt(levels: Array, values: Array, y: Array, free: Array) -> Array:
    """How many of the levels that a row's outcome ties with it is counted above, (n,), where levels are ``free``.

    Of rows that state the same quantiles as many as these ask for: others state another distribution, of which more or
    less lies below a value. Rows of which there are few are taken together.
    """
    ties = free & (values == y[:, None])
    _, alike, sizes = np.unique(values, axis=0, return_inverse=True, return_counts=True)
    alike = np.where(sizes < _FEWEST_ALIKE, len(sizes), np.arange(len(sizes)))[alike.ravel()]

    def counted(held: Array) -> Array:
        return np.stack([np.bincount(alike, column) for column in held.T.astype(np.float64)], axis=1)

    lacking = levels * counted(free) - counted(free & (y[:, None] < values))
    share = np.clip(lacking / np.maximum(counted(ties), 1.0), 0.0, 1.0)[alike]
    by_group, order = np.argsort(alike, kind="stable"), np.empty(len(y))
    order[by_group] = np.cumsum(ties.any(axis=1)[by_group]) * _GOLDEN % 1.0
    return np.asarray(np.count_nonzero(ties & (order[:, None] >= share), axis=1))
