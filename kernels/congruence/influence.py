r"""What each reference row contributes to a mean CCE, and the standard errors that follow: targets are what is random.

Points near each other are smoothed from the same targets, so their CCE values are no sample of independent numbers;
the rows of the reference split are. With e_j = sum_i a_i(x_j) Delta_i, the derivative of a mean over the points with
respect to the outcome of row i, times that outcome's residual r_i, is the row's influence (the infinitesimal
jackknife; Efron 1982, chapter 6):

.. math::  g_i = \frac{2}{m} \sum_j a_{ij} \langle e_j, r_i \rangle  \quad\text{of } \frac1m \sum_j |e_j|^2,
   \qquad  h_i = \frac{1}{m} \sum_j a_{ij} \Big\langle \frac{e_j}{|e_j|}, r_i \Big\rangle
   \quad\text{of } \frac1m \sum_j |e_j|.

One more smoothing gives both; of g_i a row's product with itself is taken off once. r_i is Delta_i less what its
neighbours tell of it, by a leave-one-out ridge fit: the part of the outcome that x does not explain, with the
Monte-Carlo error of a finite ensemble, which is as random.

The sum of their squares is the variance of what is linear in the outcomes, such as the difference of two versions'
squares. It counts twice what is quadratic in their noise: most of a mean CCE^2 near the noise floor, and what two
ensembles' own errors add. Signs drawn for the residuals (a multiplier bootstrap; Wu 1986) tell how much that is: with
s_b = sum_i a_i xi_ib r_i, the variance over b of mean |s_b|^2, or of the difference of two versions' with the same
signs. One version's standard errors are those of e shrunken to what is not noise, plus s_b. All of it runs in the
leading directions of the Gram matrix, by thin products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from congruence.kernels.arrays import Array

_INFLUENCES = ("root", "squared")
_TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class CongruenceInfluence:
    """What each reference row contributes to the two means of a version.

    Attributes:
        squared_mean: mean over the points of CCE^2, less the Monte-Carlo term of a finite ensemble.
        mean: mean CCE.
        squared: influence of each reference row on ``squared_mean``, (n,).
        root: influence on ``mean``, (n,).
        noise: mean over the points of |s_b|^2 for each draw b of the signs, (B,); the same signs for every version.
    """

    squared_mean: float
    mean: float
    squared: Array = field(repr=False)
    root: Array = field(repr=False)
    noise: Array = field(repr=False)


@dataclass(frozen=True)
class CongruenceUncertainty:
    """How a version's means would vary with new targets at the same inputs.

    Attributes:
        influence: of each reference row.
        standard_error: of the mean CCE.
        squared_standard_error: of the mean CCE^2.
        noise_standard_error: of the mean CCE^2 of the same noise around no error at all.
        blocks: how many blocks of rows are taken as independent; None where all rows are.
        noise_means: mean CCE of the same noise around no error, for each draw of the blocks' signs, (B,); None of
            independent rows.
    """

    influence: CongruenceInfluence = field(repr=False)
    standard_error: float
    squared_standard_error: float
    noise_standard_error: float
    blocks: int | None = None
    noise_means: Array | None = field(default=None, repr=False)


def spread_over(uncertainty: CongruenceUncertainty, rows: Array, total: int) -> CongruenceUncertainty:
    """The same with influences on all ``total`` rows of a split, of which the reference held ``rows``."""
    influence = uncertainty.influence
    squared, root = np.zeros(total), np.zeros(total)
    squared[rows], root[rows] = influence.squared, influence.root
    return replace(uncertainty, influence=replace(influence, squared=squared, root=root))


def repeated_uncertainty(repeats: Sequence[CongruenceUncertainty]) -> CongruenceUncertainty:
    """Of the mean over repeats, which share the targets but not their choices of rows and draws.

    Influences are averaged, so that what is a repeat's own cancels. Their root sum of squares is corrected by what the
    signs tell of one repeat, and the spread of the repeats' means over their number is added. Draws of the signs differ
    between references, so two versions' difference counts what is quadratic in the noise more than once.
    """
    influences = [item.influence for item in repeats]
    mean, squared_mean = (
        np.array([getattr(influence, name) for influence in influences]) for name in ("mean", "squared_mean")
    )
    root, squared = (np.mean([getattr(influence, name) for influence in influences], axis=0) for name in _INFLUENCES)
    noise = np.mean([influence.noise for influence in influences], axis=0)
    first_order = [(_norm(influence.root), _norm(influence.squared)) for influence in influences]
    corrections = [
        (item.standard_error / max(of_root, _TINY), item.squared_standard_error / max(of_square, _TINY))
        for item, (of_root, of_square) in zip(repeats, first_order, strict=True)
    ]
    of_noise = float(np.mean([item.noise_standard_error / max(item.squared_standard_error, _TINY) for item in repeats]))
    of_root, of_square = np.mean(corrections, axis=0) * (_norm(root), _norm(squared))
    return CongruenceUncertainty(
        CongruenceInfluence(float(np.mean(squared_mean)), float(np.mean(mean)), squared, root, noise),
        standard_error=float(np.hypot(of_root, _error_of_mean(mean))),
        squared_standard_error=float(np.hypot(of_square, _error_of_mean(squared_mean))),
        noise_standard_error=float(np.hypot(of_square * of_noise, _error_of_mean(squared_mean))),
    )


def _norm(values: Array) -> float:
    return float(np.linalg.norm(values))


def _error_of_mean(values: Array) -> float:
    return float(np.std(values, ddof=1)) / float(np.sqrt(len(values))) if len(values) > 1 else 0.0
