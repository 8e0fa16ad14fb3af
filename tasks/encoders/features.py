"""Tabular features as they are, standardised: the encoder of data that needs none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.encoders.base import Encoder, InputKind, text_digest
from congruence.tasks.encoders.errors import InvalidRow
from congruence.tasks.encoders.settings import EncoderSettings

_BLOCK_ROWS = 1024
_DIGITS = 12


class FeatureEncoder(Encoder):
    """(features - mean) / scale, feature by feature; rows are 1-D arrays of finite numbers."""

    input_kind: InputKind = "features"

    def __init__(self, settings: EncoderSettings) -> None:
        known = (settings.dimension, settings.mean and len(settings.mean), settings.scale and len(settings.scale))
        self.dimension = next(int(size) for size in known if size)
        self._mean = np.asarray(settings.mean or np.zeros(self.dimension), dtype=np.float64)
        self._scale = np.asarray(settings.scale or np.ones(self.dimension), dtype=np.float64)
        self.batch_size = settings.given_batch_size or 4096
        self.preprocessing_digest = text_digest(
            "standardisation", [float(m).hex() for m in self._mean], [float(s).hex() for s in self._scale]
        )
        self.id = f"identity:{self.dimension}"

    def preprocess(self, raw: Any) -> NDArray[np.float64]:
        """The standardised row; InvalidRow where it has another length or a value that is no finite number."""
        try:
            row = np.asarray(raw, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidRow(f"the features are not numbers: {error}") from error
        if row.shape != (self.dimension,):
            raise InvalidRow(f"the features have shape {row.shape}; expected ({self.dimension},)")
        wrong = np.flatnonzero(~np.isfinite(row))
        if wrong.size:
            more = f" and {wrong.size - 1} more" if wrong.size > 1 else ""
            raise InvalidRow(f"feature {wrong[0]} is {row[wrong[0]]}{more}")
        return np.asarray((row - self._mean) / self._scale)

    def encode(self, batch: list[Any]) -> NDArray[np.float32]:
        """The rows as one array; a number too large for float32 becomes infinite."""
        with np.errstate(over="ignore"):
            return np.asarray(batch, dtype=np.float32).reshape(len(batch), self.dimension)

    def encode_matrix(self, rows: NDArray[np.float64]) -> NDArray[np.float32]:
        """Many raw rows at once, to the same bytes as one by one; not finite where `preprocess` refuses the row."""
        if rows.shape[1] != self.dimension:
            return np.full((len(rows), self.dimension), np.nan, dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray((rows - self._mean) / self._scale, dtype=np.float32)


@dataclass(frozen=True)
class _Moments:
    """Count, mean and sum of squared deviations of each feature."""

    count: int
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def of(cls, block: NDArray[np.float64]) -> _Moments:
        mean = block.mean(axis=0)
        return cls(len(block), mean, ((block - mean) ** 2).sum(axis=0))

    def __add__(self, other: _Moments) -> _Moments:
        """Of both together (Chan, Golub and LeVeque 1979, equations 2.1)."""
        count = self.count + other.count
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.count / count)
        squares = self.squares + other.squares + delta**2 * (self.count * other.count / count)
        return _Moments(count, mean, squares)


def standardisation(
    rows: Iterable[ArrayLike], dimension: int | None = None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each feature, in one pass over rows, for EncoderSettings.

    ``rows`` gives vectors, or matrices of several rows, which are faster and give the same numbers.

    Rows with values that are not finite numbers, or of another length than ``dimension`` (by default the commonest of
    the first rows), are left out; a feature that never varies gets scale 1. Blocks of a fixed number of rows are joined
    by their moments in float64, and the results rounded to twelve digits of the scale, so that neither how rows are
    read nor the machine shows in them.

    Raises:
        InvalidInputError: no row can be used, or a feature's squares overflow.
    """
    origin: NDArray[np.float64] | None = None
    moments: _Moments | None = None
    for rows_of_block in _blocks(rows):
        if dimension is None:
            dimension = Counter(part.shape[1] for part in rows_of_block for _ in part).most_common(1)[0][0]
        kept = [part for part in rows_of_block if part.shape[1] == dimension]
        if not kept:
            continue
        if origin is None:
            origin = kept[0][0]
        with np.errstate(over="ignore", invalid="ignore"):
            # Seen from the first row, a feature that never varies is exactly 0.
            block = _Moments.of(np.concatenate(kept) - origin)
            moments = block if moments is None else moments + block
    if origin is None or moments is None:
        expected = "" if dimension is None else f" with {dimension} values"
        raise InvalidInputError(f"no row of finite features{expected} to standardise by")
    overflow = np.flatnonzero(~np.isfinite(moments.squares))
    if overflow.size:
        raise InvalidInputError(f"feature {overflow[0]} is too large to standardise by; rescale it")
    deviation = np.sqrt(moments.squares / moments.count)
    scale = [float(f"{value:.{_DIGITS}g}") or 1.0 for value in deviation.tolist()]
    mean = [
        round(value, _DIGITS - math.floor(math.log10(unit)))
        for value, unit in zip((origin + moments.mean).tolist(), scale, strict=True)
    ]
    return tuple(mean), tuple(scale)


def _blocks(rows: Iterable[ArrayLike]) -> Iterator[list[NDArray[np.float64]]]:
    """The rows of finite numbers, _BLOCK_ROWS at a time, in matrices."""
    block: list[NDArray[np.float64]] = []
    wanted = _BLOCK_ROWS
    for raw in rows:
        try:
            part = np.atleast_2d(np.asarray(raw, dtype=np.float64))
        except (TypeError, ValueError):
            continue
        if part.ndim != 2 or np.ndim(raw) == 0:
            continue
        part = part[np.isfinite(part).all(axis=1)]
        while len(part):
            block.append(part[:wanted])
            wanted -= len(block[-1])
            part = part[len(block[-1]) :]
            if not wanted:
                yield block
                block, wanted = [], _BLOCK_ROWS
    if block:
        yield block
