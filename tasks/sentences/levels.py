"""Readings of predicted quantiles in plain English: what intervals hold, and how many targets lie below a quantile."""

from __future__ import annotations

from congruence.kernels.conditional_calibration.coverage import Coverage, LevelReading
from congruence.tasks.sentences.findings import Finding, place_in_words, share_of


def level_fault(reading: LevelReading) -> str:
    """The fault in a few words: "90 % interval holds 71 %"."""
    (first, *_) = reading.faults
    held = share_of(first.observed)
    return f"{first.name[4:]} holds {held}" if first.is_interval else f"{held} below {first.name[4:]}"


def level_clause(reading: LevelReading) -> str:
    """The fault with its size: "the 90 % interval holds 71 % of the targets (66 to 76 %)", and a second one."""
    return "; ".join(_clause(each) for each in reading.faults)


def level_finding(reading: LevelReading, place: str = "", words: str = "") -> Finding:
    """The finding of a reading that is off."""
    (first, *_) = reading.faults
    apart = first.observed - first.probability
    return Finding(
        place,
        words or place_in_words(place),
        reading.rows,
        reading.share,
        level_clause(reading),
        level_fault(reading),
        apart**2 / max(first.probability * (1.0 - first.probability), 1e-12),
        f"{first.name} {apart > 0}",
        abs(apart),
    )


def _clause(fault: Coverage) -> str:
    held = f"{share_of(fault.observed)} of the targets ({_ends(fault)})"
    return f"{fault.name} holds {held}" if fault.is_interval else f"{held} lie at or below {fault.name}"


def _ends(fault: Coverage) -> str:
    return f"{share_of(fault.low).removesuffix(' %')} to {share_of(fault.high)}"
