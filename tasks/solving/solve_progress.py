"""How far a solve by row blocks is: one share of all its passes, each weighted by what it is known to cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from congruence.kernels.steps import step

PERCENT = 100

# Seconds of CPU of 20,000 rows and five count models (tests/benchmarks/straight_way.md): what a pass takes whatever the
# versions, and of each of them.
_SOLVE = {
    "look": (0.0, 0.06),
    "sample": (0.04, 0.0),
    "inputs": (0.1, 0.0),
    "right-hand sides": (0.1, 0.4),
    "scores": (0.2, 0.7),
    "influence": (0.1, 0.2),
}
_CALIBRATION = {
    "calibration sample": (0.03, 0.0),
    "calibration bases": (0.5, 0.0),
    "calibration quantiles": (0.0, 0.05),
    "calibration scores": (0.2, 0.65),
    "calibration reading": (0.2, 0.55),
}
_OTHER = 0.05  # of a pass that not every solve has, and of one version in it


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
