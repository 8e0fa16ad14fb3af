"""The numbers at the top of a report, with what they are beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from congruence.tasks.scores.evaluation import MetricValue
from congruence.tasks.scores.metrics.definitions import EFFECTS
from congruence.tasks.scores.verdict import significant

_PERCENT = 0.02


@dataclass(frozen=True)
class Headline:
    """One of the numbers at the top: its metric, what it is called here, its value and interval in words, a comment."""

    name: str
    label: str
    value: str
    interval: str
    comment: str


def headlines(
    metrics: Mapping[str, MetricValue], beside: tuple[str, Mapping[str, MetricValue]] | None = None
) -> list[Headline]:
    """Distance beyond noise, calibration given the input, and the proper score beside the marginal law's.

    ``beside``: name and metrics of the version in use, whose score is named, too.
    """
    found = []
    excess = metrics.get("cce_excess")
    if excess is not None:
        mean, expected = metrics.get("cce_mean"), metrics.get("cce_expected")
        comment = ""
        if mean is not None and expected is not None:
            comment = f"CCE {significant(mean.value)}; {significant(expected.value)} would be noise alone"
        found.append(Headline("cce_excess", "Distance beyond noise", *_words(excess), comment))
    effects = {name: metrics[name] for name in EFFECTS if name in metrics}
    if effects:
        name = max(effects, key=lambda each: effects[each].value)
        kind = EFFECTS[name]
        value, interval = (f"{each} %" if each else "" for each in _words(effects[name], 100.0))
        comment = "of the variance of its score is explained by the input, the largest of four; 0 if right"
        found.append(Headline(name, f"Calibration given the input: {kind}", value, interval, comment))
    for name in [each for each in ("crps_mean", "nll_mean", "mae") if each in metrics][:1]:
        comment = ""
        skill, marginal = metrics.get("crps_skill"), metrics.get("crps_uncertainty")
        if name == "crps_mean" and skill is not None:
            without = "" if marginal is None else f"{significant(marginal.value)} without the input; "
            comment = f"{without}skill {_percent(skill)}"
        if beside is not None and name in beside[1]:
            comment += f"{'; ' if comment else ''}{significant(beside[1][name].value)} of {beside[0]}, the baseline"
        labels = {"crps_mean": "Proper score: CRPS", "nll_mean": "Proper score: NLL", "mae": "Mean absolute error"}
        found.append(Headline(name, labels[name], *_words(metrics[name]), comment))
    return found


def _words(metric: MetricValue, times: float = 1.0) -> tuple[str, str]:
    value = significant(times * metric.value)
    if metric.low is None or metric.high is None:
        return value, ""
    return value, f"{significant(times * metric.low)} to {significant(times * metric.high)}"


def _percent(metric: MetricValue) -> str:
    """In whole percents, in tenths where these would say nothing; no negative zero."""
    ends = [each for each in (metric.value, metric.low, metric.high) if each is not None]
    digits = 0 if max(abs(each) for each in ends) >= _PERCENT else 1
    said = [f"{round(100.0 * each, digits) + 0.0:.{digits}f}" for each in ends]
    if metric.low is None or metric.high is None:
        return f"{said[0]} %"
    return f"{said[0]} % ({said[1]} to {said[2]} %)"
