"""The promotion gate: a candidate passes by thresholds, and by not being worse than the version it would replace.

A comparison that finds no significant difference does not pass: a small split would then pass anything. What passes is
what the data say is less than a margin worse (non-inferiority); what they cannot tell is undecided.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from congruence.kernels.errors import InvalidInputError
from congruence.kernels.monitoring.evidence import Monitor
from congruence.kernels.score_parts import marginal_crps
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.comparison.differences import CCE, OF_STATED, SQUARED_CCE, MetricDifference, infinite_metrics
from congruence.tasks.comparison.gate_settings import GateSettings, Margin
from congruence.tasks.comparison.versions import OWN_CELLS, PairedComparison, compare_pair
from congruence.tasks.scores.evaluation import ROW_CORRELATION
from congruence.tasks.scores.metrics.registry import METRICS
from congruence.tasks.sentences.calibration import place_in_words, significant, with_p_value

Outcome = Literal["failed", "undecided", "passed"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)  # worst first: the worst of the rules is the gate's
MARKS = {"failed": "❌ failed", "undecided": "❔ undecided", "passed": "✅ passed"}
FIRST_VERSION, BASELINE_ITSELF = "first version", "baseline itself"
_NAMED = 3  # slices in a reason
_MOST_TIMES = 1000  # the rows that there are: more are none that anybody brings
UNCOMPARED = (FIRST_VERSION, BASELINE_ITSELF)


@dataclass(frozen=True)
class GateCheck:
    """One rule of the gate: what came of it, and why, in a sentence and in numbers.

    ``limit`` is the largest value allowed; ``baseline``, ``difference`` with its 95 % interval (``low``, ``high``),
    ``p_value`` and, where undecided, ``rows_needed`` belong to the rules that compare; ``if_recalibrated`` where it
    holds only once the version is recalibrated.
    """

    rule: str
    outcome: Outcome
    reason: str
    split: str = ""
    metric: str | None = None
    value: float | None = None
    limit: float | None = None
    baseline: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    rows_needed: float | None = None
    if_recalibrated: bool | None = None

    @property
    def passed(self) -> bool:
        """Whether the rule holds."""
        return self.outcome == "passed"


@dataclass(frozen=True)
class GateDecision:
    """What the gate says of a candidate under its settings: the worst of what its rules say.

    ``place`` is where people find it in MLflow, once it is logged; ``notes`` are what to know beside the rules;
    ``is_best`` where it is the best of the versions that passed, to which an alias moves; ``no_alias`` says why none
    does though the version passed.
    """

    candidate: ComparedVersion
    baseline: ComparedVersion | None
    checks: tuple[GateCheck, ...]
    settings: GateSettings
    place: str | None = None
    notes: tuple[str, ...] = ()
    is_best: bool = False
    no_alias: str = ""

    @property
    def outcome(self) -> Outcome:
        """Failed if a rule failed, else undecided if one is undecided, else passed."""
        return worst(check.outcome for check in self.checks)

    @property
    def passed(self) -> bool:
        """Whether every rule holds."""
        return self.outcome == "passed"

    @property
    def sorted_checks(self) -> list[GateCheck]:
        """The failed rules first, then the undecided ones."""
        return sorted(self.checks, key=lambda check: OUTCOMES.index(check.outcome))

    @property
    def reasons(self) -> list[str]:
        """Of the rules that do not hold, the failed ones first; of all rules where all hold. Each once."""
        said = [check.reason for check in self.sorted_checks if not check.passed] or [
            check.reason for check in self.checks
        ]
        return list(dict.fromkeys(said))

    def noted(self, *notes: str, **changes: Any) -> GateDecision:
        """The decision with more to know beside its rules, each sentence once, and other changes."""
        return replace(self, notes=tuple(dict.fromkeys((*self.notes, *notes))), **changes)

    @classmethod
    def over_splits(cls, parts: Mapping[str, GateDecision], errors: Mapping[str, str]) -> GateDecision:
        """The decision on a version by those on its splits, and by the errors of splits without an evaluation."""
        first = next(iter(parts.values()))
        if len(parts) == 1 and not errors:
            return first
        checks = [
            replace(check, rule=f"{check.rule} on {split}", reason=f"on {split}, {check.reason}")
            for split, part in parts.items()
            for check in part.checks
        ]
        checks += [
            GateCheck(f"evaluated on {split}", "failed", f"not evaluated on {split}: {error}", split=split)
            for split, error in errors.items()
        ]
        no_alias = "; ".join(dict.fromkeys(part.no_alias for part in parts.values() if part.no_alias))
        notes = [note for part in parts.values() for note in part.notes]
        return first.noted(*notes, checks=tuple(checks), no_alias=no_alias)

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON: on which version, what, why and where it is logged."""
        said = {"reasons": list(self.reasons), "notes": list(self.notes), "place": self.place}
        return {"label": self.candidate.label, "outcome": self.outcome} | said

    def markdown(self) -> str:
        """Returns a heading, a table of the rules, the failed ones first, with why, and the notes."""
        against = "" if self.baseline is None else f", against {self.baseline.label}"
        rows = [(MARKS[check.outcome], check.rule, check.reason) for check in self.sorted_checks]
        cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
        lines = [f"| {' | '.join(row)} |" for row in cells]
        head = f"### {MARKS[self.outcome]}: {self.candidate.label}{against}"
        said = "\n".join([head, "", "| | rule | why |", "|---|---|---|", *lines])
        return "\n- ".join([f"{said}\n" if self.notes else said, *self.notes])

    def table(self) -> pd.DataFrame:
        """One row per rule, the failed ones first, without the columns that no rule has."""
        records: list[dict[str, Any]] = [{"outcome": check.outcome, **vars(check)} for check in self.sorted_checks]
        return pd.DataFrame(records).dropna(axis="columns", how="all")


def not_changed(monitor: Monitor, split: str) -> GateCheck:
    """The rule ``not_changed``, by the account of looks at the version on a split."""
    rule = "not_changed"
    if not monitor.looks:
        said = "nobody has looked at the version over time; `congruence watch` does"
        return GateCheck(rule, "undecided", said, split=split)
    outcome: Outcome = "passed" if monitor.verdict == "right so far" else "failed"
    said = f"over all looks: {monitor.sentence()}"
    return GateCheck(rule, outcome, said, split=split, p_value=monitor.looks[-1].p_value)


def may_be_best(label: str, split: str, inside: bool | None, said: str) -> GateCheck:
    """The rule ``may_be_best``; ``inside`` is None where it is not known, ``said`` the reason."""
    if inside is None:
        said = f"whether {label} may be the best is not known: no other version has a CRPS that compares with its own"
    outcome: Outcome = "undecided" if inside is None else "passed" if inside else "failed"
    return GateCheck("may_be_best", outcome, said, split=split, metric="crps_mean")


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of some outcomes; passed where there are none."""
    return min(outcomes, key=OUTCOMES.index, default="passed")


def apply_gate(
    candidate: ComparedVersion, baseline: ComparedVersion | None, settings: GateSettings, *, seed: int = 0
) -> GateDecision:
    """Decide on ``candidate``; a ``baseline`` of None is one that no version is yet (the first version).

    Raises:
        ProtocolError: candidate and baseline were measured on other splits or under other protocols.
        InvalidInputError: the settings name a metric that was not measured, or there is no baseline and the settings do
            not say to pass the first version.
    """
    checks = [_below(candidate, name, limit) for name, limit in settings.maximum.items()]
    if settings.at_noise_floor:
        checks.append(_at_floor(candidate))
    if settings.largest_wrong_slice is not None:
        checks.append(_wrong_slices(candidate, settings.largest_wrong_slice))
    notes: tuple[str, ...] = ()
    if settings.baseline is not None and baseline is None:
        if settings.first_version != "pass":
            raise InvalidInputError(
                f"gate.baseline: there is no version {settings.baseline} to compare {candidate.label} with; set it, or "
                "write first_version: pass under gate: to accept a first version by its thresholds alone"
            )
        said = f"no version is {settings.baseline} yet: nothing was compared (first_version: pass)"
        checks.append(GateCheck(FIRST_VERSION, "passed", said))
    elif settings.baseline is not None and baseline is not None and baseline.label == candidate.label:
        checks.append(GateCheck(BASELINE_ITSELF, "passed", f"{candidate.label} is the baseline itself"))
    elif settings.baseline is not None and baseline is not None:
        checks += _against(candidate, baseline, settings, seed)
        if baseline.settings_digest != candidate.settings_digest:
            notes = (
                f"the baseline {baseline.label} was evaluated with other predictions, model_inputs, solver, seed or "
                "store.dtype than the candidate: part of a difference may come from these",
            )
    if (correlation := candidate.metrics.get(ROW_CORRELATION)) is not None:
        notes = (
            *notes,
            f"rows are correlated ({correlation.value:.2g}): p-values and intervals of independent rows do not hold; "
            f"name time: or groups: in split '{candidate.split.name}'",
        )
    on_split = tuple(replace(check, split=candidate.split.name) for check in checks)
    return GateDecision(candidate, baseline, on_split, settings, notes=notes)


def _not_measured(key: str, name: str, version: ComparedVersion, known: Sequence[str]) -> InvalidInputError:
    close = [] if name in METRICS else difflib.get_close_matches(name, known, 1)
    remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    return InvalidInputError(
        f"gate.{key}: {name} was not measured on {version.label} (split '{version.split.name}'); {remedy}"
    )


def _below(candidate: ComparedVersion, name: str, limit: float) -> GateCheck:
    metric = candidate.metrics.get(name)
    if metric is None:
        raise _not_measured("maximum", name, candidate, list(candidate.metrics))
    low, high = (metric.value if end is None else end for end in (metric.low, metric.high))
    outcome: Outcome = "passed" if high <= limit else "failed" if low > limit else "undecided"
    words = {"passed": "within", "failed": "above", "undecided": "perhaps above"}
    interval = f" [{significant(low)}, {significant(high)}]" if low < high else ""
    return GateCheck(
        f"maximum {name}",
        outcome,
        f"{name} is {significant(metric.value)}{interval}, {words[outcome]} the limit of {limit:g}",
        metric=name,
        value=metric.value,
        limit=limit,
        low=metric.low,
        high=metric.high,
    )


def _at_floor(candidate: ComparedVersion) -> GateCheck:
    verdict = candidate.verdict
    mean, floor = (candidate.metrics.get(name) for name in (CCE, "cce_noise_floor"))
    return GateCheck(
        "at_noise_floor",
        "failed" if verdict.is_wrong else "undecided" if verdict.p_value is None else "passed",
        with_p_value(verdict, verdict.p_value),
        metric=CCE,
        value=mean.value if mean else None,
        limit=floor.value if floor else None,
        p_value=verdict.p_value,
    )


def _wrong_slices(candidate: ComparedVersion, share: float) -> GateCheck:
    rule, places, rows = "largest_wrong_slice", candidate.wrong_places, candidate.split.valid_rows
    if places is None:
        reason = (
            "what is wrong by slice is not known: calibration given the input was not measured, or by an earlier "
            f"release ({candidate.again})"
        )
        return GateCheck(rule, "undecided", reason, limit=share)
    largest = max((place.rows for place in places), default=0) / rows
    wrong = [place for place in places if place.rows > share * rows]
    small = f" ({len(places)} of fewer rows {'is' if len(places) == 1 else 'are'})" if places else ""
    reason = f"no slice of more than {100 * share:g} % of the rows is named wrong{small}"
    if wrong:
        some = (f"{each.fault} {place_in_words(each.place)} ({each.rows:,} rows)" for each in wrong[:_NAMED])
        more = f"; and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        reason = f"slices of more than {100 * share:g} % of the rows are named wrong: {'; '.join(some)}{more}"
    return GateCheck(rule, "failed" if wrong else "passed", reason, value=largest, limit=share)


@dataclass(frozen=True)
class _Rule:
    """A metric in which the candidate must be not worse by a margin, or better."""

    key: Literal["not_worse_on", "better_on"]
    metric: str
    margin: Margin

    def __str__(self) -> str:
        return f"{'not worse' if self.key == 'not_worse_on' else 'better'} on {self.metric}"

    def said(self, outcome: Outcome, other: str, margin: float, *, is_better: bool) -> str:
        """What came of it, in words; ``margin`` in the metric's units."""
        if self.key == "better_on" or is_better:
            words = {"passed": "better than", "failed": "worse than", "undecided": "not shown to be better than"}
            return f"is {words[outcome]} {other}'s"
        amount = f"{self.margin} ({significant(margin)})" if self.margin.is_share else f"{self.margin}"
        words = {"passed": "is less than", "failed": "is more than", "undecided": "may be more than"}
        return f"{words[outcome]} {amount} worse than {other}'s"


def _against(
    candidate: ComparedVersion, baseline: ComparedVersion, settings: GateSettings, seed: int
) -> list[GateCheck]:
    pair = compare_pair(candidate, baseline, resamples=settings.resamples, seed=seed)
    rules = [_Rule("not_worse_on", name, settings.margin_of(name)) for name in settings.not_worse(pair.drawn)]
    rules += [_Rule("better_on", name, Margin(0.0)) for name in settings.better_on]
    checks = []
    for rule in rules:
        check = _compared(rule, pair)
        if check is not None and not check.passed and settings.less_honest == "recalibrate":
            check = _if_recalibrated(rule, pair) or check
        if check is not None:
            checks.append(check)
        elif rule.key in settings.model_fields_set:
            lacking = next((each for each in (candidate, baseline) if rule.metric not in each.metrics), candidate)
            raise _not_measured(rule.key, rule.metric, lacking, list(pair.differences))
    return checks


def _if_recalibrated(rule: _Rule, pair: PairedComparison) -> GateCheck | None:
    """The rule that a version keeps once it is recalibrated; None where it would not, or cannot be."""
    item = None if pair.won is None or not pair.first.is_registered else pair.won.recalibrated().get(rule.metric)
    if item is None:
        return None
    check = _check(rule, pair, item)
    if not check.passed:
        return None
    correct = f"congruence recalibrate FILE --version {pair.first.model.uri}"
    return replace(check, reason=f"recalibrated, {check.reason}: {correct}", if_recalibrated=True)


def _compared(rule: _Rule, pair: PairedComparison) -> GateCheck | None:
    """What one rule says, None where the metric was not measured on both."""
    name = rule.metric
    if pair.refused or (name == CCE and CCE not in pair.differences):
        return GateCheck(str(rule), "undecided", pair.refused or "; ".join(pair.notes), metric=name)
    if name in pair.differences:
        return _check(rule, pair, pair.differences[name])
    if name in OF_STATED and pair.unlike:
        said = f"CRPS and ECE of {pair.first.label} and {pair.second.label} {pair.unlike}"
        return GateCheck(str(rule), "undecided", said, metric=name)
    infinite = [version for version in (pair.first, pair.second) if name in infinite_metrics(version.scores)]
    if not infinite:
        return None
    outcome: Outcome = "undecided" if len(infinite) == 2 else "failed" if infinite == [pair.first] else "passed"
    said = " and ".join(version.label for version in infinite)
    reason = f"{name} of {said} is infinite: a target was given no probability"
    return GateCheck(str(rule), outcome, reason, metric=name)


def _skill(version: ComparedVersion, metric: str, value: float) -> float:
    """How much lower ``value`` of ``metric`` is than that of the law of all targets of the split, not below 0.

    0, too, where the split has no single numeric column of targets: then nothing is known to be at stake.
    """
    marginal = METRICS[metric].marginal
    if marginal is None or "target" not in version.scores:
        return 0.0
    targets = version.column("target", version.valid)
    targets = targets[np.isfinite(targets)]
    if len(targets) < 2:
        return 0.0
    if metric == "crps_mean" and version.levels:  # as quantiles of these levels are scored
        return max(0.0, float(np.mean(marginal_crps(targets, levels=np.asarray(version.levels)))) - value)
    return max(0.0, marginal(targets) - value)


def _check(rule: _Rule, pair: PairedComparison, item: MetricDifference) -> GateCheck:
    """The rule decided by where the interval of ``item`` lies beside the margin in the metric's units."""
    # A share of CCE is of the whole: on other rows it is compared without its noise, and may be 0.
    whole = pair.second.metrics[CCE].value if rule.metric == CCE else item.second
    skill = _skill(pair.second, rule.metric, item.second) if rule.margin.of_skill else 0.0
    limit = rule.margin.absolute(whole, skill)
    outcome: Outcome = "passed" if item.high < limit else "failed" if item.low > limit else "undecided"
    # That of "equally good"; of CCE it is that of its squares, where it is sharpest.
    tested = pair.differences.get(SQUARED_CCE, item) if rule.metric == CCE else item
    needed = item.rows_that_decide(limit) if outcome == "undecided" else None
    said = rule.said(outcome, pair.second.label, limit, is_better=item.high < 0.0)
    reason = f"{rule.metric} {said}: {significant(item.first)} against {significant(item.second)}, difference {item}"
    if pair.first.split.digest != pair.second.split.digest:
        reason += ", each on rows of its own"
    elif rule.metric == CCE and not pair.first.shares_targets(pair.second):
        reason += f" {OWN_CELLS}"
    return GateCheck(
        str(rule),
        outcome,
        reason if needed is None else f"{reason}; {_rows_in_words(item, limit)}",
        metric=rule.metric,
        value=item.first,
        limit=item.second + limit,
        baseline=item.second,
        difference=item.difference,
        low=item.low,
        high=item.high,
        p_value=tested.p_value,
        rows_needed=needed if needed is not None and math.isfinite(needed) else None,
    )


def _rows_in_words(item: MetricDifference, limit: float) -> str:
    cases = {"the difference stays as it is": item.rows_that_decide(limit)}
    # Free of the chance in the difference that was found: whether the margin is within reach of the split at all.
    equal = item.rows_that_decide(limit, difference=0.0)
    if limit > 0.0 and equal > item.rows:
        cases["the versions are equally good"] = equal
    near = [(case, rows) for case, rows in cases.items() if rows <= _MOST_TIMES * item.rows]
    told = ", ".join(f"about {_rounded(rows, item.rows)} if {case}" for case, rows in near)
    said = told.replace(" if ", " rows would decide if ", 1) or "no number of rows within reach would decide"
    return f"{said}; there are {item.rows:,}"


def _rounded(needed: float, rows: int) -> str:
    """Up to two significant digits, and more than there are."""
    step = 10 ** max(0, math.floor(math.log10(max(needed, 1.0))) - 1)
    return f"{max(math.ceil(needed / step) * step, rows + 1):,}"
