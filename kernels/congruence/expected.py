"""What a version's mean CCE would be if the version were the truth, with its 95 % band: like beside like.

The noise floor is a root of expected squares, and a mean CCE is a mean of norms: a true law lies below its floor. Here
the same mean of norms is taken of targets drawn from the version itself, Delta*_i = psi(y*_i) - E psi(Y_i), smoothed
in the leading directions. A few drawn splits serve for hundreds, since signs drawn for the rows leave the covariance of
the smoothed error as it is and rows are many (a multiplier bootstrap; Wu 1986). What the leading directions miss of the
squares is known from the floor, and the norms are scaled by it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.congruence.influence import CongruenceUncertainty
from congruence.kernels.congruence.influence_sums import mean_points
from congruence.kernels.congruence.null_draws import features_of_split
from congruence.kernels.congruence.result import CongruenceResult
from congruence.kernels.congruence.simulated import SimulatedVersion, true_coefficients
from congruence.kernels.dependence.blocks import widening
from congruence.kernels.distributions import Distribution
from congruence.kernels.gram.spectrum import SpectralSmoother
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.printed import printed
from congruence.kernels.weights import mean_over

BAND = (0.025, 0.975)


@dataclass(frozen=True, repr=False)
class ExpectedCongruence:
    """The mean CCE of a true version: on average, and the bounds that 95 of 100 splits keep."""

    mean: float
    low: float
    high: float

    def __repr__(self) -> str:
        return printed(self, mean=self.mean, band=(self.low, self.high))


def expected_congruence(
    smoother: SpectralSmoother,
    y: Array,
    predictive: Distribution,
    kernel: Kernel,
    *,
    mean_squared_floor: float,
    roots: Array | None = None,
    seed: int = 0,
) -> ExpectedCongruence:
    """What the mean CCE under k_Y = ``kernel`` would be if ``predictive`` were the truth.

    Args:
        smoother: k(x)' A^-1 at m points, from n reference rows.
        y: targets of the reference rows, (n,) or (n, q); only their range is used, except with ensembles.
        predictive: n predictive distributions.
        kernel: the k_Y of the mean CCE.
        mean_squared_floor: mean over the points of the squared noise floor.
        roots: of the weights of the reference rows, (n,), where they count unequally.
        seed: of the drawn splits and signs.
    """
    version = SimulatedVersion(features_of_split(y, predictive, kernel), None, 0, 0, seed)
    drawn = true_coefficients(version.sums(smoother, y, predictive, roots=roots, threads=1), smoother.filters)
    shown = mean_points(len(smoother.synthesis))
    weights = None if smoother.weights is None else smoother.weights[shown]
    return expected_at(smoother.synthesis[shown], drawn, mean_squared_floor, weights)


def expected_of_result(
    result: CongruenceResult,
    smoother: SpectralSmoother,
    y: Array,
    predictive: Distribution,
    kernel: Kernel,
    *,
    roots: Array | None = None,
    seed: int = 0,
) -> ExpectedCongruence:
    """The same beside the mean of ``result``: by blocks of rows where its standard errors are."""
    known = result.uncertainty
    if known is not None and known.noise_means is not None:
        return expected_by_blocks(known)
    floor = mean_over(result.noise_floor_values**2, result.weights)
    return expected_congruence(smoother, y, predictive, kernel, mean_squared_floor=floor, roots=roots, seed=seed)


def expected_by_blocks(uncertainty: CongruenceUncertainty) -> ExpectedCongruence:
    """The same of rows that depend on each other: what their residuals make with one sign for every block.

    The band is drawn apart as far as so few blocks ask for (``dependence.blocks.widening``).
    """
    assert uncertainty.noise_means is not None
    mean = float(np.mean(uncertainty.noise_means))
    apart = 1.0 if uncertainty.blocks is None else widening(uncertainty.blocks)
    low, high = mean + apart * (np.quantile(uncertainty.noise_means, BAND) - mean)
    return ExpectedCongruence(mean, max(float(low), 0.0), float(high))


def expected_at(
    synthesis: Array, drawn: Array, mean_squared_floor: float, weights: Array | None = None
) -> ExpectedCongruence:
    """The same from what the smoother keeps of drawn Delta under signs, (B, k, r), at points U (p, k) of weights (p,).

    ``mean_squared_floor`` is weighted likewise.
    """
    means, squares = np.empty(len(drawn)), np.empty(len(drawn))
    for number, coefficients in enumerate(drawn):
        smoothed = synthesis @ coefficients
        square = np.einsum("ij,ij->i", smoothed, smoothed)
        means[number], squares[number] = mean_over(np.sqrt(square), weights), mean_over(square, weights)
    # Directions and features that were left out hold a small known share of the expected squares.
    means *= np.sqrt(mean_squared_floor / max(float(np.mean(squares)), np.finfo(float).tiny))
    low, high = np.quantile(means, BAND)
    return ExpectedCongruence(float(np.mean(means)), float(low), float(high))
