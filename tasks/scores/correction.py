"""What recalibrating a version would change, as its report and its run hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.recalibration_map import RecalibrationMap

BEYOND_CHANCE = 2.0
"""Standard errors of a paired difference from which a number is said to get better or worse."""

MOST_LOST = 1.0
"""Of a score, its own size: a correction that loses more is none, however few rows say so."""

_PROPER = ("NLL", "CRPS")


@dataclass(frozen=True)
class PreviewRow:
    """One number, on held-out rows, as the version is and as it would be.

    Attributes:
        name: as people read it.
        now, then: before and after.
        error: standard error of their difference, where it is a mean over rows.
    """

    name: str
    now: float
    then: float
    error: float | None = None

    @property
    def is_p_value(self) -> bool:
        """Whether it is one."""
        return self.error is None

    @property
    def is_better(self) -> bool:
        """Whether it falls by more than chance."""
        return self.error is not None and self.now - self.then > BEYOND_CHANCE * self.error

    @property
    def is_worse(self) -> bool:
        """Whether it rises by more than chance."""
        return self.error is not None and self.then - self.now > BEYOND_CHANCE * self.error


def judgement(rows: Sequence[PreviewRow]) -> str:
    """What a correction does on rows that it has not seen, what gets worse as well: "NLL and CCE fall, MAE rises"."""
    better = [row.name for row in rows if row.is_better]
    worse = [row.name for row in rows if row.is_worse]
    parts = []
    if better:
        parts.append(f"{listed(better)} {'falls' if len(better) == 1 else 'fall'} (better)")
    if worse:
        parts.append(f"{listed(worse)} {'rises' if len(worse) == 1 else 'rise'} (worse)")
    return ", ".join(parts) if parts else "nothing changes beyond chance"


def listed(names: Sequence[str]) -> str:
    """One or more names as a sentence has them: "NLL, CRPS and CCE"."""
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


@dataclass(frozen=True)
class CorrectionPreview:
    """What recalibrating would change.

    Attributes:
        said: what it does, in words; "" where cross-validation chooses no change.
        fitted_on: rows that it was fitted on.
        rows: other rows, on which all numbers are.
        table: NLL where there is one, CRPS, CCE, MAE, and the p-value of calibration given the input.
    """

    said: str
    fitted_on: int
    rows: int
    table: tuple[PreviewRow, ...]

    @property
    def improves(self) -> bool:
        """Whether there is a correction, and some number falls by more than chance."""
        return bool(self.said) and any(row.is_better for row in self.table)

    @property
    def harms(self) -> bool:
        """Whether a proper score gets worse by more than chance, or by what no correction should cost in any row."""
        proper = [row for row in self.table if row.name in _PROPER]
        return any(row.is_worse or row.then > row.now + MOST_LOST * max(1.0, abs(row.now)) for row in proper)

    @property
    def judgement(self) -> str:
        """See ``judgement``."""
        return judgement(self.table)

    def as_plain(self) -> dict[str, object]:
        """As JSON values."""
        return {**vars(self), "table": [vars(row) for row in self.table]}


def in_words(fitted: RecalibrationMap, x: Array) -> str:
    """What a map changes at the inputs x, in one line; "" where nothing."""
    if fitted.changes_nothing:
        return ""
    score_map, parts = fitted.at(x), []
    if fitted.form.factor is not None:
        parts.append(f"spreads multiplied by {_range(score_map.factor)}")
    if fitted.form.shift is not None:
        parts.append(f"predictions moved by {_range(score_map.shift)} of their spreads")
    if fitted.form.shape is not None:
        parts.append("their shape corrected")
    return ", ".join(parts)


def _range(values: Array) -> str:
    low, high = np.quantile(values, [0.05, 0.95])
    return f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}, by the input"
