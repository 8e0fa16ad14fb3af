"""Readings in plain English: numbers in, one short sentence out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from congruence.kernels.conditional_calibration.reading import GroupReading
from congruence.kernels.dependence.blocks import p_value_kind
from congruence.kernels.dependence.correlation import Correlation
from congruence.kernels.engine.results import BlocksInference
from congruence.kernels.pit import ORDERS
from congruence.kernels.pit_interpreter.interpretation import MISFIT_LIMIT, Interpretation, Reason
from congruence.kernels.pit_interpreter.shape import SMALLEST_ROWS
from congruence.kernels.resampling import Estimate
from congruence.kernels.verdict import SIGNIFICANCE

LEVEL = 0.05
NEGLIGIBLE = 0.05
"""A strength below which a fault, however certain, hardly matters: a shift of .05 predicted spreads, 4 % of spread."""

_LEAST_P = 0.001
_FAR = 5.0

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
    "bias": ("also lie below the predictions", "also lie above the predictions"),
    "spread": ("also spread less than predicted", "also spread wider than predicted"),
    "skew": ("are also skewed to the left of the predictions", "are also skewed to the right of the predictions"),
    "tails": ("also have lighter tails than predicted", "also have heavier tails than predicted"),
}
_SHORT = {
    "bias": ("targets below the predictions", "targets above the predictions"),
    "spread": ("predicted spread too large", "predicted spread too small"),
    "skew": ("skewed to the left", "skewed to the right"),
    "tails": ("lighter tails", "heavier tails"),
}


def short_name(fault: str, strength: float) -> str:
    """A fault in two to four words, for columns, legends and table cells."""
    return _SHORT[fault][strength > 0]


def fault_clause(fault: str, strength: float, shift: float, factor: float) -> str:
    """A fault with its size as a clause: "the targets lie 0.4 predicted spreads above the predictions"."""
    if fault == "bias":
        side = "above" if strength > 0 else "below"
        # Bounded scores do not tell 5 predicted spreads from 140.
        far = _number(abs(shift)) if abs(shift) < _FAR else f"{_FAR:.0f} or more"
        return f"the targets lie {far} predicted spreads {side} the predictions"
    if fault == "spread":
        size = "small" if strength > 0 else "large"
        return f"the predicted spread is too {size} by a factor of {_factor(factor if strength > 0 else 1.0 / factor)}"
    return _SHAPES[fault][strength > 0]


def reading_clause(reading: GroupReading) -> str:
    """The dominant fault of a group with its 95 % interval, and a second fault where one is certain."""
    clause = fault_clause(reading.dominant, reading.strength, reading.shift, reading.factor)
    clause += _interval(reading)
    second = reading.second()
    if second is None:
        return clause
    return clause + second_clause(second, bool(reading.unexplained[ORDERS.index(second)] > 0))


def second_clause(second: str, above: bool) -> str:
    """Another fault of the same rows, after the first."""
    return f"; the targets {_SECOND[second][above]}"


def no_fault(rows: int, p_value: float) -> str:
    """The only sentence on a version in which no fault was found."""
    return (
        f"No fault found in {rows:,} rows: predictions agree with the targets, as far as these rows can show "
        f"({p_value_in_words(p_value)})."
    )


def is_off(reading: GroupReading, level: float = LEVEL) -> bool:
    """Whether the rows of a reading have a fault together, beyond chance and worth naming."""
    return reading.p_value <= level and is_worth_naming(reading)


def is_worth_naming(reading: GroupReading) -> bool:
    """Whether the dominant fault is large enough, and itself beyond chance.

    Scores may be beyond chance by tails that are no fault, as of places that are too narrow and too wide; what is then
    nearest to them may be small.
    """
    error = float(reading.score_errors[ORDERS.index(reading.dominant)])
    return abs(reading.strength) >= max(NEGLIGIBLE, 2.0 * error)


def inference_sentence(inference: BlocksInference) -> str:
    """By what blocks of rows p-values and intervals hold, or why there are none."""
    if inference.refused:
        return f"No p-value and no interval: {inference.refused}."
    if inference.blocks is None:
        return "Every row is a group of its own: p-values are those of independent rows."
    what = "groups of rows" if inference.kind == "groups" else "runs of consecutive rows"
    return (
        f"P-values and intervals take {inference.blocks:,} {what} as independent: they are "
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


def _interval(reading: GroupReading) -> str:
    if reading.dominant == "bias":
        if abs(reading.shift) >= _FAR:
            return ""
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


def percent(share: float, *beside: float) -> str:
    """A share or a gain: "71 %", and with decimals near 0 and 100 %: "3.1 %", "0.13 %", "99.94 %".

    Where shares stand ``beside`` it, also with so many that it is told from them.
    """
    value = 100.0 * share
    apart = min(abs(value), 100.0 - value if value < 100.0 else value)
    near = min((100.0 * abs(share - each) for each in beside if each != share), default=1.0)
    digits = max(sum(apart < least for least in (4.95, 0.95)), sum(near < least for least in (0.995, 0.095)))
    shown = round(value, digits) + 0.0  # no negative zero
    if apart > 1e-6 and shown in (0.0, 100.0) and 0.0 < value < 100.0:  # a rounding error is none
        return "over 99.99 %" if shown else "under 0.01 %"
    return f"{shown:,.10g} %"


def p_value_in_words(p: float) -> str:
    """ "p = 0.012", and "p < 0.001" where more digits say nothing to a reader."""
    digits = 3 if p < LEVEL <= float(f"{p:.2g}") else 2  # 0.0498 is no 0.05, from which nothing is wrong
    return "p < 0.001" if p < _LEAST_P else f"p = {p:.{digits}g}"


def with_p_value(said: object, p_value: float | None) -> str:
    """What is said, and its p-value behind it, where there is one."""
    return str(said) if p_value is None else f"{said} ({p_value_in_words(p_value)})"


def significant(value: float, digits: int = 3) -> str:
    """So many significant digits; what stands before the point stays whole, thousands separated.

    Of the four that MLflow and pages show: a number that is read from there is none other than at first hand.
    """
    if 10.0**digits - 0.5 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{float(f'{value:.4g}'):.{digits}g}"


def signed(value: float) -> str:
    """The same of a difference: "+0.012", "-1,240"."""
    return f"+{significant(value)}" if value >= 0.0 else significant(value)


def probability(p_value: float | None) -> str:
    """A p-value in a table: "0.012", "< 0.001" where more digits say nothing to a reader."""
    return "–" if p_value is None else p_value_in_words(p_value).removeprefix("p ").removeprefix("= ")


def listed(parts: Sequence[str]) -> str:
    """ "a, b and c"."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def capital(text: str) -> str:
    """With a capital first letter."""
    return text[:1].upper() + text[1:]


def interpretation_sentence(found: Interpretation) -> str:
    """The verdict with its numbers, and each fault with its probability."""
    verdict, rows, p_value = found.verdict, found.rows, found.uniformity.p_value
    if verdict.findings:
        parts = [f"{_fault(each.kind, found)} (probability {each.probability:.2f})." for each in verdict.findings]
        return " ".join(parts)
    tested = f"uniformity of the {rows:,} PIT values is not rejected (p = {p_value:.2g})"
    kind, probability = max(found.fault_probabilities.items(), key=lambda item: item[1])
    sentences = {
        Reason.FEW_ROWS: (
            f"No verdict: {rows} PIT values are too few to interpret; at least {SMALLEST_ROWS} are needed."
        ),
        Reason.REPEATED: (
            f"No verdict: only {found.distinct:,} of {rows:,} PIT values are distinct, so they are not those of a "
            'continuous target; take pit_values(..., kind="randomized") for counts and rounded targets.'
        ),
        Reason.MISFIT: (
            f"No verdict: no mixture of normals found explains the histogram (total variation {found.misfit:.3f} "
            f"beyond sampling noise, limit {MISFIT_LIMIT}); "
            "look for atoms, gaps or mixed populations in the PIT values."
        ),
        Reason.NOT_REJECTED: f"No evidence of miscalibration: {tested}.",
        Reason.WEAK: f"No verdict: {tested}, but so few rows cannot exclude a fault.",
        Reason.SMALL: f"Calibrated within tolerance: a departure is detectable (p = {p_value:.2g}) but small.",
        Reason.UNCLEAR: (
            f"No verdict: uniformity is rejected (p = {p_value:.2g}), but no fault is clear; the likeliest is {kind} "
            f"(probability {probability:.2f})."
        ),
    }
    assert verdict.reason is not None
    return sentences[verdict.reason]


_FAULTS = {
    "biased down": "The predictions are too low: outcomes lie {location} predictive standard deviations above them",
    "biased up": "The predictions are too high: outcomes lie {below} predictive standard deviations below them",
    "underdispersed": "The predictive distribution is too narrow: outcomes spread {spread} times as wide as it says",
    "overdispersed": "The predictive distribution is too wide: outcomes spread {spread} times as wide as it says",
    "skewed right": "The outcomes are skewed to the right: L-skewness {skewness}",
    "skewed left": "The outcomes are skewed to the left: L-skewness {skewness}",
    "light-tailed": "The outcomes are flatter than predicted: L-kurtosis {tails} against a normal's 0",
    "heavy-tailed": "The tails are heavier than predicted: L-kurtosis {tails} above a normal",
}


def _fault(kind: str, found: Interpretation) -> str:
    if kind not in _FAULTS:
        modes = " and ".join(f"{mode:+.2f}" for mode in found.modes)
        gather = f": outcomes gather at {modes} predictive standard deviations" if len(found.modes) > 1 else ""
        return f"The predictive distribution lacks a mode{gather}"
    location = found.measures["location"]
    measures = {**found.measures, "below": Estimate(-location.value, -location.high, -location.low)}
    said = {name: f"{each.value:.2f} [{each.low:.2f}, {each.high:.2f}]" for name, each in measures.items()}
    return _FAULTS[kind].format(**said)


_BOUND = re.compile(r"^(?P<name>.+?)(?P<mostly> mostly)? (?P<side>up to|from|above|below) (?P<end>[-+\d.e]+)$")
_BETWEEN = re.compile(r"^(?P<name>.+?)(?P<mostly> mostly)? (?P<low>[-+\d.e]+) to (?P<high>[-+\d.e]+)$")
_ALIKE = re.compile(r"^(?P<name>.+) (?P<which>\(region \d+\))$")  # of two that lie in the same ranges
_IS_SAID = re.compile(r"^.+ is (not )?.+$")
_OF_A_REGION = re.compile(r" is (mostly|always) ")


def place_in_words(name: str) -> str:
    """The name of a region or a segment in a sentence: "where age is up to 30 and income is 3 or more".

    A segment is all rows of which that is true, a region a cluster of rows of most of which it is, which is said.
    """
    if found := _ALIKE.match(name):
        return f"{place_in_words(found['name'])} {found['which']}"
    parts = [_part(part) for part in name.split(", ")]
    if any(part is None for part in parts):
        return f"in {name}" if name.startswith("region ") else f"on {name}"
    said = " and ".join(part for part in parts if part is not None)
    return f"in the region where {said}" if _OF_A_REGION.search(said) else f"where {said}"


def _part(part: str) -> str | None:
    if found := _BOUND.match(part):
        name = f"{found['name']} is{found['mostly'] or ''}"
        return f"{name} {found['end']} or more" if found["side"] == "from" else f"{name} {found['side']} {found['end']}"
    if found := _BETWEEN.match(part):
        return f"{found['name']} is{found['mostly'] or ''} between {found['low']} and {found['high']}"
    return part if _IS_SAID.match(part) else None


WORTH_IT = {"CRPS": 0.01, "NLL": 0.02}
"""What a correction must take off on held-out rows to be advised: of the CRPS a share, of the NLL in nats. A spread
that is wrong by a factor of 1.2 costs as much."""

BEYOND_CHANCE = 2.0
"""Standard errors of a paired difference from which a number is said to get better or worse."""

CALIBRATION_P = "calibration p"
"""The row of the p-values of calibration given the input."""

MOST_LOST = 1.0
"""Of a score, its own size: a correction that loses more is none, however few rows say so."""


@dataclass(frozen=True)
class PreviewRow:
    """One number, on held-out rows, as the version is and as it would be, by the name that people read.

    ``error`` is the standard error of the difference, where it is a mean over rows; None of a p-value.
    """

    name: str
    now: float
    then: float
    error: float | None = None

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
    named = ((better, "fall", "better"), (worse, "rise", "worse"))
    parts = [f"{listed(names)} {verb}{'s' * (len(names) == 1)} ({word})" for names, verb, word in named if names]
    return ", ".join(parts) or "nothing changes beyond chance"


@dataclass(frozen=True)
class CorrectionPreview:
    """What recalibrating would change: in words ("" where cross-validation chooses no change), and on other rows.

    The table has NLL where there is one, CRPS, CCE, MAE, and the p-value of calibration given the input.
    """

    said: str
    fitted_on: int
    rows: int
    table: tuple[PreviewRow, ...]

    @property
    def improves(self) -> bool:
        """Whether there is a correction, and some number falls by more than chance or the fault is found no more."""
        helps = self.leaves_no_fault or any(row.is_better for row in self.table)
        return bool(self.said) and helps and not self.harmed

    @property
    def leaves_no_fault(self) -> bool:
        """Whether the test of calibration finds a fault before and none after, and CRPS falls by what is worth it.

        The test needs fewer rows than the scores, whose noise is that of the targets.
        """
        rows = {row.name: row for row in self.table}
        crps, p = rows.get("CRPS"), rows.get(CALIBRATION_P)
        if crps is None or p is None or crps.now - crps.then < WORTH_IT["CRPS"] * crps.now:
            return False
        return p.now < SIGNIFICANCE <= p.then

    @property
    def harmed(self) -> list[PreviewRow]:
        """The proper scores that get worse by more than chance, or by what no correction should cost in any row."""
        proper = [row for row in self.table if row.name in WORTH_IT]
        return [row for row in proper if row.is_worse or row.then > row.now + MOST_LOST * max(1.0, abs(row.now))]

    @property
    def judgement(self) -> str:
        """See ``judgement``; and whether the fault is found no more."""
        if not self.leaves_no_fault:
            return judgement(self.table)
        changes = any(row.is_better or row.is_worse for row in self.table)
        scores = judgement(self.table) if changes else "the change of the scores is within chance"
        return f"no fault is found after it; {scores}"

    def as_plain(self) -> dict[str, object]:
        """As JSON values."""
        return {**vars(self), "table": [vars(row) for row in self.table]}
