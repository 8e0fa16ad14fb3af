"""Where a version is wrong, by how much, and in what way: at inputs, from the labelled rows a smoother is made of.

Three questions are asked of an input, in this order: is the version wrong around it (at a false discovery rate), by
enough to matter, and is the input in the region that is wrong, or only next to it? A smoother carries a fault across
its border, where about half of its size is left. Of each input that passes the first two,

    q = Phi((half the size around it - its own size) / error)

is how likely it lies outside; inputs are taken from the smallest q on while the mean of q, the expected share of right
rows among those taken, is at most the rate (Müller, Parmigiani, Robert and Rousseau 2004). ``error`` is twice the
standard error of the size: a smoother whose ridge suits the data is off by as much again (Nychka 1988), and the inputs
were chosen where it errs upwards. Without this question a tenth to a fifth of what is withheld are right rows.

Inputs are withheld by the levels at which they are unusual and wrong, or a share of them (``WithholdingRule``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from scipy.special import gammaincc, ndtr

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.counts import JumpScores
from congruence.kernels.conditional_calibration.local_reading import (
    Directions,
    LocalReading,
    ScoreSmoothing,
    block_moments,
    quadratic,
)
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.results import benjamini_hochberg
from congruence.kernels.engine.spectrum import SpectralSmoother
from congruence.kernels.engine.targets import TargetErrors
from congruence.kernels.pit import ORDERS, pit_scores, pit_values
from congruence.kernels.rng import stream
from congruence.kernels.trust.rule import MATTERS
from congruence.kernels.trust.support import NeighbourIndex, effective_rows

_AROUND = 1024  # labelled rows whose faults stand for all
_FEWEST_AROUND, _MOST_AROUND = 10, 512
_LARGE = 0.98
_ERRORS = 2.0  # standard errors that stand for one error of a size, see the module


@dataclass(frozen=True)
class RowScores:
    """Scores of the PIT values of labelled rows, (n, 4); of counts means over their jumps, with their variance."""

    scores: Array = field(repr=False)
    variance: Array | None = field(repr=False)

    @classmethod
    def of(cls, y: Array, predictive: Distribution, *, keys: Any | None = None, seed: int = 0) -> RowScores | None:
        """Of targets y, (n,); None of vectors, which have no PIT."""
        if y.ndim != 1:
            return None
        counts = JumpScores.of(y, predictive)
        if counts is not None:
            return cls(counts.values, counts.variance)
        return cls(pit_scores(pit_values(y, predictive, seed=seed, keys=keys)), None)

    def smoothing(
        self, smoother: SpectralSmoother, rows: Array | slice = slice(None), blocks: DependentBlocks | None = None
    ) -> ScoreSmoothing:
        """What a smoother makes of the scores of the rows that it is of, which may depend on each other in blocks."""
        vectors, scores = smoother.analysis, self.scores[rows]
        weighted = variance = None
        if blocks is not None:
            weighted, variance = block_moments(vectors, scores, blocks)
        elif self.variance is not None:
            kept = self.variance[rows]
            variance = kept.mean(axis=0)
            weighted = np.stack([vectors.T @ (vectors * v[:, None].astype(vectors.dtype)) for v in kept.T])
        projected = np.asarray(vectors.T @ scores.astype(vectors.dtype), dtype=np.float64)
        return ScoreSmoothing.of(
            Directions.of_smoother(smoother),
            projected,
            scores.mean(axis=0),
            np.sum(scores**2, axis=0),
            weighted=None if weighted is None else np.asarray(weighted, dtype=np.float64),
            variance=variance,
        )


@dataclass(frozen=True)
class Surroundings:
    """How large a fault is around labelled rows, by which an input next to them is known to share it or not.

    Attributes:
        index: some labelled rows, in the encoder's space before it is normalised.
        sizes: of the fault at each of them, (p,).
        share: of all labelled rows that these are.
    """

    index: NeighbourIndex = field(repr=False)
    sizes: Array = field(repr=False)
    share: float

    @classmethod
    def of(cls, inputs: Array, size_at: Callable[[Array], Array], seed: int) -> Surroundings:
        """Of labelled rows ``inputs`` (n, d); ``size_at`` gives the size of the fault at some, by their numbers."""
        some = np.sort(stream(seed, "rows of local faults").permutation(len(inputs))[:_AROUND])
        return cls(NeighbourIndex.of(inputs[some]), size_at(some), len(some) / len(inputs))

    def share_fault(self, inputs: Array, sizes: Array, errors: Array, window: Array, level: float) -> Array:
        """Which inputs are in the region that is wrong, at a false discovery rate of ``level``, (m,) booleans.

        Args:
            inputs: (m, d).
            sizes: of the fault at each, (m,).
            errors: their standard errors, (m,).
            window: how many labelled rows are around each, (m,).
            level: the rate.
        """
        if not len(inputs):
            return np.zeros(0, bool)
        counts = np.clip(np.rint(window * self.share), _FEWEST_AROUND, _MOST_AROUND).astype(np.intp)
        nearest = self.index.nearest(inputs, int(counts.max()))[1]
        around = np.where(np.arange(nearest.shape[1]) < counts[:, None], self.sizes[nearest], np.nan)
        half = np.nanquantile(around, _LARGE, axis=1) / 2.0
        return fewest_false(ndtr((half - sizes) / np.maximum(_ERRORS * errors, np.finfo(float).tiny)), level)


class Faults(Protocol):
    """Where a version is wrong."""

    def wrong(self, vectors: Array, inputs: Array, level: float) -> Array:
        """Inputs at which the version is wrong at a false discovery rate of ``level`` and by enough to matter, (m,).

        Args:
            vectors: U at the inputs, (m, k).
            inputs: these in the space of the labelled rows', (m, d).
            level: the rate.
        """

    def reading(self, vectors: Array) -> LocalReading | None:
        """What is wrong at some inputs; None where no more is known than that something is."""


@dataclass(frozen=True)
class ScoreFaults(Faults):
    """Faults of scalar laws, read off PIT scores.

    Attributes:
        smoothing: of the scores of the labelled rows.
        variance: of the scores of one row of a true version, (4,): the unit of sizes.
        around: the labelled rows.
    """

    smoothing: ScoreSmoothing = field(repr=False)
    variance: Array
    around: Surroundings = field(repr=False)

    @classmethod
    def of(
        cls,
        scores: RowScores,
        smoother: SpectralSmoother,
        inputs: Array,
        rows: Any,
        seed: int,
        blocks: DependentBlocks | None = None,
    ) -> ScoreFaults:
        """Of the rows of a smoother, by their numbers ``rows`` in ``scores`` and ``inputs`` (n, d); their blocks."""
        smoothing = scores.smoothing(smoother, rows, blocks)
        variance = np.ones(len(ORDERS)) if scores.variance is None else scores.variance[rows].mean(axis=0)

        def size_at(some: Array) -> Array:
            return _sizes(LocalReading.at(smoothing, smoother.analysis[some]), variance)

        return cls(smoothing, variance, Surroundings.of(inputs[rows], size_at, seed))

    def wrong(self, vectors: Array, inputs: Array, level: float) -> Array:
        reading = LocalReading.at(self.smoothing, vectors)
        sizes = _sizes(reading, self.variance)
        wrong = reading.significant(level) & (sizes >= MATTERS)
        squares = self.smoothing.local_variances(vectors[wrong])
        window = np.mean(self.smoothing.variance) / np.mean(squares, axis=1)
        errors = np.sqrt((squares / self.variance)[np.arange(len(squares)), reading.dominant[wrong]])
        wrong[wrong] = self.around.share_fault(inputs[wrong], sizes[wrong], errors, window, level)
        return np.asarray(wrong)

    def reading(self, vectors: Array) -> LocalReading | None:
        return LocalReading.at(self.smoothing, vectors)


@dataclass(frozen=True)
class SmoothedErrors:
    """The CCE of a version of vector laws around any input.

    Sizes are its square beyond a true version's, in variances of a target's features. Under the truth the square is
    close to a Gamma variable with the mean and variance of its covariance.

    Attributes:
        coefficients: what the smoother keeps of Delta, (k, r).
        floor: of the variances of Delta, (k, k).
        variance: their mean.
        freedom: (tr C)^2 / tr C^2 of the covariance C of Delta.
    """

    coefficients: Array = field(repr=False)
    floor: Array = field(repr=False)
    variance: float
    freedom: float

    def at(self, vectors: Array) -> tuple[Array, Array]:
        """Size and p-value at inputs, (m,) each, from the smoother's directions there, (m, k)."""
        smoothed = np.asarray(vectors @ self.coefficients, dtype=np.float64)
        square, floor = np.sum(smoothed**2, axis=1), quadratic(vectors, self.floor)
        shape = self.freedom / 2.0
        p_values = gammaincc(shape, shape * square / np.maximum(floor, np.finfo(float).tiny))
        return np.sqrt(np.maximum(square - floor, 0.0) / self.variance), np.clip(p_values, 0.0, 1.0)


@dataclass(frozen=True)
class ErrorFaults(Faults):
    """Faults of vector laws, read off the CCE.

    Attributes:
        smoother: of the labelled rows.
        errors: what it makes of them.
        largest: the largest eigenvalue of C over tr C: of the variance, what lies in one direction at most.
        around: the labelled rows.
    """

    smoother: SpectralSmoother = field(repr=False)
    errors: SmoothedErrors
    largest: float
    around: Surroundings = field(repr=False)

    @classmethod
    def of(
        cls,
        errors: TargetErrors,
        smoother: SpectralSmoother,
        inputs: Array,
        rows: Any,
        seed: int,
        blocks: DependentBlocks | None = None,
    ) -> ErrorFaults:
        """Of the rows of a smoother, by their numbers ``rows`` in ``errors`` and ``inputs`` (n, d); their blocks."""
        delta, variance = errors.delta[rows], errors.variance[rows]
        vectors, filters = smoother.analysis, smoother.filters
        covariance = delta.T @ delta / len(delta)
        eigenvalues = np.maximum(np.linalg.eigvalsh(covariance), np.finfo(float).tiny)
        freedom = float(eigenvalues.sum() ** 2 / np.sum(eigenvalues**2))
        if blocks is None:
            spread = vectors.T @ (vectors * variance[:, None].astype(vectors.dtype))
        else:
            spread = np.sum([block_moments(vectors, column[:, None], blocks)[0][0] for column in delta.T], axis=0)
        kept = np.asarray(smoother.coefficients(delta.astype(vectors.dtype)))
        found = SmoothedErrors(kept, filters[:, None] * spread * filters, float(variance.mean()), freedom)
        around = Surroundings.of(inputs[rows], lambda some: found.at(vectors[some])[0], seed)
        return cls(smoother, found, float(eigenvalues[-1] / eigenvalues.sum()), around)

    def wrong(self, vectors: Array, inputs: Array, level: float) -> Array:
        sizes, p_values = self.errors.at(vectors)
        wrong = (benjamini_hochberg(p_values) <= level) & (sizes >= MATTERS)
        window = effective_rows(self.smoother.at(vectors[wrong]))
        spread = np.sqrt(self.largest * quadratic(vectors[wrong], self.errors.floor) / self.errors.variance)
        wrong[wrong] = self.around.share_fault(inputs[wrong], sizes[wrong], spread, window, level)
        return np.asarray(wrong)

    def reading(self, vectors: Array) -> LocalReading | None:  # noqa: ARG002
        return None


def local_faults(
    scores: RowScores | None,
    errors: TargetErrors,
    smoother: SpectralSmoother,
    inputs: Array,
    rows: Any,
    seed: int,
    blocks: DependentBlocks | None = None,
) -> Faults:
    """The faults of a version around labelled rows, by their numbers, from its scores or, of vectors, its errors.

    ``blocks`` are of all rows of which these are some, where they depend on each other.
    """
    own = None if blocks is None else blocks.of_rows(rows)
    if scores is not None:
        return ScoreFaults.of(scores, smoother, inputs, rows, seed, own)
    return ErrorFaults.of(errors, smoother, inputs, rows, seed, own)


def fewest_false(chances: Array, level: float) -> Array:
    """The longest list of inputs, by rising chance of being false, of mean chance at most ``level``, (m,) booleans."""
    order = np.argsort(chances, kind="stable")
    means = np.cumsum(chances[order]) / np.arange(1, len(chances) + 1)
    chosen = np.zeros(len(chances), bool)
    chosen[order[: np.count_nonzero(means <= level)]] = True
    return chosen


def _sizes(reading: LocalReading, variance: Array) -> Array:
    return np.asarray(np.abs(reading.strength) / np.sqrt(variance)[reading.dominant])
