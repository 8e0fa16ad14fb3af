r"""Blocks of rows that are taken as independent of each other: groups that a user names, or runs of consecutive rows.

A run has b = 2 * 1.1447 (alpha n)^{1/3} rows with alpha = 4 rho^2 / (1 - rho^2)^2, where rho is the largest lag-1
correlation of the four PIT scores in the order of time: Andrews' (1991) plug-in for the Bartlett window, doubled, since
the plain one leaves runs that still depend on each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.stats

from congruence.kernels.arrays import Array
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.streams import stream

FEWEST_BLOCKS = 10
"""With fewer blocks no p-value and no interval is given: it would rest on too few independent pieces."""

_LARGEST_CORRELATION = 0.98


@dataclass(frozen=True)
class DependentBlocks:
    """A partition of n rows into blocks.

    Attributes:
        labels: the block of each row, 0 to ``count`` - 1, (n,).
        count: of blocks.
        kind: "groups" or "time".
    """

    labels: Array = field(repr=False)
    count: int
    kind: str

    def sums(self, values: Array) -> Array:
        """Sums of values (n, ...) within the blocks, (count, ...)."""
        flat = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
        total = np.column_stack([np.bincount(self.labels, column, self.count) for column in flat.T])
        return total.reshape(self.count, *np.shape(values)[1:])

    def signs(self, draws: int, seed: int, first: int = 0) -> Array:
        """A random sign a block, (count, draws); draw ``first`` + d is the same however many are asked for."""
        columns = [
            stream(seed, "signs of blocks", first + draw).integers(0, 2, self.count, dtype=np.int8)
            for draw in range(draws)
        ]
        return np.asarray(2.0 * np.column_stack(columns) - 1.0)

    def standard_error(self, influence: Array) -> float:
        """Of a mean whose rows contribute ``influence`` (n,) beyond it: sums within blocks, ddof 1."""
        found = self.sums(influence - np.mean(influence))
        return float(np.sqrt(np.sum(found**2) * self.count / (self.count - 1.0))) / len(influence)

    def quantile(self, level: float = 0.95) -> float:
        """Of Student's t law with ``count`` - 1 degrees of freedom, for a two-sided interval."""
        return float(scipy.stats.t.ppf(0.5 + 0.5 * level, self.count - 1))

    def interval(self, mean: float, influence: Array, level: float = 0.95) -> tuple[float, float]:
        """Of a mean from the influences of its rows."""
        half = self.quantile(level) * self.standard_error(influence)
        return mean - half, mean + half


def blocks_of_groups(groups: Any, n: int) -> DependentBlocks:
    """A block for every value of ``groups`` (n,), such as the patient of each row.

    Raises:
        InvalidInputError: another number of rows, missing values, or fewer than ten groups.
    """
    values = _column(groups, n, "groups")
    found, labels = np.unique(values, return_inverse=True)
    return _enough(DependentBlocks(labels.reshape(-1), len(found), "groups"), "groups")


def blocks_of_time(time: Any, scores: Array) -> DependentBlocks:
    """Runs of consecutive rows in the order of ``time`` (n,), as long as the scores (n, r) depend on each other.

    Rows of one time are in one run.

    Raises:
        InvalidInputError: another number of rows, missing values, or fewer than ten runs.
    """
    rank = time_ranks(time, len(scores))
    order = np.argsort(rank, kind="stable")
    ordered = rank[order]
    length = block_length(max(lag_correlations(np.asarray(scores)[order])), len(order))
    first = np.searchsorted(ordered, ordered, side="left")  # of the rows of the same time
    _, runs = np.unique(first // length, return_inverse=True)
    labels = np.empty(len(order), dtype=np.intp)
    labels[order] = runs.reshape(-1)
    return _enough(DependentBlocks(labels, int(labels.max()) + 1, "time"), "time")


def block_length(correlation: float, n: int) -> int:
    """b, at least 1 and at most n, from the lag-1 correlation."""
    rho = min(max(correlation, 0.0), _LARGEST_CORRELATION)
    alpha = 4.0 * rho**2 / (1.0 - rho**2) ** 2
    return int(np.clip(np.ceil(2.0 * 1.1447 * (alpha * n) ** (1.0 / 3.0)), 1, n))


def lag_correlations(scores: Array) -> list[float]:
    """Lag-1 correlation of each column of scores (n, r), in their order."""
    centred = scores - scores.mean(axis=0)
    total = np.sum(centred**2, axis=0)
    products = np.sum(centred[1:] * centred[:-1], axis=0)
    return [float(p / t) if t > 0 else 0.0 for p, t in zip(products, total, strict=True)]


def time_ranks(time: Any, n: int) -> Array:
    """The dense rank of every row's time, (n,): any sortable type, ties allowed.

    Raises:
        InvalidInputError: another number of rows, or missing values, by row.
    """
    return np.unique(_column(time, n, "time"), return_inverse=True)[1].reshape(-1)


def _column(values: Any, n: int, name: str) -> Array:
    column = np.asarray(values)
    if column.ndim != 1 or len(column) != n:
        raise InvalidInputError(f"{name}: shape {column.shape}, expected one value for each of the {n} rows")
    missing = (column != column) | np.array([value is None for value in column])
    if np.any(missing):
        raise InvalidInputError(f"{name}: row {int(np.argmax(missing))} has no value; fill it in, or leave the row out")
    try:
        np.sort(column[:2])
    except TypeError as error:
        raise InvalidInputError(f"{name}: values of different types cannot be compared: {error}") from None
    return column


def _enough(blocks: DependentBlocks, name: str) -> DependentBlocks:
    if blocks.count < FEWEST_BLOCKS:
        what = "groups" if blocks.kind == "groups" else "runs of rows that do not depend on each other"
        raise InvalidInputError(
            f"{name}: {blocks.count} {what} among {len(blocks.labels)} rows; p-values and intervals need at least "
            f"{FEWEST_BLOCKS}. Use a longer split, or read point estimates alone"
        )
    return blocks
