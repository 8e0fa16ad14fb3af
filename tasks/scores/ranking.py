"""The order in which versions are listed: by a proper score where it differs beyond noise, else by CCE."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from congruence.tasks.scores.evaluation import MetricValue

PROPER = ("crps_mean", "nll_mean")
"""The proper score that orders: the first that all have."""

T = TypeVar("T")


def ranked(versions: Iterable[T], metrics_of: Callable[[T], Mapping[str, MetricValue]]) -> list[T]:
    """Versions of one split, the best first.

    A proper score says which predicts best, CCE which is honest. Versions whose intervals of the score overlap that of
    the best are not told apart by it, and stand in the order of their CCE; then come the others likewise, and last
    those without the score.
    """
    left, found = list(versions), list[T]()
    name = next((each for each in PROPER if left and all(each in metrics_of(item) for item in left)), "")

    def low(item: T) -> float:
        metric = metrics_of(item)[name]
        return metric.value if metric.low is None else metric.low

    def cce(item: T) -> float:
        metric = metrics_of(item).get("cce_mean")
        return float("inf") if metric is None else metric.value

    while left and name:
        best = metrics_of(min(left, key=lambda item: metrics_of(item)[name].value))[name]
        high = best.value if best.high is None else best.high
        tier = sorted((item for item in left if low(item) <= high), key=cce)
        found += tier
        left = [item for item in left if item not in tier]
    return [*found, *sorted(left, key=cce)]
