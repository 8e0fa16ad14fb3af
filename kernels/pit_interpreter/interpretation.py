"""Reading a PIT histogram: which data-generating distribution, seen by the predictive one, looks like this.

From estimates to a verdict: what is wrong with the predictive distribution, how probably, or why nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from scipy.special import expit, logit

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.continuous import Normal
from congruence.kernels.distributions.mixture import Mixture
from congruence.kernels.pit import UniformityTest, require_pit, smooth_test
from congruence.kernels.pit_interpreter.shape import (
    HISTOGRAM_BINS,
    KINDS,
    NORMAL_EDGES,
    SMALLEST_ROWS,
    SUPPORT,
    VALLEY_TOLERANCE,
    Shape,
    UnimodalityTest,
    count,
    decompose,
    faults,
    histogram,
    is_calibrated,
    measure,
    merge,
    mixture_cdf,
    mixture_density,
    refine,
    unimodality_test,
    valley_depth,
)
from congruence.kernels.resampling import Estimate
from congruence.kernels.rng import stream

MEASURES = ("location", "spread", "skewness", "tails")


@dataclass(frozen=True, repr=False)
class Interpretation:
    """A PIT histogram decomposed into a data-generating distribution against the standard normal predictive one.

    Densities of the histogram and its reconstruction are (20,). ``data_generating`` is one row, a mixture of five
    normals in predictive standard deviations; its density on ``support`` (241,) comes with the ends of its resampling
    interval. ``reconstruction_distance`` is the total variation between the two histograms,
    ``sampling_distance`` what sampling alone would give, ``misfit`` what is left beyond twice that. ``measures`` are
    those of shape.Shape; ``distinct`` counts the different PIT values.
    """

    rows: int
    distinct: int
    histogram: Array
    reconstruction: Array
    reconstruction_distance: float
    sampling_distance: float
    data_generating: Mixture
    support: Array
    density: Array
    density_low: Array
    density_high: Array
    measures: dict[str, Estimate]
    modes: tuple[float, ...]
    uniformity: UniformityTest
    unimodality: UnimodalityTest
    fault_probabilities: dict[str, float]
    calibrated_probability: float
    verdict: Verdict

    def __repr__(self) -> str:
        numbers = f"rows={self.rows}, uniformity p={self.uniformity.p_value:.3g}"
        return f"{type(self).__name__}({self.verdict.label!r}, probability={self.verdict.probability:.2f}, {numbers})"

    @property
    def misfit(self) -> float:
        """Total variation between histogram and reconstruction beyond what sampling explains."""
        return max(0.0, self.reconstruction_distance - 2.0 * self.sampling_distance)


def interpret_pit(
    values: Any,
    *,
    seed: int = 0,
    level: float = 0.01,
    confidence: float = 0.5,
    resamples: int = 200,
    coverage: float = 0.9,
) -> Interpretation:
    """Return the interpretation of PIT ``values`` (n,) in [0, 1] (Podsztavek et al., 2024), with a verdict.

    A network trained on synthetic histograms of 30 to 10^6 outcomes, which sees the sample size, estimates the
    data-generating distribution; expectation-maximisation refines it. Faults are named only where Neyman's smooth test
    rejects uniformity at ``level`` and their probability reaches ``confidence``; another mode, only where a test of the
    histogram rejects unimodality at ``level`` as well.
    Intervals of ``coverage`` are percentiles over ``resamples`` multinomial resamples, seeded by ``seed``. For counts
    give randomised PIT values.

    Raises:
        InvalidInputError: no values, another shape than (n,), not finite, or outside [0, 1].
    """
    pit = require_pit(values)
    from scipy.signal import find_peaks  # a second of imports that a refusal need not wait for

    counts = count(pit)
    estimate = resample(counts, resamples, seed)
    mixtures = estimate.weights, estimate.means, estimate.scales

    at_edges = mixture_cdf(*mixtures, NORMAL_EDGES)[0]
    probabilities = merge(np.diff(at_edges, prepend=0.0, append=1.0))
    distance = 0.5 * float(np.abs(merge(counts) / len(pit) - probabilities).sum())
    # The mean of |p^ - p| for a binomial share, by its normal limit.
    sampling = 0.5 * float(np.sqrt(2.0 * probabilities * (1.0 - probabilities) / (np.pi * len(pit))).sum())

    tails = [(1.0 - coverage) / 2.0, (1.0 + coverage) / 2.0]
    measures = {}
    for name in MEASURES:
        value, *resampled = getattr(estimate.shape, name)
        measures[name] = Estimate(float(value), *np.quantile(resampled, tails).tolist())
    density = mixture_density(*mixtures, SUPPORT)
    density_low, density_high = np.quantile(density[1:], tails, axis=0)
    # 0 and 1 are not counted as repeated: distribution functions underflow to them.
    inner = pit[(pit > 0.0) & (pit < 1.0)]
    distinct = len(np.unique(inner)) + len(pit) - len(inner)
    unreadable = (
        Reason.FEW_ROWS
        if len(pit) < SMALLEST_ROWS
        else Reason.REPEATED
        if 2 * distinct < len(pit)
        else Reason.MISFIT
        if distance - 2.0 * sampling > MISFIT_LIMIT
        else None
    )
    uniformity = smooth_test(pit)
    peaks, _ = find_peaks(density[0], prominence=VALLEY_TOLERANCE * float(density[0].max()))
    components = [Normal(*part) for part in zip(estimate.means[0], estimate.scales[0], strict=True)]
    return Interpretation(
        rows=len(pit),
        distinct=distinct,
        histogram=histogram(counts),
        reconstruction=probabilities * HISTOGRAM_BINS,
        reconstruction_distance=distance,
        sampling_distance=sampling,
        data_generating=Mixture(estimate.weights[0], components),
        support=SUPPORT,
        density=density[0],
        density_low=density_low,
        density_high=density_high,
        measures=measures,
        modes=tuple(SUPPORT[peaks].tolist()),
        uniformity=uniformity,
        unimodality=estimate.unimodality,
        fault_probabilities=dict(zip(KINDS, estimate.fault_probabilities.tolist(), strict=True)),
        calibrated_probability=estimate.calibrated_probability,
        verdict=_decided(estimate, uniformity, unreadable, level, confidence),
    )


@dataclass(frozen=True)
class Resampled:
    """Mixtures ``weights``, ``means``, ``scales`` (1 + resamples, 5) and their ``shape``: the histogram's own first.

    ``fault_probabilities`` (9,) in the order of shape.KINDS, ``calibrated_probability`` and the test of one mode are
    for the histogram.
    """

    weights: Array
    means: Array
    scales: Array
    shape: Shape
    fault_probabilities: Array
    calibrated_probability: float
    unimodality: UnimodalityTest


def resample(counts: Array, resamples: int, seed: int, parameters: dict[str, Array] | None = None) -> Resampled:
    """Return the estimates for bin ``counts`` (28,) and their resamples, by network ``parameters`` or the shipped ones.

    Probabilities are the logarithmic pool, at equal weights, of the network's and of the share of resamples beyond the
    tolerance. The network knows the prior, which rules at small n; resamples of the refined estimate resolve what a
    network cannot at large n. Pooled, their cross-entropy on held-out histograms is at or below that of each alone.
    Another mode is no likelier than the histogram itself allows: by its test, and by the share of resamples in which
    its bins have a valley beyond the tolerance.
    """
    rng = stream(seed, "resampled histograms")
    rows = int(counts.sum())
    all_counts = np.concatenate([counts[None], rng.multinomial(rows, counts / rows, size=resamples)])
    estimate = decompose(all_counts, parameters)
    mixtures = refine(all_counts, estimate.weights, estimate.means, estimate.scales)
    cdf = mixture_cdf(*mixtures, SUPPORT)
    shape = measure(cdf)
    beyond = np.column_stack([faults(shape), is_calibrated(cdf)])[1:]
    shares = (beyond.sum(axis=0) + 0.5) / (resamples + 1.0)
    stated = np.clip(np.append(estimate.faults[0], estimate.calibrated[0]), 1e-6, 1.0 - 1e-6)
    pooled = expit(0.5 * (logit(shares) + logit(stated)))
    unimodality = unimodality_test(counts, seed=seed)
    valleys = (np.count_nonzero(valley_depth(all_counts[1:]) > VALLEY_TOLERANCE) + 0.5) / (resamples + 1.0)
    modes = KINDS.index("more modes")
    pooled[modes] = min(pooled[modes], unimodality.largest_probability, valleys)
    return Resampled(*mixtures, shape, pooled[:-1], float(pooled[-1]), unimodality)


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
class Finding:
    """One of shape.KINDS, and the probability that it is there beyond its tolerance."""

    kind: str
    probability: float


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


def _decided(
    estimate: Resampled, uniformity: UniformityTest, unreadable: Reason | None, level: float, confidence: float
) -> Verdict:
    """The verdict; see ``interpret_pit``. Where values or fit do not allow a reading it is none, and says why."""
    calibrated = estimate.calibrated_probability
    if unreadable is not None:
        return Verdict(ABSTAINED, 0.0, unreadable)
    if uniformity.p_value >= level:
        if calibrated >= 0.5:
            return Verdict(CALIBRATED, calibrated, Reason.NOT_REJECTED)
        return Verdict(ABSTAINED, calibrated, Reason.WEAK)
    # A missing mode explains spread, skewness and tails; a wrong shape explains spread. So at (nearly) equal
    # probability the later kind leads.
    by_kind = zip(KINDS[::-1], estimate.fault_probabilities[::-1].tolist(), strict=True)
    leading = sorted(by_kind, key=lambda each: -round(each[1], 2))
    findings = tuple(
        Finding(kind, probability)
        for kind, probability in leading
        if probability >= confidence and (kind != "more modes" or estimate.unimodality.p_value < level)
    )
    if findings:
        return Verdict(findings[0].kind, findings[0].probability, None, findings)
    if calibrated >= 0.5:
        return Verdict(CALIBRATED, calibrated, Reason.SMALL)
    return Verdict(ABSTAINED, 1.0 - calibrated, Reason.UNCLEAR)
