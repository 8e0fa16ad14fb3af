"""Synthetic PIT histograms whose data-generating distribution is known: what the interpreter learns from.

The predictive distribution is N(0, 1) without loss of generality, as PIT values do not change with translation and
scale (Podsztavek et al., 2024, section 3). Bin counts are multinomial in exact bin probabilities: the law of the
histogram of n outcomes, without drawing them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import gammainc, ndtr, stdtr

from congruence.kernels.arrays import Array
from congruence.kernels.pit_interpreter.bins import NORMAL_EDGES
from congruence.kernels.pit_interpreter.mixtures import SUPPORT, mixture_cdf

PAPER_ROWS = 10_000
SMALLEST_ROWS = 30
LARGEST_ROWS = 1_000_000

Prior = Literal["paper", "wide"]


@dataclass(frozen=True)
class SyntheticHistograms:
    """m histograms: ``counts`` (m, 28) between bins.EDGES, ``rows`` (m,), ``cdf`` (m, 241) of the truth on SUPPORT."""

    counts: Array
    rows: Array
    cdf: Array


def draw(rng: np.random.Generator, size: int, *, prior: Prior = "wide", rows: int | None = None) -> SyntheticHistograms:
    """``size`` histograms of data-generating distributions from ``prior``.

    ``"paper"``: two-component normal mixtures (section 4). ``"wide"``: those, calibrated and nearly calibrated ones,
    mixtures of up to three normals, gamma and Student t distributions, half of them moved to the mean and variance of
    the predictive distribution, as a network trained by likelihood does. ``rows`` outcomes each, by default 10^4 for
    the paper's prior and log-uniform from 30 to 10^6 for the wide one.
    """
    at = np.concatenate([SUPPORT, NORMAL_EDGES])
    if prior == "paper":
        cdf = _paper(rng, size, at)
        sizes = np.full(size, PAPER_ROWS if rows is None else rows)
    else:
        cdf = _wide(rng, size, at)
        exponents = rng.uniform(np.log10(SMALLEST_ROWS), np.log10(LARGEST_ROWS), size)
        sizes = np.round(10.0**exponents).astype(np.int64) if rows is None else np.full(size, rows)
    at_edges = np.clip(cdf[:, len(SUPPORT) :], 0.0, 1.0)
    probabilities = np.maximum(np.diff(at_edges, axis=1, prepend=0.0, append=1.0), 0.0)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return SyntheticHistograms(rng.multinomial(sizes, probabilities), sizes, cdf[:, : len(SUPPORT)])


def _paper(rng: np.random.Generator, size: int, at: Array) -> Array:
    separation = 2.0 * (1.0 - rng.uniform(0.1, 1.0, size) ** 2)
    weight = rng.uniform(0.0, 1.0, size)
    scales = np.sqrt(2.0 ** rng.uniform(-2.0, 2.0, (size, 2)))
    means = np.stack([-separation / 2.0, separation / 2.0], axis=1)
    return mixture_cdf(np.stack([weight, 1.0 - weight], axis=1), means, scales, at)


def _wide(rng: np.random.Generator, size: int, at: Array) -> Array:
    families: list[tuple[float, Callable[[np.random.Generator, int, Array], Array]]] = [
        (0.15, _calibrated),
        (0.15, _nearly_calibrated),
        (0.25, _paper),
        (0.20, _three_normals),
        (0.09, _two_modes),
        (0.08, _gamma),
        (0.08, _student),
    ]
    chosen = rng.choice(len(families), size, p=[share for share, _ in families])
    cdf = np.empty((size, len(at)))
    for index, (_, family) in enumerate(families):
        members = chosen == index
        cdf[members] = family(rng, int(members.sum()), at)
    return cdf


def _calibrated(_: np.random.Generator, size: int, at: Array) -> Array:
    return np.broadcast_to(ndtr(at), (size, len(at)))


def _nearly_calibrated(rng: np.random.Generator, size: int, at: Array) -> Array:
    location = rng.normal(0.0, 0.12, size)
    scale = 2.0 ** rng.normal(0.0, 0.2, size)
    return np.asarray(ndtr((at - location[:, None]) / scale[:, None]))


def _three_normals(rng: np.random.Generator, size: int, at: Array) -> Array:
    weights = rng.dirichlet(np.ones(3), size)
    means = rng.normal(0.0, 1.2, (size, 3))
    scales = 2.0 ** rng.uniform(-2.5, 1.0, (size, 3))
    return mixture_cdf(weights, *_moved(rng, weights, means, scales), at)


def _two_modes(rng: np.random.Generator, size: int, at: Array) -> Array:
    weight = rng.uniform(0.1, 0.9, size)
    weights = np.stack([weight, 1.0 - weight], axis=1)
    separation = rng.uniform(1.0, 4.0, size)
    means = np.stack([-separation / 2.0, separation / 2.0], axis=1)
    scales = 2.0 ** rng.uniform(-2.5, 0.0, (size, 2))
    return mixture_cdf(weights, *_moved(rng, weights, means, scales), at)


def _gamma(rng: np.random.Generator, size: int, at: Array) -> Array:
    shape = 2.0 ** rng.uniform(0.0, 5.0, size)
    location, scale = _placed(rng, size)
    standard = (at - location[:, None]) / scale[:, None]
    sign = rng.choice([-1.0, 1.0], size)[:, None]
    lower = gammainc(shape[:, None], np.maximum(shape[:, None] + sign * standard * np.sqrt(shape)[:, None], 0.0))
    return np.where(sign > 0, lower, 1.0 - lower)


def _student(rng: np.random.Generator, size: int, at: Array) -> Array:
    df = 2.0 + 2.0 ** rng.uniform(-1.0, 5.0, size)
    location, scale = _placed(rng, size)
    scale = scale * np.sqrt((df - 2.0) / df)
    return np.asarray(stdtr(df[:, None], (at - location[:, None]) / scale[:, None]))


def _placed(rng: np.random.Generator, size: int) -> tuple[Array, Array]:
    """Location and scale: half close to the predictive distribution, half anywhere."""
    close = rng.random(size) < 0.5
    location = rng.normal(0.0, np.where(close, 0.05, 0.6))
    return location, 2.0 ** rng.normal(0.0, np.where(close, 0.1, 0.5))


def _moved(rng: np.random.Generator, weights: Array, means: Array, scales: Array) -> tuple[Array, Array]:
    """Half of the mixtures as they are, half with about the predictive distribution's mean and variance."""
    mean = (weights * means).sum(axis=1, keepdims=True)
    variance = (weights * (scales**2 + (means - mean) ** 2)).sum(axis=1, keepdims=True)
    ratio = 2.0 ** rng.normal(0.0, 0.1, (len(weights), 1)) / np.sqrt(variance)
    shift = rng.normal(0.0, 0.05, (len(weights), 1))
    close = rng.random((len(weights), 1)) < 0.5
    return np.where(close, (means - mean) * ratio + shift, means), np.where(close, scales * ratio, scales)
