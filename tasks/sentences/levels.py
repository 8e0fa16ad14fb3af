"""Readings of predicted quantiles in plain English: what intervals hold, and how many targets lie below a quantile."""

from __future__ import annotations

from collections.abc import Sequence

from congruence.kernels.conditional_calibration.coverage import Coverage, LevelReading, percent_of
from congruence.tasks.sentences.calibration import listed, p_value_in_words
from congruence.tasks.sentences.places import Place, sentences_on

MOST_LISTED = 9
"""Of more levels a sentence lists none."""


def level_fault(reading: LevelReading) -> str:
    """The fault in a few words: "90 % interval holds 71 %"."""
    (first, *_) = reading.faults
    held = share_of(first.observed)
    return f"{first.name[4:]} holds {held}" if first.is_interval else f"{held} below {first.name[4:]}"


def level_clause(reading: LevelReading) -> str:
    """The fault with its size: "the 90 % interval holds 71 % of the targets (66 to 76 %)", and a second one."""
    return "; ".join(_clause(each) for each in reading.faults)


def what_is_wrong_with_levels(
    overall: LevelReading,
    places: Sequence[Place[LevelReading]],
    segments: Sequence[Place[LevelReading]] = (),
    *,
    p_value: float,
    level: float,
) -> list[str]:
    """At most five sentences on a version that is wrong and states quantiles.

    Args:
        overall: all rows.
        places: slices or regions.
        segments: in which the version was found to be wrong.
        p_value: of the version, by which it is wrong.
        level: of q-values over the places.
    """
    everywhere = overall.is_off and overall.p_value <= level
    p = p_value_in_words(p_value)
    first = f"The predictions are wrong ({p}): over all rows, {level_clause(overall)}."
    return sentences_on(
        places,
        segments,
        level,
        p=p,
        size=overall.size,
        everywhere=[first, *_list(overall)] if everywhere else [],
        right_on_average="Over all rows together they are right on average.",
        nothing_named=_nothing_named(p),
        clause=level_clause,
        differs=lambda reading: _differs(reading, overall),
    )


def share_of(share: float) -> str:
    """A share of the targets: "71 %", and "99.4 %" where whole percents say little."""
    return f"{100.0 * share:.0f} %" if 0.05 <= share <= 0.95 else f"{100.0 * share:.1f} %"


def _clause(fault: Coverage) -> str:
    held = f"{share_of(fault.observed)} of the targets ({_ends(fault)})"
    return f"{fault.name} holds {held}" if fault.is_interval else f"{held} lie at or below {fault.name}"


def _ends(fault: Coverage) -> str:
    return f"{share_of(fault.low).removesuffix(' %')} to {share_of(fault.high)}"


def _list(reading: LevelReading) -> list[str]:
    """How many targets lie at or below each quantile."""
    if not 2 <= len(reading.levels) <= MOST_LISTED:
        return []
    levels = listed([percent_of(each.probability).removesuffix(" %") for each in reading.levels])
    shares = listed([share_of(each.observed).removesuffix(" %") for each in reading.levels])
    return [f"At or below the quantiles of {levels} % lie {shares} % of the targets."]


def _nothing_named(p: str) -> str:
    return (
        f"The predictions are wrong somewhere ({p}), but over all rows and in every place the quantiles hold what they "
        "say, within 5 % or chance."
    )


def _differs(reading: LevelReading, overall: LevelReading) -> bool:
    """Whether a place has another fault than all rows: a share whose interval excludes theirs, by a quarter or more."""
    (first, *_) = reading.faults
    same = [each for each in (*overall.intervals, *overall.levels) if each.name == first.name]
    if not same or same[0] not in overall.faults:
        return True
    apart = abs(first.observed - same[0].observed) >= 0.25 * abs(same[0].observed - first.probability)
    return apart and not first.low <= same[0].observed <= first.high
