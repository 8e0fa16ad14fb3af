"""What the PIT interpreter found, in words: what is wrong with the predictive distribution, or why nothing is said."""

from __future__ import annotations

from collections.abc import Sequence

from congruence.kernels.pit_interpreter.interpretation import MISFIT_LIMIT, Interpretation, Reason
from congruence.kernels.pit_interpreter.shape import SMALLEST_ROWS
from congruence.kernels.resampling import Estimate


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


def _fault(kind: str, found: Interpretation) -> str:
    measures = {name: _interval_of_law(each) for name, each in found.measures.items()}
    if kind == "biased down":
        size = measures["location"]
        return f"The predictions are too low: outcomes lie {size} predictive standard deviations above them"
    if kind == "biased up":
        location = found.measures["location"]
        size = _interval_of_law(Estimate(-location.value, -location.high, -location.low))
        return f"The predictions are too high: outcomes lie {size} predictive standard deviations below them"
    if kind in ("underdispersed", "overdispersed"):
        size = "narrow" if kind == "underdispersed" else "wide"
        return (
            f"The predictive distribution is too {size}: outcomes spread {measures['spread']} times as wide as it says"
        )
    if kind.startswith("skewed"):
        side = kind.removeprefix("skewed ")
        return f"The outcomes are skewed to the {side}: L-skewness {measures['skewness']}"
    if kind == "light-tailed":
        return f"The outcomes are flatter than predicted: L-kurtosis {measures['tails']} against a normal's 0"
    if kind == "heavy-tailed":
        return f"The tails are heavier than predicted: L-kurtosis {measures['tails']} above a normal"
    return f"The predictive distribution lacks a mode{_places(found.modes)}"


def _interval_of_law(estimate: Estimate) -> str:
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _places(modes: Sequence[float]) -> str:
    if len(modes) < 2:
        return ""
    return ": outcomes gather at " + " and ".join(f"{mode:+.2f}" for mode in modes) + " predictive standard deviations"
