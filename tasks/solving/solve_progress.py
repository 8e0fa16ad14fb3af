"""How far a solve by row blocks is: one share of all its passes, each weighted by what it is known to cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from congruence.kernels.steps import step

PERCENT = 100

# Seconds of two workers for five count models at 100,000 rows (tests/benchmarks/straight_way.md): the first of a pass
# over the inputs, the second of one version in a pass over all.
_SOLVE = {
    "look": (0.0, 0.15),
    "sample": (0.1, 0.0),
    "inputs": (0.5, 0.0),
    "right-hand sides": (0.5, 1.0),
    "scores": (1.0, 2.0),
    "influence": (0.5, 0.3),
}
_CALIBRATION = {
    "calibration sample": (0.1, 0.0),
    "calibration bases": (3.0, 0.0),
    "calibration quantiles": (0.0, 0.3),
    "calibration scores": (1.0, 0.6),
    "calibration reading": (1.0, 0.6),
}
_OTHER = 0.2  # of a pass that not every solve has, and of one version in it


class SolveProgress:
    """The share of a solve that is done; passes that nobody foresaw are added when they begin."""

    def __init__(self, advance: Callable[[int], None], versions: int, *, calibrated: bool) -> None:
        self._advance, self._versions, self._lock = advance, versions, Lock()
        known = _SOLVE | (_CALIBRATION if calibrated else {})
        self._ahead = {name: self._weight(*weights) for name, weights in known.items()}
        self._total, self._done, self._said = sum(self._ahead.values()), 0.0, 0

    @classmethod
    @contextmanager
    def of(cls, versions: int, *, calibrated: bool) -> Iterator[SolveProgress]:
        """Said step by step (``kernels.steps``) while inside."""
        with step("solve", PERCENT, "percent") as advance:
            progress = cls(advance, versions, calibrated=calibrated)
            yield progress
            progress._say(PERCENT)

    def pass_of(self, name: str, parts: int) -> Callable[[], None]:
        """A pass of so many parts begins: what to call when one of them ends."""
        with self._lock:
            weight = self._ahead.pop(name, None)
            if weight is None:  # of a further try, or of a kind that few solves have
                weight = self._weight(*(_SOLVE | _CALIBRATION).get(name, (_OTHER, _OTHER)))
                self._total += weight

        def ended() -> None:
            with self._lock:
                self._done += weight / parts
                self._say(int(PERCENT * self._done / self._total))

        return ended

    def _weight(self, of_inputs: float, of_a_version: float) -> float:
        return of_inputs + of_a_version * self._versions

    def _say(self, percent: int) -> None:
        """Never less than before: where passes were added, it waits."""
        if percent > self._said:
            self._advance(percent - self._said)
            self._said = percent
