"""Readings of counts in plain English: the largest fault first, in numbers observed and expected."""

from __future__ import annotations

from collections.abc import Sequence

from congruence.kernels.conditional_calibration.counts import CountReading
from congruence.tasks.sentences.calibration import capital, p_value_in_words
from congruence.tasks.sentences.places import Place, sentences_on

MUCH = 1.5
"""A factor between the sums from which an exposure that was left out is the first thing to look for."""


def count_fault(reading: CountReading) -> str:
    """The fault in two to four words."""
    if reading.mean_comes_first:
        return "predicted too large" if reading.ratio < 1.0 else "predicted too small"
    return _spread(reading)


def count_clause(reading: CountReading) -> str:
    """The fault with its size: "83 are observed where 41.2 are expected (observed over expected 2.01, 1.6 to 2.5)"."""
    if reading.mean_comes_first:
        few = "is" if reading.total.observed == 1 else "are"
        return (
            f"{_amount(reading.total.observed)} {few} observed where {_amount(reading.total.expected)} are expected "
            f"({_ratio(reading)})"
        )
    shape = f"the counts are {_spread(reading)}: {shares_clause(reading)}"
    if reading.mean_is_off:
        return (
            f"{shape}; the predicted mean is too {_size(reading)} by a factor of {_factor(reading)} ({_ratio(reading)})"
        )
    return f"{shape}; the mean is right ({_ratio(reading)})"


def shares_clause(reading: CountReading) -> str:
    """ "zeros 95.1 % of the rows (91 % predicted), ones 4.6 % (8.2 %), two and more 0.3 % (0.8 %)"."""
    zeros, ones, more = reading.shares
    return (
        f"zeros {_share(zeros.observed_share)} of the rows ({_share(zeros.expected_share)} predicted), "
        f"ones {_share(ones.observed_share)} ({_share(ones.expected_share)}), "
        f"two and more {_share(more.observed_share)} ({_share(more.expected_share)})"
    )


def what_is_wrong_with_counts(
    overall: CountReading,
    places: Sequence[Place[CountReading]],
    segments: Sequence[Place[CountReading]] = (),
    *,
    p_value: float,
    level: float,
) -> list[str]:
    """At most five sentences on a version of counts with many zeros that is wrong.

    Args:
        overall: all rows.
        places: slices or regions.
        segments: in which the version was found to be wrong.
        p_value: of the version, by which it is wrong.
        level: of q-values over the places.
    """
    everywhere = overall.is_off and overall.p_value <= level
    p = p_value_in_words(p_value)
    return sentences_on(
        places,
        segments,
        level,
        p=p,
        size=overall.size,
        everywhere=_overall(overall, p) if everywhere else [],
        right_on_average=f"Over all rows together they are right on average ({_ratio(overall)}).",
        nothing_named=_nothing_named(overall, p),
        clause=count_clause,
        differs=lambda reading: _differs(reading, overall),
    )


def _overall(reading: CountReading, p: str) -> list[str]:
    if not reading.mean_comes_first:
        return [f"The predictions are wrong ({p}): over all rows, {count_clause(reading)}."]
    amount = f" by a factor of {_factor(reading)}" if reading.total.observed > 0 else ""
    first = f"The predicted means are too {_size(reading)}{amount} ({p}): over all rows, {count_clause(reading)}."
    second = f"{capital(shares_clause(reading))}."
    if not 1.0 / MUCH < reading.ratio < MUCH:
        second += " Is an exposure missing, or a unit other than the target's predicted?"
    return [first, second]


def _nothing_named(overall: CountReading, p: str) -> str:
    return (
        f"The predictions are wrong somewhere ({p}), but sums and the shares of zeros, ones, two and more are as "
        f"predicted over all rows ({_ratio(overall)}) and in every place, within 5 % or chance."
    )


def _differs(reading: CountReading, overall: CountReading) -> bool:
    """Whether a place has another fault than all rows: a ratio whose interval excludes theirs, by a quarter or more."""
    if reading.mean_is_off != overall.mean_is_off:
        return not reading.low <= overall.ratio <= reading.high
    if not reading.mean_is_off:
        return _spread(reading) != _spread(overall)
    apart = not 0.8 < reading.ratio / max(overall.ratio, 1e-12) < 1.25
    return apart and not reading.low <= overall.ratio <= reading.high


def _size(reading: CountReading) -> str:
    return "large" if reading.ratio < 1.0 else "small"


def _factor(reading: CountReading) -> str:
    return f"{1.0 / reading.ratio if reading.ratio < 1.0 else reading.ratio:.3g}"


def _spread(reading: CountReading) -> str:
    more = [share.observed > share.expected for share in (reading.zeros, reading.more)]
    if all(more):
        return "more widely spread than predicted"
    return "distributed otherwise than predicted" if any(more) else "less widely spread than predicted"


def _ratio(reading: CountReading) -> str:
    return f"observed over expected {reading.ratio:.3g}, {reading.low:.3g} to {reading.high:.3g}"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"


def _share(value: float) -> str:
    return f"{100.0 * value:.2f} %" if value > 0.9 else f"{100.0 * value:.3g} %"
