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

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import gammaincc, ndtr

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.counts import JumpScores
from congruence.kernels.conditional_calibration.local_reading import (
    LocalReading,
    ScoreSmoothing,
    block_moments,
    quadratic,
)
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.congruence_test import benjamini_hochberg
from congruence.kernels.engine.spectrum import SpectralSmoother
from congruence.kernels.engine.targets import TargetErrors
from congruence.kernels.pit import ORDERS, cell_step, pit_scores, pit_values
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
        step = cell_step(y, predictive)
        jumps = JumpScores.of(y, predictive, step)
        if jumps is not None:
            return cls(jumps.values, jumps.variance)
        return cls(pit_scores(pit_values(y, predictive, seed=seed, keys=keys, step=step)), None)


@dataclass(frozen=True)
class Faults(ABC):
    """Where a version is wrong.

    Attributes:
        smoother: of the labelled rows.
        index: some of these, in the encoder's space before it is normalised.
        share: of all labelled rows that these are.
        around: size of the fault at each of them, (p,), by which an input next to them is known to share it or not.
    """

    smoother: SpectralSmoother = field(repr=False)
    index: NeighbourIndex | None = field(default=None, repr=False, kw_only=True)
    share: float = field(default=1.0, kw_only=True)
    around: Array = field(default_factory=lambda: np.empty(0), repr=False, kw_only=True)

    @abstractmethod
    def _at(self, vectors: Array, level: float) -> tuple[Array, Array]:
        """Size of the fault, and whether there is one at a false discovery rate of ``level``, (m,) each."""

    @abstractmethod
    def _errors(self, vectors: Array) -> tuple[Array, Array]:
        """Standard errors of sizes, and how many labelled rows are around, (m,) each."""

    def reading(self, vectors: Array) -> LocalReading | None:  # noqa: ARG002
        """What is wrong at some inputs; None where no more is known than that something is."""
        return None

    def wrong(self, vectors: Array, inputs: Array, level: float) -> Array:
        """Inputs at which the version is wrong at a false discovery rate of ``level`` and by enough to matter, (m,).

        Args:
            vectors: U at the inputs, (m, k).
            inputs: these in the space of the labelled rows', (m, d).
            level: the rate.
        """
        sizes, found = self._at(vectors, level)
        wrong = found & (sizes >= MATTERS)
        if wrong.any():
            assert self.index is not None
            errors, window = self._errors(vectors[wrong])
            counts = np.clip(np.rint(window * self.share), _FEWEST_AROUND, _MOST_AROUND).astype(np.intp)
            nearest = self.index.nearest(inputs[wrong], int(counts.max()))[1]
            around = np.where(np.arange(nearest.shape[1]) < counts[:, None], self.around[nearest], np.nan)
            half = np.nanquantile(around, _LARGE, axis=1) / 2.0
            chances = ndtr((half - sizes[wrong]) / np.maximum(_ERRORS * errors, np.finfo(float).tiny))
            wrong[wrong] = fewest_false(chances, level)
        return np.asarray(wrong)


@dataclass(frozen=True)
class ScoreFaults(Faults):
    """Faults of scalar laws, read off PIT scores.

    Attributes:
        smoothing: of the scores of the labelled rows.
        variance: of the scores of one row of a true version, (4,): the unit of sizes.
    """

    smoothing: ScoreSmoothing = field(repr=False)
    variance: Array

    def _at(self, vectors: Array, level: float) -> tuple[Array, Array]:
        reading = LocalReading.at(self.smoothing, vectors)
        return np.abs(reading.strength) / np.sqrt(self.variance)[reading.dominant], reading.significant(level)

    def _errors(self, vectors: Array) -> tuple[Array, Array]:
        squares, dominant = self.smoothing.local_variances(vectors), self.reading(vectors).dominant
        errors = np.sqrt((squares / self.variance)[np.arange(len(squares)), dominant])
        return errors, np.mean(self.smoothing.variance) / np.mean(squares, axis=1)

    def reading(self, vectors: Array) -> LocalReading:
        return LocalReading.at(self.smoothing, vectors)


@dataclass(frozen=True)
class ErrorFaults(Faults):
    """Faults of vector laws, read off the CCE.

    Sizes are its square beyond a true version's, in variances of a target's features. Under the truth the square is
    close to a Gamma variable with the mean and variance of its covariance C.

    Attributes:
        coefficients: what the smoother keeps of Delta, (k, r).
        floor: of the variances of Delta, (k, k).
        variance: their mean.
        freedom: (tr C)^2 / tr C^2 of the covariance C of Delta.
        largest: the largest eigenvalue of C over tr C: of the variance, what lies in one direction at most.
    """

    coefficients: Array = field(repr=False)
    floor: Array = field(repr=False)
    variance: float
    freedom: float
    largest: float

    @classmethod
    def of(
        cls, smoother: SpectralSmoother, delta: Array, variance: Array, blocks: DependentBlocks | None
    ) -> ErrorFaults:
        """From Delta (n, r) and its variances (n,), of the rows of a smoother."""
        vectors, filters = smoother.analysis, smoother.filters
        eigenvalues = np.maximum(np.linalg.eigvalsh(delta.T @ delta / len(delta)), np.finfo(float).tiny)
        freedom = float(eigenvalues.sum() ** 2 / np.sum(eigenvalues**2))
        if blocks is None:
            spread = vectors.T @ (vectors * variance[:, None].astype(vectors.dtype))
        else:
            spread = np.sum([block_moments(vectors, column[:, None], blocks)[0][0] for column in delta.T], axis=0)
        kept, floor = smoother.coefficients(delta.astype(vectors.dtype)), filters[:, None] * spread * filters
        shape = float(variance.mean()), freedom, float(eigenvalues[-1] / eigenvalues.sum())
        return cls(smoother, kept, floor, *shape)

    def _at(self, vectors: Array, level: float) -> tuple[Array, Array]:
        smoothed = np.asarray(vectors @ self.coefficients, dtype=np.float64)
        square, floor = np.sum(smoothed**2, axis=1), quadratic(vectors, self.floor)
        shape = self.freedom / 2.0
        p_values = gammaincc(shape, shape * square / np.maximum(floor, np.finfo(float).tiny))
        sizes = np.sqrt(np.maximum(square - floor, 0.0) / self.variance)
        return sizes, benjamini_hochberg(np.clip(p_values, 0.0, 1.0)) <= level

    def _errors(self, vectors: Array) -> tuple[Array, Array]:
        errors = np.sqrt(self.largest * quadratic(vectors, self.floor) / self.variance)
        return errors, effective_rows(self.smoother.at(vectors))


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
    if scores is None:
        found: Faults = ErrorFaults.of(smoother, errors.delta[rows], errors.variance[rows], own)
    else:
        kept = None if scores.variance is None else scores.variance[rows]
        smoothing = ScoreSmoothing.of_rows(smoother, scores.scores[rows], kept, own)
        found = ScoreFaults(smoother, smoothing, np.ones(len(ORDERS)) if kept is None else kept.mean(axis=0))
    n, labelled = len(smoother.analysis), inputs[rows]
    some = np.sort(stream(seed, "rows of local faults").permutation(n)[:_AROUND])
    sizes = found._at(smoother.analysis[some], 1.0)[0]
    return replace(found, index=NeighbourIndex.of(labelled[some]), share=len(some) / n, around=sizes)


def fewest_false(chances: Array, level: float) -> Array:
    """The longest list of inputs, by rising chance of being false, of mean chance at most ``level``, (m,) booleans."""
    order = np.argsort(chances, kind="stable")
    means = np.cumsum(chances[order]) / np.arange(1, len(chances) + 1)
    chosen = np.zeros(len(chances), bool)
    chosen[order[: np.count_nonzero(means <= level)]] = True
    return chosen
