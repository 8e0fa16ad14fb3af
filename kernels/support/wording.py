"""Why an input is unusual, in words: the value that no row comes near, or what tells it from the nearest rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.support.columns import ColumnRanges, shown
from congruence.kernels.support.pictures import is_of_pictures
from congruence.kernels.support.whitening import Whitening

if TYPE_CHECKING:
    import pandas as pd

NEAREST = 3
_SHARE = 0.25  # of the squared distance, below which a column is not named
_NAMED = 2


@dataclass(frozen=True)
class Wording:
    """The rows of a split, as far as words need them.

    Attributes:
        x: inputs, (n, d).
        columns: what the rows are in their table, None where there are only vectors.
        ranges: what all rows hold.
        whitening: to the space in which distances are taken.
    """

    x: Array = field(repr=False)
    columns: pd.DataFrame | None = field(repr=False)
    ranges: ColumnRanges | None = field(repr=False)
    whitening: Whitening = field(repr=False)

    @classmethod
    def of(cls, x: Array, columns: pd.DataFrame | None, whitening: Whitening) -> Wording:
        """Of all rows of a split."""
        return cls(x, columns, None if columns is None else ColumnRanges.of(columns), whitening)

    def of_vector(self, nearest: Array, apart: str, keys: Any | None) -> str:
        """Why an input that has no columns is unusual: how far ``apart`` it is, and from which rows."""
        return f"far from every row: {apart}; {_rows(nearest, keys)}"

    def of_row(
        self, x: Array, row: pd.Series[Any], nearest: Array, outside: list[str], apart: str, keys: Any | None
    ) -> str:
        """Why a row of a table is unusual.

        Args:
            x: the input, (d,).
            row: its columns.
            nearest: row numbers of the nearest rows.
            outside: what the row holds that no row comes near, in words.
            apart: how far it is from the nearest rows, where no column says why.
            keys: names of the rows of the split.
        """
        assert self.columns is not None
        assert self.ranges is not None
        if outside:
            return f"{'; '.join(outside)}; {_rows(nearest, keys)}"
        if is_of_pictures(self.columns):
            return self.of_vector(nearest, apart, keys)
        parts = []
        for name in self._apart(x, nearest[0], row):
            held, value = self.ranges.named(name), row[name]
            beyond = not np.isnan(held.low) and (value < held.low or value > held.high)
            others = ", ".join(shown(self.columns[name].iloc[number]) for number in nearest[:NEAREST].tolist())
            there = f"the split holds {held.held()}" if beyond else f"the nearest rows have {others}"
            parts.append(f"{name} {shown(value)}: {there}")
        return f"{'; '.join(parts) or f'far from every row: {apart}'}; {_rows(nearest, keys)}"

    def _apart(self, x: Array, nearest: int, row: pd.Series[Any]) -> list[str]:
        """The columns that tell an input from the nearest row, where features are columns."""
        assert self.columns is not None
        names = [str(name) for name in self.columns]
        features = len(self.x[0])
        if len(names) < features:
            return [name for name in names if row[name] != self.columns[name].iloc[nearest]][:_NAMED]
        squares = self.whitening.shares(x - self.x[nearest])
        if not squares.sum() > 0:
            return []
        order = np.argsort(-squares, kind="stable")[:_NAMED]
        return [names[place] for place in order.tolist() if squares[place] >= _SHARE * squares.sum()]


def _rows(nearest: Array, keys: Any | None) -> str:
    names = [str(number if keys is None else keys[number]) for number in nearest[:NEAREST].tolist()]
    return f"nearest rows {', '.join(names)}"
