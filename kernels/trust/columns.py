"""What the columns of a split hold, which values of an input no row comes near, and columns of pictures.

An encoder that never saw noise or blank pictures may put them in the midst of ordinary ones, where no distance finds
them. Brightness, contrast, detail, roughness and colour of the pixels do, whatever the encoder: as columns of a table
they have ranges as other columns have, in logarithms, since what is without contrast is infinitely far from any
contrast.

A value is outside where a column of categories has never held it, where it is missing though it never was, where it is
beyond the range by more than chance leaves to ordinary rows, or where 0/1 columns of which one always holds 1 hold none
or two.

A new row is beyond the largest of n values with probability 1 / (n + 1), and beyond it by more than t with about
(1 + t / (4 e))^-4 / n, where e is the mean excess over a high threshold (generalised Pareto tails, Pickands 1975, of
shape 1/4: heavy ones). The margin t is the smallest at which the columns together call few ordinary rows outside: 0 in
long splits, and never more than the range.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence.kernels.arrays import Array

if TYPE_CHECKING:
    import pandas as pd

PICTURE_COLUMNS = ("brightness", "contrast", "detail", "roughness", "colourfulness")
"""Mean of the luminance; its standard deviation; root mean square of the difference of neighbouring pixels; detail over
contrast (white noise has 1.41, smooth shades less than .1); root mean square of red and of blue less luminance."""

PICTURE_SIDE = 64
"""Pixels a side to which pictures are scaled before they are measured, so that their size does not enter."""

SMALLEST = 0.005
"""Of all luminance there is: what is below is taken for none."""

_SATURATED = 0.01

_LUMINANCE = np.array([0.299, 0.587, 0.114])


def picture_statistics(pixels: Any) -> Array:
    """``PICTURE_COLUMNS`` of 8-bit pixels (height, width, 3), (5,), each at least ``SMALLEST``."""
    colours = np.asarray(pixels, dtype=np.float64) / 255.0
    grey = colours @ _LUMINANCE
    contrast = max(float(grey.std()), SMALLEST)
    across, down = np.diff(grey, axis=1), np.diff(grey, axis=0)
    detail = np.sqrt((np.sum(across**2) + np.sum(down**2)) / max(1, across.size + down.size))
    apart = colours[:, :, [0, 2]] - grey[:, :, None]
    found = [grey.mean(), contrast, detail, max(float(detail), SMALLEST) / contrast, np.sqrt(np.mean(apart**2))]
    return np.maximum(np.asarray(found, dtype=np.float64), SMALLEST)


def is_of_pictures(table: pd.DataFrame) -> bool:
    """Whether the columns of a table are ``PICTURE_COLUMNS``."""
    return tuple(table.columns) == PICTURE_COLUMNS


def blank(table: pd.DataFrame) -> Array:
    """Pictures of one shade, or black or white nearly everywhere, (n,) booleans; no row of another table is one."""
    if not is_of_pictures(table):
        return np.zeros(len(table), dtype=bool)
    brightness, contrast = (table[name].to_numpy(np.float64) for name in PICTURE_COLUMNS[:2])
    return np.asarray((contrast <= SMALLEST) | (brightness <= _SATURATED) | (brightness >= 1.0 - _SATURATED))


CATEGORIES = 32
"""Numbers of so few distinct values are read as categories: classes, codes, flags."""

OUTSIDE = 0.003
"""The share of ordinary rows that may be outside: half of them by new categories, half by values beyond a range. About
as many rows bring a category of which nothing is known as are the only ones of theirs (Good 1953)."""

_TAIL = 20  # one in so many values is in the tail
_TAIL_SHAPE = 0.25


@dataclass(frozen=True)
class Column:
    """What one column held: numbers from ``low`` to ``high``, or ``categories``; and whether it was ever missing.

    Beyond ``least`` and ``most`` a number is outside.
    """

    name: str
    low: float = np.nan
    high: float = np.nan
    least: float = np.nan
    most: float = np.nan
    categories: frozenset[Any] | None = field(default=None, repr=False)
    singles: int = 0
    has_missing: bool = False
    is_logarithmic: bool = False

    @classmethod
    def of(cls, name: str, values: pd.Series[Any], share: float = OUTSIDE, *, is_logarithmic: bool = False) -> Column:
        """Of its values in the split, (n,); ``share`` of ordinary ones may be outside at either end.

        ``is_logarithmic``: margins are factors, of positive numbers that are no categories.
        """
        missing = values.isna()
        present = values[~missing]
        is_number = _is_number(values)
        counts = present.value_counts()
        bounds = (np.nan, np.nan, np.nan, np.nan)
        if is_number and len(present):
            rising = np.sort(present.to_numpy(dtype=np.float64))
            low, high = float(rising[0]), float(rising[-1])
            if is_logarithmic:
                logs = np.log(rising)
                bounds = (low, high, low / np.exp(_margin(-logs[::-1], share)), high * np.exp(_margin(logs, share)))
            else:
                bounds = (low, high, low - _margin(-rising[::-1], share), high + _margin(rising, share))
        if is_number and (is_logarithmic or len(counts) > CATEGORIES):
            return cls(name, *bounds, has_missing=bool(missing.any()), is_logarithmic=is_logarithmic)
        singles = int((counts == 1).sum())
        return cls(name, *bounds, frozenset(counts.index[counts > 0]), singles, bool(missing.any()))

    def beyond(self, values: pd.Series[Any], *, by_category: bool = True) -> Array:
        """How far outside of what the column holds some values are, (m,): 0 where rows come near, of numbers in ranges
        of the column, infinite of what has no distance (a category, a missing value).

        ``by_category``: whether a new category is outside.
        """
        import pandas as pd

        missing = values.isna().to_numpy()
        found = np.where(missing & (not self.has_missing), np.inf, 0.0)
        if self.categories is not None and by_category:
            new = ~values.isin(list(self.categories)).to_numpy() & ~missing
            return np.asarray(np.where(new, np.inf, found))
        if np.isnan(self.low):
            return found
        numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            scaled, ends = self._scaled(numbers), self._scaled(np.array([self.low, self.high, self.least, self.most]))
            apart = np.maximum(ends[0] - scaled, scaled - ends[1]) / (ends[1] - ends[0])
            outside = (scaled > ends[3]) | (scaled < ends[2])
        apart = np.where(np.isnan(numbers), np.where(missing, 0.0, np.inf), np.where(outside, apart, 0.0))
        return np.asarray(np.maximum(found, apart))

    def _scaled(self, numbers: Array) -> Array:
        return np.log(np.maximum(numbers, np.finfo(float).tiny)) if self.is_logarithmic else numbers


@dataclass(frozen=True)
class ColumnRanges:
    """The columns of a split, the runs of 0/1 columns of which always exactly one holds 1, and the names of the columns
    that are ``judged`` by their categories."""

    columns: tuple[Column, ...]
    one_hot: tuple[tuple[str, ...], ...] = ()
    judged: frozenset[str] = frozenset()

    @classmethod
    def of(cls, table: pd.DataFrame, share: float = OUTSIDE) -> ColumnRanges:
        """Of the rows of ``table``; about ``share`` of ordinary rows may be outside."""
        ends = 2 * sum(_is_number(table[name]) for name in table)
        each, pictures = share / 2 / max(1, ends), is_of_pictures(table)
        columns = tuple(Column.of(str(name), table[name], each, is_logarithmic=pictures) for name in table)
        budget, judged = share / 2 * len(table), set()
        for column in sorted(columns, key=lambda column: column.singles):
            budget -= column.singles
            if budget >= 0 or not column.singles:
                judged.add(column.name)
        return cls(columns, tuple(_one_hot(table, columns)), frozenset(judged))

    def beyond(self, table: pd.DataFrame) -> Array:
        """How far outside of what each column holds the rows are, (m, columns + runs); see ``Column.beyond``."""
        parts = [column.beyond(table[column.name], by_category=column.name in self.judged) for column in self.columns]
        parts += [np.where(table[list(names)].sum(axis=1).to_numpy() != 1, np.inf, 0.0) for names in self.one_hot]
        return np.stack(parts, axis=1) if parts else np.zeros((len(table), 0))

    def named(self, name: str) -> Column:
        """A column by its name."""
        return next(column for column in self.columns if column.name == name)


def _margin(rising: Array, share: float) -> float:
    """How far beyond the largest of its values a column leaves ``share`` of ordinary ones, at most its range."""
    n = len(rising)
    tail = min(max(n // _TAIL, 5), n - 1)
    excess = float(rising[n - tail :].mean() - rising[n - tail - 1]) if tail else 0.0
    reach = (max(1.0, 1.0 / (n * share)) ** _TAIL_SHAPE - 1.0) / _TAIL_SHAPE
    return float(min(excess * reach, rising[-1] - rising[0]))


def _one_hot(table: pd.DataFrame, columns: tuple[Column, ...]) -> list[tuple[str, ...]]:
    flags = [column.categories is not None and column.categories <= {0, 1} for column in columns]
    bounds = [-1, *(place for place, is_flag in enumerate(flags) if not is_flag), len(flags)]
    found = []
    for before, stop in pairwise(bounds):
        start, total = before + 1, np.zeros(len(table))
        for place in range(before + 1, stop):
            total = total + table[columns[place].name].to_numpy(dtype=np.float64)
            if total.max(initial=0.0) > 1:  # another run begins here
                start, total = place, table[columns[place].name].to_numpy(dtype=np.float64)
            if place > start and (total == 1).all():
                found.append(tuple(column.name for column in columns[start : place + 1]))
                start, total = place + 1, np.zeros(len(table))
    return found


def _is_number(values: pd.Series[Any]) -> bool:
    from pandas.api import types

    other = types.is_bool_dtype(values.dtype) or types.is_complex_dtype(values.dtype)
    return bool(types.is_numeric_dtype(values.dtype) and not other)
