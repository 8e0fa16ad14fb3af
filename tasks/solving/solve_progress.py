"""How far a solve by row blocks is: one share of all its passes, each weighted by what it is known to cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from congruence.tasks.runtime.steps import step

PERCENT = 100

# Microseconds a row, as measured on two cores: what a pass takes whatever the versions, of each
# version that is continuous, and of each of counts.
_SOLVE = {
    "look": (0.0, 1.0, 3.0),
    "sample": (1.0, 0.0, 0.0),
    "inputs": (9.0, 0.0, 0.0),
    "right-hand sides": (0.0, 17.0, 20.0),
    "scores": (0.0, 15.0, 36.0),
    "influence": (0.0, 10.0, 11.0),
}
_CALIBRATION = {
    "calibration sample": (1.0, 0.0, 0.0),
    "calibration bases": (20.0, 0.0, 0.0),
    "calibration quantiles": (0.0, 0.5, 2.5),
    "calibration scores": (0.0, 4.0, 7.0),
    "calibration null": (9.0, 1.0, 0.0),
    "calibration reading": (0.0, 8.0, 30.0),
}
_OTHER = (1.0, 1.0, 1.0)
_BEGUN = 0.15e6  # of any pass, however few its rows: what stands between two passes, tasks on their way


class SolveProgress:
    """The share of a solve that is done; passes that nobody foresaw are added when they begin.

    Args:
        advance: takes the percent just done.
        rows: of the split, for each thread of the cluster.
        continuous, counts: how many versions of each kind.
        calibrated: whether calibration given the input is measured, too.
    """

    def __init__(
        self, advance: Callable[[int], None], rows: float, continuous: int, counts: int = 0, *, calibrated: bool = False
    ) -> None:
        self._advance, self._rows, self._kinds, self._lock = advance, rows, (1, continuous, counts), Lock()
        self._ahead = {name: self._weight(name) for name in (_SOLVE | _CALIBRATION if calibrated else _SOLVE)}
        self._total, self._done, self._said = sum(self._ahead.values()), 0.0, 0

    @classmethod
    @contextmanager
    def of(cls, rows: float, continuous: int, counts: int, *, calibrated: bool) -> Iterator[SolveProgress]:
        """Said step by step (``runtime.steps``) while inside."""
        with step("solve", PERCENT, "percent") as advance:
            progress = cls(advance, rows, continuous, counts, calibrated=calibrated)
            yield progress
            progress._say(PERCENT)

    def pass_of(self, name: str, parts: int) -> Callable[[], None]:
        """A pass of so many parts begins: what to call when one of them ends."""
        with self._lock:
            weight = self._ahead.pop(name, None)
            if weight is None:  # of a further try, or of a kind that few solves have
                weight = self._weight(name)
                self._total += weight

        def ended() -> None:
            with self._lock:
                self._done += weight / parts
                self._say(int(PERCENT * self._done / self._total))

        return ended

    def _weight(self, name: str) -> float:
        weights = (_SOLVE | _CALIBRATION).get(name, _OTHER)
        return _BEGUN + self._rows * sum(weight * count for weight, count in zip(weights, self._kinds, strict=True))

    def _say(self, percent: int) -> None:
        """Never less than before: where passes were added, it waits."""
        if percent > self._said:
            self._advance(percent - self._said)
            self._said = percent
