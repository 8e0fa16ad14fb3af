"""What embedding asks of an encoder, whatever computes it, and the encoder of tabular features.

Beside them the batch size that an encoder is fastest with, and the means and spreads that features are standardised by.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from congruence.kernels.errors import CongruenceError


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
