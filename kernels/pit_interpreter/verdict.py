"""From estimates to words: what is wrong with the predictive distribution, how probably, or why nothing is said."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.uniformity import UniformityTest
from congruence.kernels.pit_interpreter.network import SMALLEST_ROWS
from congruence.kernels.pit_interpreter.shape import KINDS, UnimodalityTest

CALIBRATED = "no evidence of miscalibration"
ABSTAINED = "abstained"

MISFIT_LIMIT = 0.08
"""Largest total variation between histogram and reconstruction, beyond what sampling explains, that is still read."""


@dataclass(frozen=True)
class Estimate:
    """A measure of the data-generating distribution with the ends of its resampling interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Finding:
    """One of shape.KINDS, the probability that it is there beyond its tolerance, and a sentence with the numbers."""

    kind: str
    probability: float
    sentence: str


@dataclass(frozen=True)
class Evidence:
    """What a verdict rests on: the tests, the probabilities, the measures, the modes, and how well all this fits."""

    rows: int
    distinct: int
    uniformity: UniformityTest
    unimodality: UnimodalityTest
    fault_probabilities: Array
    calibrated_probability: float
    measures: dict[str, Estimate]
    modes: tuple[float, ...]
    misfit: float


@dataclass(frozen=True)
class Verdict:
    """``label``: the leading finding's kind, CALIBRATED or ABSTAINED; ``text``: the verdict in words."""

    label: str
    probability: float
    text: str
    findings: tuple[Finding, ...] = ()

    @property
    def abstained(self) -> bool:
        """Whether no statement is made about the predictive distribution."""
        return self.label == ABSTAINED


def decide(evidence: Evidence, *, level: float, confidence: float) -> Verdict:
    """The verdict: faults are named only where the test rejects uniformity at ``level``.

    A fault needs a probability of at least ``confidence``, and another mode the test's rejection of one mode at
    ``level``; without one, and where the values or the fit do not allow a
    reading, the interpreter abstains and says why.
    """
    calibrated, p_value = evidence.calibrated_probability, evidence.uniformity.p_value
    unreadable = _unreadable(evidence)
    if unreadable is not None:
        return Verdict(ABSTAINED, 0.0, f"No verdict: {unreadable}.")
    if p_value >= level:
        tested = f"uniformity of the {evidence.rows:,} PIT values is not rejected (p = {p_value:.2g})"
        if calibrated >= 0.5:
            return Verdict(CALIBRATED, calibrated, f"No evidence of miscalibration: {tested}.")
        return Verdict(ABSTAINED, calibrated, f"No verdict: {tested}, but so few rows cannot exclude a fault.")
    findings = tuple(
        Finding(kind, float(probability), _sentence(kind, evidence))
        for probability, kind in sorted(zip(evidence.fault_probabilities, KINDS, strict=True), key=_leading)
        if probability >= confidence and (kind != "more modes" or evidence.unimodality.p_value < level)
    )
    if findings:
        text = " ".join(f"{finding.sentence} (probability {finding.probability:.2f})." for finding in findings)
        return Verdict(findings[0].kind, findings[0].probability, text, findings)
    if calibrated >= 0.5:
        text = f"Calibrated within tolerance: a departure is detectable (p = {p_value:.2g}) but small."
        return Verdict(CALIBRATED, calibrated, text)
    kind = KINDS[int(np.argmax(evidence.fault_probabilities))]
    text = (
        f"No verdict: uniformity is rejected (p = {p_value:.2g}), but no fault is clear; the likeliest is "
        f"{kind} (probability {float(np.max(evidence.fault_probabilities)):.2f})."
    )
    return Verdict(ABSTAINED, 1.0 - calibrated, text)


def _leading(item: tuple[float, str]) -> tuple[float, int]:
    # A missing mode explains spread, skewness and tails; a wrong shape explains spread. So at (nearly) equal
    # probability the later kind leads.
    return -round(float(item[0]), 2), -KINDS.index(item[1])


def _unreadable(evidence: Evidence) -> str | None:
    if evidence.rows < SMALLEST_ROWS:
        return f"{evidence.rows} PIT values are too few to interpret; at least {SMALLEST_ROWS} are needed"
    if 2 * evidence.distinct < evidence.rows:
        return (
            f"only {evidence.distinct:,} of {evidence.rows:,} PIT values are distinct, so they are not those of a "
            'continuous target; take pit_values(..., kind="randomized") for counts and rounded targets'
        )
    if evidence.misfit > MISFIT_LIMIT:
        return (
            f"no mixture of normals found explains the histogram (total variation {evidence.misfit:.3f} beyond "
            f"sampling noise, limit {MISFIT_LIMIT}); look for atoms, gaps or mixed populations in the PIT values"
        )
    return None


def _sentence(kind: str, evidence: Evidence) -> str:
    measures = evidence.measures
    location, spread = measures["location"], measures["spread"]
    if kind == "biased down":
        return f"The predictions are too low: outcomes lie {location} predictive standard deviations above them"
    if kind == "biased up":
        below = Estimate(-location.value, -location.high, -location.low)
        return f"The predictions are too high: outcomes lie {below} predictive standard deviations below them"
    if kind == "underdispersed":
        return f"The predictive distribution is too narrow: outcomes spread {spread} times as wide as it says"
    if kind == "overdispersed":
        return f"The predictive distribution is too wide: outcomes spread {spread} times as wide as it says"
    if kind.startswith("skewed"):
        side = kind.removeprefix("skewed ")
        return f"The outcomes are skewed to the {side}: L-skewness {measures['skewness']}"
    if kind == "light-tailed":
        return f"The outcomes are flatter than predicted: L-kurtosis {measures['tails']} against a normal's 0"
    if kind == "heavy-tailed":
        return f"The tails are heavier than predicted: L-kurtosis {measures['tails']} above a normal"
    return f"The predictive distribution lacks a mode{_places(evidence.modes)}"


def _places(modes: Sequence[float]) -> str:
    if len(modes) < 2:
        return ""
    return ": outcomes gather at " + " and ".join(f"{mode:+.2f}" for mode in modes) + " predictive standard deviations"
