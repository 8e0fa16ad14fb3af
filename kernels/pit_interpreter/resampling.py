"""The estimates for a histogram and for multinomial resamples of it: where intervals and probabilities come from."""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from congruence.kernels.arrays import Array
from congruence.kernels.pit_interpreter.mixtures import SUPPORT, mixture_cdf
from congruence.kernels.pit_interpreter.network import decompose
from congruence.kernels.pit_interpreter.refinement import refine
from congruence.kernels.pit_interpreter.shape import KINDS, VALLEY_TOLERANCE, Shape, faults, is_calibrated, measure
from congruence.kernels.pit_interpreter.unimodality import UnimodalityTest, unimodality_test, valley_depth
from congruence.kernels.streams import stream


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
    """Estimates for bin ``counts`` (28,) and ``resamples`` resamples, by network ``parameters`` or the shipped ones.

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
