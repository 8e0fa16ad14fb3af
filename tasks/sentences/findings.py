"""Findings in plain English: what is wrong, where, and how much; the largest fault first.

How much is said in the unit of the targets, where it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from congruence.kernels.conditional_calibration.faults import FACTORS
from congruence.kernels.conditional_calibration.reading import GroupReading
from congruence.kernels.pit import ORDERS
from congruence.tasks.sentences.calibration import (
    capital,
    percent,
    place_in_words,
    reading_clause,
    second_clause,
    short_name,
    significant,
)
from congruence.tasks.sentences.target_rows import TargetRows

MOST_SENTENCES = 5
MUCH = 1.5
"""A factor between the sums of predicted means and of targets from which it is stated as a factor."""

_SATURATED = 3.0
"""A factor of the spread from which bounded scores tell it badly, and the targets themselves tell it."""

_ROUNDING = 1e-12
"""Of a mean: the spread of equal draws."""

_MOST = 1.5
"""Of a size, whose largest is 3: beyond it nothing else can be read from bounded scores."""

_APART = 1.25
"""A factor of the spread from which it is told beside such a shift: one that varies by itself makes some of it."""

_MOST_OF = 0.75
"""Share of the rows up to which what is found in the others is told from what is found in all."""

_OTHERWISE = "distributed otherwise than predicted"
_UNIT, _UNIT_OF_SPREAD = 10.0, 30.0
"""Times, or predicted spreads, from which a wrong unit is the first thing to look for."""


@dataclass(frozen=True)
class Finding:
    """A fault of some rows.

    Attributes:
        place: the name of the slice, region or segment, "" of all rows.
        words: the same in a sentence: "where site is b".
        rows: how many they are.
        share: of the split.
        clause: the fault with its size: "predictions are 0.82 too low on average (0.74 to 0.9)".
        short: the fault in a few words.
        size: its square in score units: the share of the scores' variance that it makes there.
        kind: faults of one kind and one size differ in nothing that is worth a sentence.
        amount: of the fault, positive, to compare faults of one kind.
        also: kinds and amounts of others that say the same.
        second: kind and amount of another that the clause tells beside it, where it has an amount.
        lies_in: names of places of which this one is a part.
        sample: where not all rows of a long split were looked through: of how many ``rows`` are so many.
    """

    place: str
    words: str
    rows: int
    share: float
    clause: str
    short: str
    size: float
    kind: str = ""
    amount: float = 0.0
    also: Mapping[str, float] = field(default_factory=dict)
    second: Mapping[str, float] = field(default_factory=dict)
    lies_in: tuple[str, ...] = ()
    sample: int | None = None

    @property
    def weight(self) -> float:
        """What the fault makes of the variance of all rows' scores: which of two is the larger."""
        return self.size * self.share

    @property
    def stop(self) -> str:
        """What ends the sentence, which may be a question already."""
        return "" if self.clause.endswith("?") else "."

    @property
    def sentence(self) -> str:
        """ "Where site is b (500 rows, 25 %) predictions are 0.61 too high on average (0.5 to 0.7)."."""
        if not self.place:
            return f"{capital(self.clause)}{self.stop}"
        rows = f" ({self.rows:,} rows, {percent(self.share)})"
        if self.sample is not None:
            rows = f" ({percent(self.share)} of the rows, read in {self.rows:,} of a sample of {self.sample:,})"
        return f"{capital(self.words)}{'' if self.words.startswith('for ') else rows} {self.clause}{self.stop}"

    @property
    def label(self) -> str:
        """The fault and its place: what a column has room for."""
        return f"{self.short} {self.words}" if self.place else self.short

    @property
    def is_of_cluster(self) -> bool:
        """Whether its place is a cluster of rows, which other faults than its own make what it is."""
        return self.words.startswith("in ")

    @property
    def main(self) -> Finding:
        """Without what its clause tells beside it."""
        return replace(self, second={})

    def repeats(self, other: Finding) -> bool:
        """Whether it tells nothing beside ``other``: kinds that it tells, too, and neither half nor twice of them.

        Nor is it what makes ``other``, with less than a third of it in the other rows: of a fault in half of the rows
        the mean over all rows is half.
        """
        told = {**other.also, **other.second, other.kind: other.amount}
        part = min(self.share / other.share, _MOST_OF)

        def is_told(kind: str, own: float) -> bool:
            amount = told.get(kind, 0.0)
            return 0.5 * amount < own < min(2.0 * amount, 3.0 * (amount - part * own) / (1.0 - part))

        return all(is_told(*each) for each in ((self.kind, self.amount), *self.second.items()))


def sentences_of(
    overall: Finding | None,
    places: Sequence[Finding],
    total: int,
    further: Sequence[Finding] = (),
    others: Callable[[Finding, str], Finding | None] | None = None,
) -> tuple[list[str], str]:
    """At most five sentences on a version that is wrong, the largest fault first, and that fault's label.

    Args:
        overall: the fault of all rows together, where they have one.
        places: the slices or regions with a fault.
        total: how many of these were read.
        further: findings of other kinds: segments, targets far out, values that many targets share.
        others: gives the fault of all rows but those of a slice or range, where they have one, or of those of a place,
            by its name. Beside that it says more than the fault of all rows, of which it makes a part.
    """
    ordered = sorted([*places, *further], key=lambda each: -each.weight)
    if overall is None and not ordered:
        return ["The predictions are wrong somewhere, but in no place by enough to name it."], ""
    same = [] if overall is None else [each for each in ordered if each.repeats(overall)]
    apart = [each for each in ordered if each not in same]
    first = apart[0] if apart else overall
    if overall is not None and all(overall.weight >= each.weight or each.main.repeats(overall) for each in apart):
        first = overall
    assert first is not None
    sentences = [first.sentence]
    without = others if first.place and not first.is_of_cluster else None
    rest = None if without is None else without(first, "")
    if rest is not None:
        sentences.append(f"In all other rows, {rest.clause}{rest.stop}")
    elif without is None and overall is not None and first is not overall:
        sentences.append(f"Over all rows, {overall.clause}{overall.stop}")

    # Of a range and all other rows, what both make together is not told: a place may have it from the range's rows.
    told, parts = [first], [each for each in (apart if without is None else ordered) if each is not first]
    left = part = beside = 0
    for each in parts:
        left_of_it = without(first, each.place) if without is not None and each.place else each
        if rest is not None and any(one is not None and one.repeats(rest) for one in (each, left_of_it)):
            beside += each in places
        elif left_of_it is None or any(other.place in each.lies_in and each.repeats(other) for other in told):
            part += each in places
        elif each.is_of_cluster and any(other.place and not other.is_of_cluster for other in told):
            left += 1  # a range, whose fault the cluster may have from the rows that lie in it
        elif len(sentences) < MOST_SENTENCES - 1:
            sentences.append(each.sentence)
            told.append(each)
        else:
            left += each in places
    shared = sum(1 for each in same if each in places) if without is None else 0
    right, of_all = total - len(places), overall is not None and without is None
    alone = rest is not None or of_all or not all(each.place for each in told)
    alone = alone or not any(each in places for each in told)  # ranges, whose rows lie in the places
    if without is not None and rest is None and len(told) == 1 and not left:
        sentences.append("In all other rows no fault was found.")
        right = 0
    among = ("for", "target") if first.words.startswith("for ") else ("in", "place")
    return [*sentences, *_rest(total, left, shared, part, beside, right, alone, among)], first.label


def _rest(
    total: int, further: int, same: int, part: int, beside: int, right: int, alone: bool, among: tuple[str, str]
) -> list[str]:
    """The last sentence, if there is one, on the places that no other speaks of.

    Of ``total`` places ``further`` ones have another fault than all rows have and were not named, the ``same`` have the
    overall fault, ``part`` have none without rows of a place that was named (or lie in it and have its fault),
    ``beside`` have that of all rows but the first place's, and in ``right`` no fault was found; ``alone``: though one
    was told of rows that these hold. They are places, or targets of the same rows (``among``).
    """
    parts, (of, one) = [], among
    if further:
        parts.append(f"1 more {one} has another fault" if further == 1 else f"{further} more {one}s have other faults")
    if same:
        few = "1 place shares" if same == 1 else f"{same} of {total} places share"
        parts.append(f"{'all places share' if same == total else few} the overall fault")
    if beside:
        parts.append(f"{'1 place has' if beside == 1 else f'{beside} places have'} the same fault as all other rows")
    if part:
        parts.append(f"{'1 place is' if part == 1 else f'{part} places are'} off only because of rows named above")
    if right:
        parts.append(f"no fault was found {of} {right} of {total} {one}s{' taken alone' if alone else ''}")
    return [capital("; ".join(parts)) + "."] if parts else []


def group_finding(reading: GroupReading, place: str = "", words: str = "", sizes: TargetRows | None = None) -> Finding:
    """The finding of a reading of PIT scores: in the unit of the targets where ``sizes`` of its rows are known."""
    kind = reading.dominant
    clause = _CLAUSES[kind](reading, sizes) if sizes is not None and kind in _CLAUSES else reading_clause(reading)
    second, above = (None, False) if sizes is None or kind not in _CLAUSES else _second(reading, sizes)
    size = {}
    if second is not None and not clause.endswith("?"):
        clause += second_clause(second, above)
        if second == "spread" and sizes is not None and sizes.factor is not None:
            apart = abs(float(np.log(sizes.factor.value)))
            size = {f"spread{'+' if above else '-'}": apart}
            clause += f", by a factor of {_times(float(np.exp(apart)))}" if reading.strength**2 >= _MOST else ""
    sign = "+" if reading.strength > 0 else "-"
    is_cut = sizes is not None and _crowded(reading, sizes) is not None
    return Finding(
        place,
        words or place_in_words(place),
        reading.rows,
        reading.share,
        clause,
        _OTHERWISE if is_cut else short_name(kind, reading.strength),
        reading.strength**2,
        kind + sign,
        _amount(reading, sizes),
        second=size,
    )


def _bias(reading: GroupReading, sizes: TargetRows) -> str:
    too_high, bias, ratio = reading.strength < 0, sizes.bias, sizes.ratio
    if bias is None or (bias.value > 0) != too_high:  # a mean that few far targets decide
        return reading_clause(reading)
    side = "high" if too_high else "low"
    if ratio is not None and (ratio.value > 1) == too_high and not 1.0 / MUCH < ratio.value < MUCH:
        times, low, high = (ratio.value, ratio.low, ratio.high)
        if not too_high:
            times, low, high = 1.0 / times, 1.0 / high, 1.0 / low
        return f"the predicted mean is {_times(times)} times too {side} ({_times(low)} to {_times(high)}){_unit(times)}"
    low, high = sorted((abs(bias.low), abs(bias.high))) if bias.low * bias.high > 0 else (0.0, 0.0)
    interval = f" ({significant(low)} to {significant(high)})" if high else ""
    return f"predictions are {significant(abs(bias.value))} too {side} on average{interval}{_unit(abs(reading.shift))}"


def _factor(reading: GroupReading, sizes: TargetRows) -> tuple[float, float, float]:
    """The targets' spread over the predicted one, with its interval."""
    own, factor, (low, high) = sizes.factor, reading.factor, reading.factor_interval
    if own is not None and (own.value > 1) == (factor > 1):
        shows = low > 1 or high < 1 or own.low <= 1 <= own.high  # bounded scores tell a spread that few rows make last
        if not (shows and 1.0 / _SATURATED < factor < _SATURATED):
            return own.value, own.low, own.high
    return factor, low, high


def _amount(reading: GroupReading, sizes: TargetRows | None) -> float:
    """How large the dominant fault is, in the terms in which it is told: bounded scores hardly tell 1.2 from 3.3."""
    if sizes is not None and reading.dominant == "spread":
        return abs(float(np.log(_factor(reading, sizes)[0])))
    if sizes is not None and reading.dominant == "bias" and sizes.bias is not None:
        return abs(sizes.bias.value)
    return abs(reading.strength)


def _spread(reading: GroupReading, sizes: TargetRows) -> str:
    none = float(np.mean(sizes.std <= _ROUNDING * np.abs(sizes.mean)))
    if none > 0.5 and reading.strength > 0:
        where = "all" if none == 1.0 else percent(none)
        apart = significant(float(np.mean(np.abs(sizes.y - sizes.mean))))
        return f"the predicted spread is 0 in {where} of the rows, and the targets lie {apart} away on average"
    factor, low, high = _factor(reading, sizes)
    if reading.strength < 0:
        factor, low, high = 1.0 / factor, 1.0 / high, 1.0 / low
    size = "small" if reading.strength > 0 else "large"
    told = f"{_times(factor)} " + (
        f"({_times(low)} to {_times(high)})" if abs(factor - FACTORS[1]) > 0.01 else "or more"
    )
    return f"the predicted spread is too {size} by a factor of {told}{_unit(factor, _UNIT_OF_SPREAD)}"


def _tails(reading: GroupReading, sizes: TargetRows) -> str:
    kind, level = ("heavier", 0.98) if reading.strength > 0 else ("lighter", 0.9)
    inside, beyond = percent(1.0 - sizes.share_beyond(0.5)), percent(sizes.share_beyond(level))
    return (
        f"the targets have {kind} tails than predicted: the predicted 50 % interval holds {inside}, and {beyond} lie "
        f"beyond the {100 * level:.0f} % interval"
    )


def _skew(reading: GroupReading, sizes: TargetRows) -> str:
    above, below = (percent(sizes.share_outside(level)) for level in (0.95, 0.05))
    if (crowded := _crowded(reading, sizes)) is not None:
        ends = "10 % quantile and the median" if reading.strength > 0 else "median and the 90 % quantile"
        return f"the targets are {_OTHERWISE}: {percent(crowded)} lie between the {ends}, where 40 % should"
    if reading.strength > 0:
        shares = f"{above} lie above the 95 % quantile, {below} below the 5 % quantile"
        return f"the targets are skewed to the right of the predictions: {shares}"
    shares = f"{below} lie below the 5 % quantile, {above} above the 95 % quantile"
    return f"the targets are skewed to the left of the predictions: {shares}"


def _crowded(reading: GroupReading, sizes: TargetRows) -> float | None:
    """The share of the targets before the median, of those that are cut off where a skew would have them reach.

    None where they reach further on that side than on the other, by two standard errors at least, or are no more before
    the median than should be.
    """
    side, other, low = (0.95, 0.05, 0.1) if reading.strength > 0 else (0.05, 0.95, 0.5)
    held = float(np.mean((sizes.pit > low) & (sizes.pit < low + 0.4)))
    beyond, before = sizes.share_outside(side), sizes.share_outside(other)
    is_cut = reading.dominant == "skew" and beyond - before <= 2.0 * ((beyond + before) / len(sizes.pit)) ** 0.5
    return held if is_cut and held > 0.4 else None


_CLAUSES: dict[str, Callable[[GroupReading, TargetRows], str]] = {
    "bias": _bias,
    "spread": _spread,
    "skew": _skew,
    "tails": _tails,
}


def _second(reading: GroupReading, sizes: TargetRows) -> tuple[str | None, bool]:
    """Another fault of the same rows that the targets show, and on which side; of a large shift their distances do."""
    if reading.strength**2 < _MOST:
        second = reading.second()
        if second is None or not _shows(reading, second, sizes):
            return None, False
        return second, bool(reading.unexplained[ORDERS.index(second)] > 0)
    factor = sizes.factor if reading.dominant == "bias" else None
    if factor is None or (factor.high > 1.0 / _APART and factor.low < _APART):
        return None, False
    return "spread", factor.value > 1.0


def _shows(reading: GroupReading, second: str, sizes: TargetRows) -> bool:
    """Whether the targets have a second fault that their PIT scores show: a skew moves these, but no mean."""
    above = reading.unexplained[ORDERS.index(second)] > 0
    if second == "bias":
        return sizes.bias is not None and (sizes.bias.high < 0.0 if above else sizes.bias.low > 0.0)
    if second == "spread":
        return sizes.factor is not None and (sizes.factor.low > 1.0 if above else sizes.factor.high < 1.0)
    return True


def _unit(times: float, least: float = _UNIT) -> str:
    return "; is the unit right?" if times >= least else ""


def _times(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(frozen=True)
class WrongPlace:
    """A slice, region or target that is named wrong: how many rows it has, and the fault in words."""

    place: str
    rows: int
    fault: str


@dataclass(frozen=True)
class Segment:
    """A range of features in which the version is wrong.

    Attributes:
        name: "age up to 30, area from 3".
        finding: what is wrong there, by rows that had no part in where its ends lie (``FoundSegment.judged_by``).
        p_value: of the whole search.
        excess: the mean CCE of its rows beyond what is expected of a true version, see ``excess_over``.
        ranges: the same as ``name``: (column, above, up to), of words "column = word" with the bounds .5.
        places: the slices or regions, and the other segments, that lie in it, by name.
    """

    name: str
    finding: Finding
    p_value: float
    excess: float
    ranges: tuple[tuple[str, float, float], ...] = ()
    places: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The slice that it is, if it is one: "area c"."""
        return self.lies_in[0] if len(self.ranges) == 1 and self.lies_in else ""

    @property
    def lies_in(self) -> tuple[str, ...]:
        """The slices that hold it: ("area c",) of "area is c, age up to 30"."""
        named = [(*column.partition(" = "), low) for column, low, _ in self.ranges]
        return tuple(f"{column} {word}" for column, equals, word, low in named if equals and low > 0.0)

    def repeats(self, place: Finding) -> bool:
        """Whether it is a slice, or all of a region, that is named with its fault, or a part of one with the same."""
        name = place.place.replace(" is ", " ", 1)  # of a region: "area is c"
        if place.place in self.places and place.rows == self.finding.rows:  # "digit is 1", a range of whole numbers
            return True
        is_it = place.place == self.name or name == self.place
        return is_it or (name in self.lies_in and self.finding.repeats(place))
