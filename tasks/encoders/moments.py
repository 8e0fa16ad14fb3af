"""Mean and standard deviation of tabular features, from moments of blocks of rows that are joined in a fixed order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import ArrayLike, NDArray

from congruence.kernels.errors import InvalidInputError

_BLOCK_ROWS = 1024
_DIGITS = 12

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and scale of each feature, for EncoderSettings."""


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of each feature; sums of them are those of all their rows.

    Attributes:
        count: of rows; of values, (d,), where rows may lack some (NaN).
    """

    count: int | NDArray[np.int64]
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def of(cls, block: NDArray[np.float64]) -> Moments:
        """Of the rows of a block, (rows, d)."""
        known = ~np.isnan(block)
        with np.errstate(over="ignore", invalid="ignore"):
            if known.all():
                mean = block.mean(axis=0)
                return cls(len(block), mean, ((block - mean) ** 2).sum(axis=0))
            count = known.sum(axis=0)
            mean = np.where(known, block, 0.0).sum(axis=0) / np.maximum(count, 1)
            return cls(count, mean, np.where(known, (block - mean) ** 2, 0.0).sum(axis=0))

    def __add__(self, other: Moments) -> Moments:
        """Of both together (Chan, Golub and LeVeque 1979, equations 2.1)."""
        count = self.count + other.count
        some = np.maximum(count, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            delta = other.mean - self.mean
            mean = self.mean + delta * (other.count / some)
            squares = self.squares + other.squares + delta**2 * (self.count * other.count / some)
        return Moments(count, mean, squares)


def standardisation(rows: Iterable[ArrayLike], dimension: int | None = None, *, missing: bool = False) -> Statistics:
    """Mean and standard deviation of each feature, in one pass over rows, for EncoderSettings.

    ``rows`` gives vectors, or matrices of several rows, which are faster and give the same numbers.

    Rows with values that are not finite numbers, or of another length than ``dimension`` (by default the commonest of
    the first rows), are left out; with ``missing`` rows may lack values (NaN), and each feature has the mean and scale
    of those that it has. A feature that never varies gets scale 1. Blocks of a fixed number of rows are joined
    by their moments in float64, and the results rounded to twelve digits of the scale, so that neither how rows are
    read nor the machine shows in them.

    Raises:
        InvalidInputError: no row can be used, or a feature's squares overflow.
    """
    origin: NDArray[np.float64] | None = None
    moments: Moments | None = None
    for block in _blocks(rows, missing):
        if origin is None and (origin := _first_row(block, dimension)) is not None:
            origin = np.nan_to_num(_with_more(origin, block))
        if origin is not None:
            moments = _joined(moments, _moments_of(block, origin))
    return statistics(origin, [moments], dimension)


def origin_of(
    rows: Iterable[ArrayLike], dimension: int | None = None, *, missing: bool = False
) -> NDArray[np.float64] | None:
    """The first row that can be used, of ``dimension`` or else the commonest of the first rows; None without one.

    With ``missing`` the first value of each feature. Seen from there, a feature that never varies is exactly 0,
    wherever its moments are taken.
    """
    origin: NDArray[np.float64] | None = None
    for block in _blocks(rows, missing):
        origin = _first_row(block, dimension) if origin is None else origin
        origin = None if origin is None else _with_more(origin, block)
        if origin is not None and not np.isnan(origin).any():
            break
    return None if origin is None else np.nan_to_num(origin)


def moments(rows: Iterable[ArrayLike], origin: NDArray[np.float64], *, missing: bool = False) -> Moments | None:
    """Of the rows that can be used, seen from ``origin``; None where none can be."""
    found: Moments | None = None
    for block in _blocks(rows, missing):
        found = _joined(found, _moments_of(block, origin))
    return found


def statistics(
    origin: NDArray[np.float64] | None, parts: Iterable[Moments | None], dimension: int | None = None
) -> Statistics:
    """Mean and scale of the features whose ``moments``, seen from ``origin``, are those of all parts in this order.

    Raises:
        InvalidInputError: no row can be used, or a feature's squares overflow.
    """
    known = [part for part in parts if part is not None]
    if origin is None or not known:
        expected = "" if dimension is None else f" with {dimension} values"
        raise InvalidInputError(f"no row of finite features{expected} to standardise by")
    whole = reduce(add, known)
    never = np.flatnonzero(np.broadcast_to(whole.count, whole.mean.shape) == 0)
    if never.size:
        raise InvalidInputError(f"feature {never[0]} has no value in any row; leave it out of the input")
    overflow = np.flatnonzero(~np.isfinite(whole.squares))
    if overflow.size:
        raise InvalidInputError(f"feature {overflow[0]} is too large to standardise by; rescale it")
    deviation = np.sqrt(whole.squares / whole.count)
    scale = [float(f"{value:.{_DIGITS}g}") or 1.0 for value in deviation.tolist()]
    mean = [
        round(value, _DIGITS - math.floor(math.log10(unit)))
        for value, unit in zip((origin + whole.mean).tolist(), scale, strict=True)
    ]
    return tuple(mean), tuple(scale)


def _first_row(block: list[NDArray[np.float64]], dimension: int | None) -> NDArray[np.float64] | None:
    if dimension is None:
        dimension = Counter(part.shape[1] for part in block for _ in part).most_common(1)[0][0]
    return next((part[0] for part in block if part.shape[1] == dimension), None)


def _with_more(origin: NDArray[np.float64], block: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """``origin`` with the first value in the block of each feature that it lacks."""
    if not np.isnan(origin).any():
        return origin
    rows = np.concatenate([part for part in block if part.shape[1] == len(origin)])
    first = np.argmax(~np.isnan(rows), axis=0)
    return np.where(np.isnan(origin), rows[first, np.arange(len(origin))], origin)


def _moments_of(block: list[NDArray[np.float64]], origin: NDArray[np.float64]) -> Moments | None:
    kept = [part for part in block if part.shape[1] == len(origin)]
    with np.errstate(over="ignore", invalid="ignore"):
        return Moments.of(np.concatenate(kept) - origin) if kept else None


def _joined(first: Moments | None, second: Moments | None) -> Moments | None:
    return first + second if first is not None and second is not None else first or second


def _blocks(rows: Iterable[ArrayLike], missing: bool) -> Iterator[list[NDArray[np.float64]]]:
    """The rows of finite (or missing) numbers, _BLOCK_ROWS at a time, in matrices."""
    block: list[NDArray[np.float64]] = []
    wanted = _BLOCK_ROWS
    for raw in rows:
        try:
            part = np.atleast_2d(np.asarray(raw, dtype=np.float64))
        except (TypeError, ValueError):
            continue
        if part.ndim != 2 or np.ndim(raw) == 0:
            continue
        part = part[(~np.isinf(part) if missing else np.isfinite(part)).all(axis=1)]
        while len(part):
            block.append(part[:wanted])
            wanted -= len(block[-1])
            part = part[len(block[-1]) :]
            if not wanted:
                yield block
                block, wanted = [], _BLOCK_ROWS
    if block:
        yield block
