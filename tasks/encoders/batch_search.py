"""The batch size that an encoder is fastest with, measured: doubled until the rate no longer gains or memory ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
