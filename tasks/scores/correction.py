"""What recalibrating a version would change, as its report and its run hold it."""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True)
class CorrectionPreview:
    """What recalibrating would change.

    Attributes:
        said: what it does, in words; "" where cross-validation chooses no change.
        fitted_on: rows that it was fitted on.
        rows: other rows, on which all numbers are.
        table: NLL where there is one, CRPS, CCE, and the p-value of calibration given the input.
    """

    said: str
    fitted_on: int
    rows: int
    table: tuple[PreviewRow, ...]

    def as_plain(self) -> dict[str, object]:
        """As JSON values."""
        return {**vars(self), "table": [vars(row) for row in self.table]}
