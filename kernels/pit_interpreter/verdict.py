"""From estimates to a verdict: what is wrong with the predictive distribution, how probably, or why nothing is said."""

from dataclasses import dataclass
from enum import Enum

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.uniformity import UniformityTest
from congruence.kernels.pit_interpreter.network import SMALLEST_ROWS
from congruence.kernels.pit_interpreter.shape import KINDS, UnimodalityTest

CALIBRATED = "no evidence of miscalibration"
ABSTAINED = "abstained"

MISFIT_LIMIT = 0.08
"""Largest total variation between histogram and reconstruction, beyond what sampling explains, that is still read."""


class Reason(Enum):
    """Why a verdict names no fault."""

    FEW_ROWS = "too few values"
    REPEATED = "values are repeated"
    MISFIT = "no mixture of normals explains the histogram"
    NOT_REJECTED = "uniformity is not rejected"
    WEAK = "uniformity is not rejected, but so few rows cannot exclude a fault"
    SMALL = "the departure from uniformity is small"
    UNCLEAR = "uniformity is rejected, but no fault is clear"


@dataclass(frozen=True)
class Estimate:
    """A measure of the data-generating distribution with the ends of its resampling interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Finding:
    """One of shape.KINDS, and the probability that it is there beyond its tolerance."""

    kind: str
    probability: float


@dataclass(frozen=True)
class Evidence:
    """What a verdict rests on: the tests, the probabilities, and how well the reconstruction fits."""

    rows: int
    distinct: int
    uniformity: UniformityTest
    unimodality: UnimodalityTest
    fault_probabilities: Array
    calibrated_probability: float
    misfit: float


@dataclass(frozen=True)
class Verdict:
    """``label``: the leading finding's kind, CALIBRATED or ABSTAINED; ``reason``: where there is no finding."""

    label: str
    probability: float
    reason: Reason | None = None
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
        return Verdict(ABSTAINED, 0.0, unreadable)
    if p_value >= level:
        if calibrated >= 0.5:
            return Verdict(CALIBRATED, calibrated, Reason.NOT_REJECTED)
        return Verdict(ABSTAINED, calibrated, Reason.WEAK)
    findings = tuple(
        Finding(kind, float(probability))
        for probability, kind in sorted(zip(evidence.fault_probabilities, KINDS, strict=True), key=_leading)
        if probability >= confidence and (kind != "more modes" or evidence.unimodality.p_value < level)
    )
    if findings:
        return Verdict(findings[0].kind, findings[0].probability, None, findings)
    if calibrated >= 0.5:
        return Verdict(CALIBRATED, calibrated, Reason.SMALL)
    return Verdict(ABSTAINED, 1.0 - calibrated, Reason.UNCLEAR)


def _leading(item: tuple[float, str]) -> tuple[float, int]:
    # A missing mode explains spread, skewness and tails; a wrong shape explains spread. So at (nearly) equal
    # probability the later kind leads.
    return -round(float(item[0]), 2), -KINDS.index(item[1])


def _unreadable(evidence: Evidence) -> Reason | None:
    if evidence.rows < SMALLEST_ROWS:
        return Reason.FEW_ROWS
    if 2 * evidence.distinct < evidence.rows:
        return Reason.REPEATED
    return Reason.MISFIT if evidence.misfit > MISFIT_LIMIT else None
