"""Tabular features as embeddings, and the means and spreads that they are standardised by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainSerializer, PlainValidator

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.encoders.base import Encoder, InputKind, InvalidRow
from congruence.tasks.runtime.files import text_digest
from congruence.tasks.settings.sections import EncoderSettings

_DIGITS = 12

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and scale of each feature, for EncoderSettings."""


_as_list = PlainSerializer(lambda values: values.tolist())
_Floats = Annotated[NDArray[np.float64], PlainValidator(partial(np.array, dtype=np.float64)), _as_list]
_Counts = Annotated[NDArray[np.int64], PlainValidator(partial(np.array, dtype=np.int64)), _as_list]
"""As lists where pydantic writes them into a manifest."""


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of each feature, (d,) each; sums of them are those of all their rows.

    Attributes:
        origin: a value of each feature, which ``mean`` is counted from: large offsets then cost no digits, and a
            feature that never varies is exactly 0.
        count: values of it; rows may lack some (NaN).
        mean: less the origin.
        squares: sum of squared deviations from the mean.
    """

    origin: _Floats
    count: _Counts
    mean: _Floats
    squares: _Floats

    @classmethod
    def of(cls, rows: NDArray[np.float64]) -> Moments:
        """Of finite or missing values, (n, d)."""
        known = ~np.isnan(rows)
        count = known.sum(axis=0)
        if not len(rows):
            return cls(np.zeros(rows.shape[1]), count, np.zeros(rows.shape[1]), np.zeros(rows.shape[1]))
        first = rows[np.argmax(known, axis=0), np.arange(rows.shape[1])]
        origin = np.where(count > 0, first, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            values = rows - origin
            whole = bool(known.all())
            mean = (values if whole else np.where(known, values, 0.0)).sum(axis=0) / np.maximum(count, 1)
            values -= mean
            np.square(values, out=values)
            squares = (values if whole else np.where(known, values, 0.0)).sum(axis=0)
        return cls(origin, count, mean, squares)

    def __add__(self, other: Moments) -> Moments:
        """Of both together (Chan, Golub and LeVeque 1979, equations 2.1)."""
        count = self.count + other.count
        some = np.maximum(count, 1)
        origin = np.where(self.count > 0, self.origin, other.origin)
        with np.errstate(over="ignore", invalid="ignore"):
            delta = other.mean + (other.origin - origin) - self.mean
            mean = self.mean + delta * (other.count / some)
            squares = self.squares + other.squares + delta**2 * (self.count * other.count / some)
        return Moments(origin, count, mean, squares)


def statistics(found: Moments | None, dimension: int | None = None) -> Statistics:
    """Mean and scale of features by their moments, the scale of one that never varies being 1.

    Rounded to twelve digits of the scale, so that how rows are read hardly shows.

    Raises:
        InvalidInputError: no row can be used, or a feature's squares overflow.
    """
    if found is None or dimension not in (None, len(found.count)) or not found.count.any():
        expected = "" if dimension is None else f" with {dimension} values"
        raise InvalidInputError(f"no row of finite features{expected} to standardise by")
    never = np.flatnonzero(found.count == 0)
    if never.size:
        raise InvalidInputError(f"feature {never[0]} has no value in any row; leave it out of the input")
    overflow = np.flatnonzero(~np.isfinite(found.squares))
    if overflow.size:
        raise InvalidInputError(f"feature {overflow[0]} is too large to standardise by; rescale it")
    deviation = np.sqrt(found.squares / found.count)
    scale = [float(f"{value:.{_DIGITS}g}") or 1.0 for value in deviation.tolist()]
    mean = [
        round(value, _DIGITS - math.floor(math.log10(unit)))
        for value, unit in zip((found.origin + found.mean).tolist(), scale, strict=True)
    ]
    return tuple(mean), tuple(scale)


class FeatureEncoder(Encoder):
    """(features - mean) / scale, feature by feature; rows are 1-D arrays of numbers, see ``EncoderSettings.missing``.

    Attributes:
        features: how many there are; ``dimension`` is twice that with indicators of the missing ones.
    """

    input_kind: InputKind = "features"

    def __init__(self, settings: EncoderSettings) -> None:
        known = (settings.dimension, settings.mean and len(settings.mean), settings.scale and len(settings.scale))
        self.features = next(int(size) for size in known if size)
        self.takes_missing = settings.takes_missing
        self._indicates = settings.missing == "indicator"
        self.dimension = self.features * (2 if self._indicates else 1)
        self._mean = np.asarray(settings.mean or np.zeros(self.features), dtype=np.float64)
        self._scale = np.asarray(settings.scale or np.ones(self.features), dtype=np.float64)
        self.batch_size = settings.given_batch_size or 4096
        self.preprocessing_digest = text_digest(
            "standardisation",
            [float(m).hex() for m in self._mean],
            [float(s).hex() for s in self._scale],
            *([f"missing {settings.missing}"] if settings.takes_missing else []),
        )
        self.id = f"identity:{self.dimension}"

    def preprocess(self, raw: Any) -> NDArray[np.float64]:
        """The standardised row; InvalidRow where it has another length or a value that cannot be used."""
        try:
            row = np.asarray(raw, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidRow(f"the features are not numbers: {error}") from error
        if row.shape != (self.features,):
            raise InvalidRow(f"the features have shape {row.shape}; expected ({self.features},)")
        wrong = np.flatnonzero(np.isinf(row) if self.takes_missing else ~np.isfinite(row))
        if wrong.size:
            more = f" and {wrong.size - 1} more" if wrong.size > 1 else ""
            raise InvalidRow(f"feature {wrong[0]} is {row[wrong[0]]}{more}")
        return self._standardised(row)

    def encode(self, batch: list[Any]) -> NDArray[np.float32]:
        """The rows as one array; a number too large for float32 becomes infinite."""
        with np.errstate(over="ignore"):
            return np.asarray(batch, dtype=np.float32).reshape(len(batch), self.dimension)

    def encode_matrix(self, rows: NDArray[np.float64]) -> NDArray[np.float32]:
        """Many raw rows at once, to the same bytes as one by one; not finite where `preprocess` refuses the row."""
        if rows.shape[1] != self.features:
            return np.full((len(rows), self.dimension), np.nan, dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(self._standardised(rows), dtype=np.float32)

    def _standardised(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of (..., features); the mean, which is 0 here, stands in for what is missing."""
        values = np.asarray((rows - self._mean) / self._scale)
        if not self.takes_missing:
            return values
        absent = np.isnan(rows)
        values[absent] = 0.0
        return np.concatenate([values, absent.astype(np.float64)], axis=-1) if self._indicates else values
