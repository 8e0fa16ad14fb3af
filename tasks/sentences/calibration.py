"""Readings in plain English: numbers in, one short sentence out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from congruence.kernels.calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.reading import GroupReading
from congruence.kernels.conditional_calibration.regions import RegionReading
from congruence.kernels.dependence.blocks import p_value_kind
from congruence.kernels.dependence.correlation import Correlation
from congruence.kernels.engine.dependence import BlocksInference

LEVEL = 0.05
NEGLIGIBLE = 0.05
"""A strength below which a fault, however certain, hardly matters: a shift of .05 predicted spreads, 4 % of spread."""

MOST_SENTENCES = 5
_LEAST_P = 0.001

# Of each fault, with a negative and with a positive strength.
_SHAPES = {
    "skew": (
        "the targets are skewed to the left of the predictions: their far lower side is fuller",
        "the targets are skewed to the right of the predictions: their far upper side is fuller",
    ),
    "tails": (
        "the targets have lighter tails than predicted: fewer fall close by and fewer fall far out",
        "the targets have heavier tails than predicted: more fall close by and more fall far out",
    ),
}
_SECOND = {
    "bias": ("they lie too low", "they lie too high"),
    "spread": ("they spread less than predicted", "they spread wider than predicted"),
    "skew": ("they are skewed to the left", "they are skewed to the right"),
    "tails": ("their tails are lighter", "their tails are heavier"),
}
_SHORT = {
    "bias": ("targets below the predictions", "targets above the predictions"),
    "spread": ("predicted spread too large", "predicted spread too small"),
    "skew": ("skewed to the left", "skewed to the right"),
    "tails": ("lighter tails", "heavier tails"),
}
_CALIBRATED = {"bias": "bias is", "spread": "spread is", "skew": "skewness is", "tails": "tails are"}


@dataclass(frozen=True)
class Change:
    """How a version differs from another in one fault: at most half as far from right as the other, or twice as far.

    Attributes:
        better: the former.
        fault: which of ``ORDERS``.
        clause: what is wrong with the worse of the two; empty where another fault of it is larger.
    """

    better: bool
    fault: str
    clause: str


def short_name(fault: str, strength: float) -> str:
    """A fault in two to four words, for columns, legends and table cells."""
    return _SHORT[fault][strength > 0]


def fault_clause(fault: str, strength: float, shift: float, factor: float) -> str:
    """A fault with its size as a clause: "the targets lie 0.4 predicted spreads above the predictions"."""
    if fault == "bias":
        side = "above" if strength > 0 else "below"
        return f"the targets lie {_number(abs(shift))} predicted spreads {side} the predictions"
    if fault == "spread":
        size = "small" if strength > 0 else "large"
        return f"the predicted spread is too {size} by a factor of {_factor(factor if strength > 0 else 1.0 / factor)}"
    return _SHAPES[fault][strength > 0]


def reading_clause(reading: GroupReading, *, interval: bool = True) -> str:
    """The dominant fault of a group with its 95 % interval, and a second fault where one is certain."""
    clause = fault_clause(reading.dominant, reading.strength, reading.shift, reading.factor)
    if interval:
        clause += _interval(reading)
    second = reading.second()
    if second is not None:
        left = float(reading.fault.unexplained[0][ORDERS.index(second)])
        clause += f"; {_SECOND[second][left > 0]}, too"
    return clause


def region_sentence(region: RegionReading) -> str:
    """One region's fault: "On age up to 30 (240 rows, 12 %) the targets lie 0.4 predicted spreads above ..."."""
    return f"On {_where(region)} {reading_clause(region.reading, interval=False)}."


def _where(region: RegionReading) -> str:
    return f"{region.name} ({region.reading.rows:,} rows, {percent(region.reading.share)})"


def what_is_wrong(
    overall: GroupReading,
    found: Sequence[RegionReading] = (),
    segments: Sequence[RegionReading] = (),
    *,
    p_value: float,
    level: float = LEVEL,
) -> list[str]:
    """At most five sentences on a version that is wrong: the largest fault, the places that differ, the rest.

    Args:
        overall: the reading of all rows.
        found: regions or slices.
        segments: in which the version was found to be wrong.
        p_value: of the version, by which it is wrong.
        level: of q-values over the regions.
    """
    wrong = [region for region in found if is_named(region, level)]
    told = sorted([*wrong, *segments], key=weight_of, reverse=True)
    everywhere, p = is_off(overall, level), p_value_in_words(p_value)
    same = 0
    if told and (not everywhere or weight_of(told[0]) > overall.strength**2):
        largest, *apart = told
        sentences = [f"The predictions are wrong ({p}): on {_where(largest)} {reading_clause(largest.reading)}."]
        if not everywhere:
            sentences.append("Over all rows together they are right on average.")
    else:
        sentences = [_first(overall, p, level, everywhere)]
        apart = [region for region in told if _differs(region.reading, overall)]
        same = len([region for region in wrong if region not in apart])
    shown = apart[: MOST_SENTENCES - 1 - len(sentences)]
    sentences += [region_sentence(region) for region in shown]
    if same and not apart and len(wrong) < len(found):
        sentences.append("It is largest here: " + _uncapital(region_sentence(told[0])))
    return [*sentences, *(rest("region", len(found), len(wrong), len(apart) - len(shown), same) if found else [])]


def weight_of(place: RegionReading) -> float:
    """What the fault of a place weighs: by its size, and by the share of the rows."""
    return place.reading.strength**2 * place.reading.share


def no_fault(rows: int, p_value: float) -> str:
    """The only sentence on a version in which no fault was found."""
    return (
        f"No fault found in {rows:,} rows: predictions agree with the targets, as far as these rows can show "
        f"({p_value_in_words(p_value)})."
    )


def is_off(reading: GroupReading, level: float = LEVEL) -> bool:
    """Whether the rows of a reading have a fault together, beyond chance and worth naming."""
    return reading.p_value <= level and abs(reading.strength) >= NEGLIGIBLE


def is_named(region: RegionReading, level: float) -> bool:
    """Whether the fault of a place that is read is beyond chance over all places, and worth naming."""
    return region.q_value <= level and abs(region.reading.strength) >= NEGLIGIBLE


def change_sentence(before: str, after: str, places: Sequence[str], found: Change) -> str:
    """How ``after`` compares with ``before``: "version 5's spread is worse than version 3's on digit 7: under ...".

    Args:
        before, after: names of the versions.
        places: where ``found`` holds; the first is the one that its clause is of.
        found: of ``change(reading of before, reading of after)``.
    """
    worse = before if found.better else after
    sentence = (
        f"{after}'s {_CALIBRATED[found.fault]} {'better' if found.better else 'worse'} than {before}'s "
        f"on {places_in_words(places)}"
    )
    if not found.clause:
        return sentence + "."
    under = f"under {worse} " if len(places) == 1 else f"on {places[0]}, under {worse}, "
    return f"{sentence}: {under}{found.clause}."


def places_in_words(places: Sequence[str], most: int = 4) -> str:
    """ "digit 7, digit 8 and digit 9"; of more than ``most`` the first, and how many there are beside."""
    shown = list(places) if len(places) <= most else [*places[:most], f"{len(places) - most} more"]
    return listed(shown)


def change(first: GroupReading, second: GroupReading) -> Change | None:
    """Whether ``second`` is better or worse than ``first`` in the larger fault of the two.

    None where neither has a certain fault, or where the fault is neither halved nor doubled.
    """
    fault = first if abs(first.strength) >= abs(second.strength) else second
    if fault.p_value > LEVEL or abs(fault.strength) < 2 * NEGLIGIBLE:
        return None
    kind = fault.dominant
    sizes = [abs(float(reading.fault.scores[0][ORDERS.index(kind)])) for reading in (first, second)]
    better = sizes[1] <= 0.5 * sizes[0]
    if not better and sizes[0] > 0.5 * sizes[1]:
        return None
    worse = first if better else second
    clause = fault_clause(kind, worse.strength, worse.shift, worse.factor) if worse.dominant == kind else ""
    return Change(better, kind, clause)


def inference_sentence(inference: BlocksInference) -> str:
    """By what blocks of rows p-values and intervals hold, or why there are none."""
    if inference.refused:
        return f"No p-value and no interval: {inference.refused}."
    if inference.blocks is None:
        return "Every row is a group of its own: p-values are those of independent rows."
    what = "groups" if inference.kind == "groups" else "runs of time"
    return (
        f"P-values and intervals take {inference.blocks:,} {what} of rows as independent: they are "
        f"{p_value_kind(inference.blocks)}, not exact."
    )


def correlation_clause(correlation: Correlation) -> str:
    """What correlation of rows was found that nobody named, and the remedy."""
    along = correlation.along
    within = "lag 1: " if along in ("time", "row order") else f"within {along}: "
    remedies = {"time": "`time:`", "row order": "`time:` or `groups:`"}
    return (
        f"rows are correlated ({within}{correlation.value:.2g}): p-values and intervals of independent rows do not "
        f"hold; name {remedies.get(along, f'`groups: {along}`')}"
    )


def _first(overall: GroupReading, p: str, level: float, everywhere: bool) -> str:
    if everywhere:
        return f"The predictions are wrong ({p}): over all rows, {reading_clause(overall)}."
    if overall.p_value <= level:
        return f"The predictions are not exactly right ({p}), but the fault is small: {reading_clause(overall)}."
    return f"The predictions are wrong somewhere ({p}), but in no place by enough to name it."


def rest(place: str, total: int, wrong: int, further: int, same: int) -> list[str]:
    """The last sentence, if there is one, on the places that no other speaks of.

    Args:
        place: what each is called.
        total, wrong: how many there are, and how many have a fault.
        further: of these, those that have another than all rows have and were not named.
        same: those that have the overall fault.
    """
    parts = []
    if further:
        parts.append(f"1 more {place} differs" if further == 1 else f"{further} more {place}s differ")
    if same:
        few = f"1 {place} shares" if same == 1 else f"{same} of {total} {place}s share"
        parts.append(f"{f'all {place}s share' if same == total else few} the overall fault")
    if total > wrong:
        parts.append(f"in {total - wrong} of {total} {place}s no fault was found")
    return [capital("; ".join(parts)) + "."] if parts else []


def _differs(reading: GroupReading, overall: GroupReading) -> bool:
    """Whether a region tells what the sentence on all rows does not: another fault, or twice or half of it."""
    if reading.dominant != overall.dominant or (reading.strength > 0) != (overall.strength > 0):
        return True
    return not 0.5 < reading.strength / overall.strength < 2.0


def _interval(reading: GroupReading) -> str:
    if reading.dominant == "bias":
        low, high = sorted(abs(v) for v in reading.shift_interval)
        return (
            f" ({_number(low)} to {_number(high)})" if reading.shift_interval[0] * reading.shift_interval[1] > 0 else ""
        )
    if reading.dominant == "spread":
        low, high = reading.factor_interval
        low, high = (low, high) if reading.strength > 0 else (1.0 / high, 1.0 / low)
        return f" ({_factor(low)} to {_factor(high)})"
    return ""


def _number(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}g}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.{digits - 1}e}"


def _factor(value: float) -> str:
    return f"{value:.3g}"


def percent(share: float) -> str:
    """A share of the rows in whole percent."""
    return f"{100 * share:.0f} %" if share >= 0.01 else "under 1 %"


def p_value_in_words(p: float) -> str:
    """ "p = 0.012", and "p < 0.001" where more digits say nothing to a reader."""
    return "p < 0.001" if p < _LEAST_P else f"p = {p:.2g}"


def listed(parts: Sequence[str]) -> str:
    """ "a, b and c"."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _uncapital(text: str) -> str:
    return text[:1].lower() + text[1:]


def capital(text: str) -> str:
    """With a capital first letter."""
    return text[:1].upper() + text[1:]
