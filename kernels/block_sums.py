"""What blocks of rows add up to: sums, extremes and a few named rows, merged two by two in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution


@dataclass
class BlockSums:
    """Contributions of some rows; their size does not depend on how many rows these are.

    Attributes:
        added: sums over the rows.
        largest: maxima over the rows.
        moments: count, mean and sum of squared deviations of something, which merge without cancellation (Chan, Golub
            and LeVeque 1983).
        kept: named rows, of those that were asked for: their positions and values, in order.
    """

    added: dict[str, Any] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)
    moments: dict[str, tuple[float, Any, Any]] = field(default_factory=dict)
    kept: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, name: str, value: Any) -> None:
        """Add to a sum; arrays are copied, so that what is merged stays as it was."""
        if name not in self.added:
            self.added[name] = value.astype(np.float64) if isinstance(value, np.ndarray) else float(value)
        elif isinstance(value, np.ndarray):
            self.added[name] += value
        else:
            self.added[name] = self.added[name] + float(value)

    def sum_of(self, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> Array:
        """The sum itself, to be added to in place."""
        if name not in self.added:
            self.added[name] = np.zeros(shape, dtype)
        return np.asarray(self.added[name])

    def raise_to(self, name: str, value: float) -> None:
        """Raise a maximum; NaN stays."""
        self.largest[name] = float(np.maximum(self.largest.get(name, -np.inf), value))

    def spread(self, name: str, values: Array) -> None:
        """Count, mean and squared deviations of rows (n,) or (n, q)."""
        mean = np.mean(values, axis=0, dtype=np.float64)
        self._merge_moments(name, (float(len(values)), mean, np.sum((values - mean) ** 2, axis=0)))

    def keep(self, name: str, rows: Any) -> None:
        """Rows that were asked for."""
        if len(rows):
            self.kept.setdefault(name, []).append(rows)

    def merge(self, other: BlockSums) -> BlockSums:
        """With the contributions of the rows that follow, which stay as they were."""
        for name, value in other.added.items():
            self.add(name, value)
        for name, value in other.largest.items():
            self.raise_to(name, value)
        for name, moments in other.moments.items():
            self._merge_moments(name, moments)
        for name, rows in other.kept.items():
            self.kept.setdefault(name, []).extend(rows)
        return self

    def rows(self, name: str) -> Any:
        """The kept rows one after the other."""
        parts = self.kept[name]
        if isinstance(parts[0], Distribution):
            return type(parts[0]).concatenate(parts)
        return np.concatenate(parts)

    def variance(self, name: str) -> float:
        """ddof 1, summed over columns."""
        count, _, squares = self.moments[name]
        return float(np.sum(squares)) / (count - 1.0)

    def _merge_moments(self, name: str, more: tuple[float, Any, Any]) -> None:
        if name not in self.moments:
            self.moments[name] = more
            return
        (n, mean, squares), (m, other, others) = self.moments[name], more
        difference = other - mean
        total = n + m
        merged = mean + difference * (m / total), squares + others + difference**2 * (n * m / total)
        self.moments[name] = (total, *merged)


def chosen_in(positions: Array, first: int, rows: int) -> Array:
    """Of sorted row numbers, those in a block that begins at ``first``, counted from there."""
    start, stop = np.searchsorted(positions, (first, first + rows))
    return np.asarray(positions[start:stop] - first)
