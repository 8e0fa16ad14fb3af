"""A version's numbers in words: the verdict on it, how wrong it is, digits and p-values as people read them."""

from __future__ import annotations

from collections.abc import Mapping

from congruence.tasks.scores.evaluation import CORRELATED, NOT_AS_IF_TRUE, NOT_CALIBRATED, MetricValue, cce_status
from congruence.tasks.scores.metrics.definitions import EFFECTS
from congruence.tasks.scores.metrics.registry import METRICS

CERTIFICATE_KINDS = {
    "computed": "Every part of it was computed.",
    "sampled": "Parts of it were read at random points and have a margin: an estimate, not a proof.",
}
"""What the run's parameter ``certificate_kind`` says of ``cce_error_bound``."""

LITTLE, MUCH = 0.02, 0.2
"""Effects, shares of a score's variance: a bias of .14 predicted spreads has .02, one of .5 has .2."""


def size_of_fault(metrics: Mapping[str, MetricValue]) -> str:
    """How wrong a version is, whatever the number of rows: "by little", "clearly", "by much"; "" where it is not known.

    By the largest effect of calibration given the input: 0 if the version is true, of the order of 1 if it is useless,
    as a version that ignores its input is where the input says much.
    """
    effects = [metrics[name].value for name in EFFECTS if name in metrics]
    if not effects:
        return ""
    largest = max(effects)
    return "by little" if largest < LITTLE else "clearly" if largest < MUCH else "by much"


def verdict(metrics: Mapping[str, MetricValue]) -> str:
    """The CCE of a version in a sentence: the number, what it would be if the version were true, and what follows."""
    mean, expected, floor = (metrics.get(name) for name in ("cce_mean", "cce_expected", "cce_noise_floor"))
    if mean is None:
        return "CCE was not measured"
    return _verdict(metrics, mean, expected, floor) + _size(metrics)


def _size(metrics: Mapping[str, MetricValue]) -> str:
    """The largest effect of a version that is contradicted, beside what effects are: "; wrong by little: ..."."""
    size = size_of_fault(metrics)
    if not size or cce_status(metrics) not in (NOT_AS_IF_TRUE, NOT_CALIBRATED):
        return ""
    effects = {order: metrics[name].value for name, order in EFFECTS.items() if name in metrics}
    order = max(effects, key=lambda each: effects[each])
    return f"; wrong {size}, most in its {order}: the input explains {100.0 * effects[order]:.2g} % of that score"


def _verdict(
    metrics: Mapping[str, MetricValue], mean: MetricValue, expected: MetricValue | None, floor: MetricValue | None
) -> str:
    status = cce_status(metrics)
    if status == NOT_CALIBRATED:
        p_value = probability(metrics["calibration_p_value"].value)
        also = f"{NOT_CALIBRATED} (p {p_value})" if p_value.startswith("<") else f"{NOT_CALIBRATED} (p = {p_value})"
        return f"The version is {also}, though its CCE {significant(mean.value)} does not contradict it"
    said = f"CCE {significant(mean.value)} is {status}"
    if expected is not None and expected.low is not None and expected.high is not None:
        low, high = significant(expected.low), significant(expected.high)
        of_true = "; if they were independent, a true version would have" if status == CORRELATED else ":"
        return f"{said}{of_true} {significant(expected.value)} [{low}, {high}]"
    return said if floor is None else f"{said} ({METRICS['cce_noise_floor'].label} {significant(floor.value)})"


def significant(value: float) -> str:
    """Three significant digits; four before the point stay whole."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def probability(p_value: float | None) -> str:
    """A p-value as people read it; of a normal approximation, digits below a millionth say nothing."""
    if p_value is None:
        return "–"
    return "< 1e-6" if p_value < 1e-6 else f"{p_value:.2g}"
