"""What is known of all rows without reading them: which lack a number, the ranges of targets, weights, moments."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from congruence.tasks.encoders.moments import Moments

FIRST_ROWS = 3
"""Of rows that lack a number so many are named."""


@dataclass
class Lacking:
    """Rows without a finite number where one should be: how many, and the first few with the reason."""

    rows: int = 0
    first: list[tuple[int, str]] = field(default_factory=list)

    def add(self, row: int, reason: str) -> None:
        """One more row."""
        self.rows += 1
        if len(self.first) < FIRST_ROWS:
            self.first.append((row, reason))

    @classmethod
    def of(cls, said: dict[str, Any]) -> Lacking:
        """What ``asdict`` gave."""
        return cls(said["rows"], [(row, reason) for row, reason in said["first"]])


@dataclass
class RowFacts:
    """What is known of all rows of a file, or of a split, as a whole."""

    rows: int = 0
    inputs: Lacking = field(default_factory=Lacking)
    """Features that are no numbers at all, of rows with a target. Images and texts must be decoded to be judged."""
    missing: Lacking = field(default_factory=Lacking)
    """Features without a value, of rows that have a target and are nothing worse."""
    targets: Lacking = field(default_factory=Lacking)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The smallest and the largest target by column."""
    weights: tuple[float, float] = (0.0, 0.0)
    """Their sum and that of their squares, where the rows have weights."""
    complete: Moments | None = None
    """Of tabular features, over rows that have a target and lack no feature."""
    present: Moments | None = None
    """The same over all values of rows that have a target and no infinite feature."""

    def add_features(self, rows: npt.NDArray[np.float64]) -> None:
        """Take rows of features (n, d) into the moments; those of another d than the rows before are left out."""
        lacking = np.isnan(rows).any(axis=1)
        complete = Moments.of(rows[~lacking] if lacking.any() else rows)
        self._join_moments(complete, Moments.of(rows) if lacking.any() else complete)

    def widen(self, name: str, low: float, high: float) -> None:
        """Targets of a column lie between these, too."""
        before = self.ranges.get(name, (low, high))
        self.ranges[name] = (min(before[0], low), max(before[1], high))

    def _join_moments(self, complete: Moments | None, present: Moments | None) -> None:
        self.complete, self.present = _sum(self.complete, complete), _sum(self.present, present)

    def to_json(self) -> dict[str, Any]:
        """What ``from_json`` reads."""
        found = {"complete": self.complete, "present": self.present}
        moments = {name: None if each is None else each.to_json() for name, each in found.items()}
        return {**asdict(replace(self, complete=None, present=None)), **moments}

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> RowFacts:
        """The facts that ``to_json`` wrote."""
        ranges = {name: (low, high) for name, (low, high) in said["ranges"].items()}
        total, squares = said["weights"]
        inputs, missing, targets = (Lacking.of(said[name]) for name in ("inputs", "missing", "targets"))
        kept = [said[name] for name in ("complete", "present")]
        moments = [None if each is None else Moments.from_json(each) for each in kept]
        return cls(said["rows"], inputs, missing, targets, ranges, (total, squares), *moments)


def _sum(first: Moments | None, second: Moments | None) -> Moments | None:
    if first is None or second is None:
        return first or second
    return first + second if len(first.count) == len(second.count) else first
