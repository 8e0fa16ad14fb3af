"""What embedding asks of an encoder, whatever computes it, and the encoder of tabular features.

Beside them the batch size that an encoder is fastest with, and the means and spreads that features are standardised by.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainSerializer, PlainValidator

from congruence.kernels.errors import CongruenceError, InvalidInputError
from congruence.tasks.runtime.files import text_digest
from congruence.tasks.settings.sections import EncoderSettings


class InvalidRow(CongruenceError):  # noqa: N818 - a verdict on a row, counted and reported, not a failure of the program
    """One row has no embedding; ``reason`` says why. The row keeps its place and is reported, never dropped."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __reduce__(self) -> tuple[type[InvalidRow], tuple[str]]:
        return type(self), (self.reason,)


SLACK = 0.05
"""A rate within this share of the best is as good as the best, and a smaller one is no gain."""

_MEASURED_SECONDS = 0.3
_MOST_PASSES = 5
_PATIENCE = 2


@dataclass(frozen=True)
class BatchSearch:
    """What was found.

    Attributes:
        batch_size: the smallest measured size whose rate is within SLACK of the best.
        rates: rows per second by size.
        ended: why no larger size was tried.
    """

    batch_size: int
    rates: Mapping[int, float]
    ended: str

    def __str__(self) -> str:
        """The finding as one line."""
        rates = ", ".join(f"{size}: {rate:.4g} rows/s" for size, rate in sorted(self.rates.items()))
        return f"batch {rates or 'not measured'}; {self.ended}; {self.batch_size} it is"


def search_batch_size(
    seconds_of: Callable[[int], float | None], *, first: int = 8, largest: int, budget: float
) -> BatchSearch:
    """Measure sizes ``first``, 2 ``first``, ... and choose one.

    Two doublings in a row without a gain of SLACK end the search, so that one slow pass does not.

    Args:
        seconds_of: the seconds of one forward pass with so many rows, None where they do not fit into memory.
        first: the size to begin with; halved until it fits.
        largest: no size beyond it is tried.
        budget: seconds that the whole search may take; a size that would go beyond is not tried.
    """
    rates: dict[int, float] = {}
    size, spent, stalled = first, 0.0, 0
    while True:
        passes = _passes(seconds_of, size)
        if not passes and not rates and size > 1:
            size, largest = size // 2, size // 2
            continue
        if not passes:
            ended = f"memory ends before {size} rows"
            break
        spent += sum(passes)
        rate = size / min(passes)
        stalled = stalled + 1 if rates and rate < (1 + SLACK) * max(rates.values()) else 0
        rates[size] = rate
        if stalled == _PATIENCE:
            ended = f"{_PATIENCE} doublings gained less than {SLACK:.0%}"
            break
        if 2 * size > largest:
            ended = f"{largest} rows are the limit"
            break
        if spent + 2 * min(passes) > budget:
            ended = f"{2 * size} rows would take the search beyond {budget:g} s"
            break
        size *= 2
    good = [size for size, rate in rates.items() if rate >= (1 - SLACK) * max(rates.values())]
    return BatchSearch(min(good, default=1), rates, ended)


def _passes(seconds_of: Callable[[int], float | None], size: int) -> list[float]:
    """The seconds of some passes, none where memory ends: the fastest is the one that nothing else disturbed."""
    passes: list[float] = []
    while len(passes) < _MOST_PASSES and sum(passes) < _MEASURED_SECONDS:
        seconds = seconds_of(size)
        if seconds is None:
            return []
        passes.append(seconds)
    return passes


InputKind = Literal["image", "text", "features"]

BATCHES_IN_FLIGHT = 2
"""How many batches an encoder may be at work on: one computed, one copied to it."""


class Encoder(ABC):
    """Turns raw rows into vectors: preprocessing row by row in any thread, encoding batch by batch in one.

    Attributes:
        id: model, weights (by digest) and precision: whatever could change an embedding, other than preprocessing.
        preprocessing_digest: digest of everything that happens to a row before the model sees it.
        dimension: length of an embedding.
        input_kind: "image" (encoded bytes), "text" (str) or "features" (a 1-D array of numbers).
        batch_size: the number of rows to hand to `encode` at a time.
        device_kind: "cpu" or "cuda": what computes, and so what a measured batch size holds for.
        searches_batch_size: whether the batch size is to be measured before the first row is embedded.
        takes_missing: of an encoder with `encode_matrix`: whether a row of features may lack values (NaN).
        weight_files: the files that the weights and their configuration were read from, none of untrained weights; None
            where they are not known.
        encode_matrix: of an encoder of features that takes many rows at once, to the same bytes as row by row: from raw
            rows (rows, features) to embeddings, not finite where `preprocess` or `encode` refuses one.

    The same rows in the same batches give the same bytes on the same machine; another partition into batches may move
    an embedding by single-precision rounding (about 1e-7). Embeddings are the encoder's raw output: a protocol
    decides whether they are normalised.
    """

    id: str
    preprocessing_digest: str
    dimension: int
    input_kind: InputKind
    batch_size: int = 64
    device_kind: str = "cpu"
    searches_batch_size: bool = False
    takes_missing: bool = False
    weight_files: tuple[Path, ...] | None = None
    encode_matrix: Callable[[NDArray[np.float64]], NDArray[np.float32]] | None = None

    @abstractmethod
    def preprocess(self, raw: Any) -> Any:
        """One row made ready for the model; thread-safe; raises InvalidRow, with a reason, for one it cannot read."""

    @abstractmethod
    def encode(self, batch: list[Any]) -> NDArray[np.float32]:
        """Embeddings (len(batch), dimension) of preprocessed rows."""

    def begin(self, batch: list[Any]) -> Callable[[], NDArray[np.float32]]:
        """Start on a batch; the function that waits for its embeddings, which are those of `encode`.

        An encoder may be at work on `BATCHES_IN_FLIGHT` batches at once, which are waited for in their order.
        """
        done = self.encode(batch)
        return lambda: done

    def embed(self, raw: Iterable[Any], first: int = 0) -> NDArray[np.float32]:
        """Embeddings of raw rows, (rows, dimension); raises InvalidRow with the row's number, counted from `first`."""
        ready = []
        for row, value in enumerate(raw, first):
            try:
                ready.append(self.preprocess(value))
            except InvalidRow as invalid:
                raise InvalidRow(f"row {row}: {invalid.reason}") from invalid
        parts = [self.encode(ready[at : at + self.batch_size]) for at in range(0, len(ready), self.batch_size)]
        return np.concatenate(parts) if parts else np.empty((0, self.dimension), dtype=np.float32)

    def search_batch_size(self) -> BatchSearch:
        """Measure which batch size is fastest here; takes seconds. `batch_size` stays what it is."""
        return BatchSearch(self.batch_size, {}, "this encoder's batch size is not searched for")

    def use_batch_size(self, size: int) -> None:
        """Take `size` as the batch size from now on, or what is known to fit into memory if that is less."""
        self.batch_size = size


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
