"""The interpreter's network in NumPy: from bin counts to a mixture of five normals and the probabilities of faults."""

from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np
from safetensors.numpy import load
from scipy.special import expit, ndtri, softmax

from congruence.kernels.arrays import Array
from congruence.kernels.pit_interpreter.histogram import EDGES, HISTOGRAM_BINS, NORMAL_EDGES, merge
from congruence.kernels.pit_interpreter.shape import KINDS

SMALLEST_ROWS, LARGEST_ROWS = 30, 1_000_000
"""Between which the sample sizes lie that the network was trained on."""

COMPONENTS = 5
FEATURES = len(EDGES) - 2 + HISTOGRAM_BINS + 1
OUTPUTS = 3 * COMPONENTS + len(KINDS) + 1
LOG_SCALE_LIMITS = (-3.5, 2.0)
MEAN_LIMIT = 8.0


@dataclass(frozen=True)
class Decomposition:
    """Estimates for m histograms: mixture parameters (m, 5), fault probabilities (m, 9), P(calibrated) (m,)."""

    weights: Array
    means: Array
    scales: Array
    faults: Array
    calibrated: Array


def features(counts: Array) -> Array:
    """Return what the network sees of ``counts`` (m, 28), shape (m, 48).

    The estimated data-generating distribution on the normal scale at every edge, probit(G(z_k)) - z_k, which is zero
    where calibrated and linear in z for a wrong mean and variance; the roots of the twenty densities, whose noise is
    the same in every bin; and the sample size, so that noise is not read as shape.
    """
    rows = counts.sum(axis=1, keepdims=True)
    cumulative = (np.cumsum(counts, axis=1)[:, :-1] + 0.5) / (rows + 1.0)
    roots = np.sqrt(merge(counts) * (HISTOGRAM_BINS / rows)) - 1.0
    size = np.log10(np.clip(rows, SMALLEST_ROWS, LARGEST_ROWS)) / 3.0 - 1.0
    return np.concatenate([ndtri(cumulative) - NORMAL_EDGES, roots, size], axis=1)


@lru_cache(maxsize=1)
def weights() -> dict[str, Array]:
    """Return the trained weights that ship with the package (float32, by layer)."""
    return load(resources.files(__package__).joinpath("weights.safetensors").read_bytes())


def decompose(counts: Array, parameters: dict[str, Array] | None = None) -> Decomposition:
    """Return the network's estimates for ``counts`` (m, 28), with ``parameters`` or the shipped weights."""
    layers = weights() if parameters is None else parameters
    hidden = np.tanh(features(counts) @ layers["hidden_1.weight"].T + layers["hidden_1.bias"])
    hidden = np.tanh(hidden @ layers["hidden_2.weight"].T + layers["hidden_2.bias"])
    raw = (hidden @ layers["output.weight"].T + layers["output.bias"]).astype(np.float64)
    logits, means, log_scales, faults = np.split(raw, [COMPONENTS, 2 * COMPONENTS, 3 * COMPONENTS], axis=1)
    probabilities = expit(faults)
    return Decomposition(
        weights=softmax(logits, axis=1),
        means=np.clip(means, -MEAN_LIMIT, MEAN_LIMIT),
        scales=np.exp(np.clip(log_scales, *LOG_SCALE_LIMITS)),
        faults=probabilities[:, :-1],
        calibrated=probabilities[:, -1],
    )
