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
from congruence.kernels.congruence.coded_draws import row_codes, sums_by_code, walsh_hadamard
from congruence.kernels.gram.spectrum import SpectralSmoother
from congruence.kernels.streams import stream

MULTIPLIERS = 200
ENERGY = 0.998  # of the residuals' features that the multipliers see
RIDGES = np.geomspace(1e-6, 1e6, 37)  # relative to the metric's own n lambda
MAX_AXES = 256  # of them: vector targets have thousands
LEAST_FREEDOM = 1e-3  # 1 - h_ii of a row that has a direction to itself, above the rounding of single precision
POINTS = 4096  # that means under drawn signs run over
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
    """

    influence: CongruenceInfluence = field(repr=False)
    standard_error: float
    squared_standard_error: float
    noise_standard_error: float

    @property
    def noise(self) -> Array:
        """``influence.noise``."""
        return self.influence.noise


def congruence_uncertainty(
    smoother: SpectralSmoother,
    delta: Array,
    smoothed: Array,
    *,
    sampling_variance: Array | None = None,
    multipliers: int = MULTIPLIERS,
) -> CongruenceUncertainty:
    """Influences and standard errors of the mean CCE and of the mean CCE^2.

    Args:
        smoother: k(x)' A^-1 in the leading directions, at m points.
        delta: Delta of the n reference rows, (n, r).
        smoothed: e = k(x)' A^-1 Delta, (m, r).
        sampling_variance: the part of E|Delta_i|^2 that is the Monte-Carlo error of an ensemble, (n,).
        multipliers: draws of the signs; the standard errors are known to 1 / sqrt(2 multipliers) of themselves.
    """
    residuals = target_residuals(smoother, delta)
    norms = np.sqrt(np.einsum("ij,ij->i", smoothed, smoothed))
    directions = smoothed / np.maximum(norms, _TINY)[:, None]
    points = len(smoothed)
    # The derivative has a row's product with itself, |r_i|^2, twice, and the mean square has it once.
    own = smoother.column_squares * np.einsum("ij,ij->i", residuals, residuals)
    squared = (2.0 * np.einsum("ij,ij->i", smoother.transposed(smoothed), residuals) - own) / points
    root = 1.0 / points * np.einsum("ij,ij->i", smoother.transposed(directions), residuals)
    chance = 0.0 if sampling_variance is None else float(np.mean(smoother.squared_weights(sampling_variance)))
    means, squares, noise = _multiplied(smoother, residuals, smoothed, multipliers)
    return CongruenceUncertainty(
        CongruenceInfluence(float(np.mean(norms**2)) - chance, float(np.mean(norms)), squared, root, noise),
        standard_error=float(np.std(means, ddof=1)),
        squared_standard_error=float(np.std(squares, ddof=1)),
        noise_standard_error=float(np.std(noise, ddof=1)),
    )


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


def target_residuals(smoother: SpectralSmoother, delta: Array) -> Array:
    """Delta_i less its leave-one-out ridge fit from the other rows, (n, r); the ridge minimises cross-validation.

    The fit runs in the smoother's directions; (1 - h_ii)^-1 (Delta - fit) is the leave-one-out residual, and the ridge
    that of generalised cross-validation (Wahba 1990, equation 4.3.1), or none where no fit predicts better than 0.
    """
    coefficients = np.asarray(smoother.analysis.T @ delta.astype(smoother.analysis.dtype), dtype=np.float64)
    chosen = residual_filters(smoother.filters, coefficients, float(np.sum(delta**2)), len(delta))
    return leave_one_out(smoother.analysis, chosen, coefficients, delta)


def residual_filters(filters: Array, coefficients: Array, total: float, n: int) -> Array:
    """Filters (k,) of the ridge fit that generalised cross-validation chooses, zeros where no fit predicts better.

    Args:
        filters: of the metric's own lambda, (k,).
        coefficients: U' Delta, (k, r).
        total: |Delta|^2.
        n: rows.
    """
    energy = np.sum(coefficients**2, axis=1)
    kept = filters.astype(np.float64)
    relative = kept / np.maximum(1.0 - kept, np.finfo(float).eps)  # eigenvalues over n lambda
    best, chosen = total / n**2, np.zeros_like(kept)
    for ridge in RIDGES:
        filters = relative / (relative + ridge)
        freedom = n - float(np.sum(filters))
        if freedom < n / 2:
            continue
        score = max(total - float(np.sum((2.0 * filters - filters**2) * energy)), 0.0) / freedom**2
        if score < best:
            best, chosen = score, filters
    return chosen


def leave_one_out(analysis: Array, chosen: Array, coefficients: Array, delta: Array) -> Array:
    """Leave-one-out residuals (rows, r) of some rows U (rows, k) and Delta (rows, r), by the fit of all."""
    fit = analysis @ (chosen[:, None] * coefficients).astype(analysis.dtype)
    leverage = np.einsum("ij,j,ij->i", analysis, chosen, analysis)
    return np.asarray((delta - fit) / np.maximum(1.0 - leverage, LEAST_FREEDOM)[:, None])


def _multiplied(
    smoother: SpectralSmoother, residuals: Array, smoothed: Array, multipliers: int
) -> tuple[Array, Array, Array]:
    """Mean CCE, mean CCE^2 and mean |s_b|^2 for every draw of the signs, (B,) each."""
    axes = leading_axes(residuals)
    noise = (residuals @ axes).astype(np.float32)
    left_out = np.maximum(np.sum(residuals**2, axis=1) - np.sum(noise**2, axis=1, dtype=np.float64), 0.0)
    rows = mean_points(len(smoothed))
    observed, at_rows = (smoothed[rows] @ axes).astype(np.float32), smoother.at_points(rows)
    # Of directions by the hundred the noise hardly varies: it stands at its mean.
    constant = at_rows.squared_weights(left_out)
    beside = np.maximum(np.sum(smoothed[rows] ** 2, axis=1) - np.sum(observed**2, axis=1), 0.0)
    # Not the evaluation's seed: two versions compare by the same signs.
    drawn = coefficients_under_signs(smoother, noise, multipliers, 0, "signs of residuals")
    return means_under_signs(drawn, at_rows.synthesis, observed, beside, constant)


def coefficients_under_signs(smoother: SpectralSmoother, noise: Array, count: int, seed: int, purpose: str) -> Array:
    """What the smoother keeps of ``noise`` (n, c) under each of ``count`` draws of the rows' signs, (count, k, c).

    Any two draws are independent (``coded_draws``). That of g = 0, which leaves every sign as it is, is not among them.
    """
    bits = count.bit_length()
    codes = row_codes(np.arange(len(noise)), bits, seed, purpose)
    return kept_under_signs(sums_by_code(smoother.analysis, noise, codes, bits), smoother.filters, count)


def kept_under_signs(sums: Array, filters: Array, count: int) -> Array:
    """``coefficients_under_signs`` from ``sums_by_code``."""
    drawn = walsh_hadamard(np.asarray(sums, dtype=np.float32))[1 : count + 1]
    drawn *= filters[:, None]
    return drawn


def means_under_signs(
    drawn: Array, synthesis: Array, observed: Array, beside: Array, constant: Array
) -> tuple[Array, Array, Array]:
    """Mean CCE, mean CCE^2 and mean |s_b|^2 over some points for every draw of the signs, (B,) each.

    Args:
        drawn: what the smoother keeps of the residuals under drawn signs, in their leading axes, (B, k, c).
        synthesis: U at the points, (p, k).
        observed: e at the points in those axes, (p, c).
        beside: |e|^2 outside of them, (p,).
        constant: expected square of the noise outside of them, (p,).
    """
    multipliers = len(drawn)
    moment = synthesis.T @ synthesis
    of_noise = np.array([np.sum(part * (moment @ part)) for part in drawn], dtype=np.float64) + np.sum(constant)
    signal = float(np.sum(observed**2) + np.sum(beside))
    # Of e = b + s, E|e|^2 = |b|^2 + E|s|^2: what is left of e without its noise.
    kept = max(0.0, 1.0 - float(np.mean(of_noise)) / signal) if signal > 0.0 else 0.0
    signal_kept, around = np.float32(np.sqrt(kept)) * observed, kept * beside + constant
    means, squares = np.empty(multipliers), np.empty(multipliers)
    for number, coefficients in enumerate(drawn):
        values = synthesis @ coefficients
        values += signal_kept
        square = np.einsum("ij,ij->i", values, values) + around
        means[number], squares[number] = np.mean(np.sqrt(square)), np.mean(square)
    return means, squares, of_noise / len(observed)


def mean_points(n: int) -> Array:
    """Evenly spaced points over which means under drawn signs run."""
    return np.linspace(0, n - 1, min(n, POINTS)).astype(np.intp)


def leading_axes(residuals: Array) -> Array:
    """Orthonormal directions (r, c) that hold ``ENERGY`` of the residuals (n, r), or the ``MAX_AXES`` leading ones."""
    total = max(float(np.sum(residuals**2)), _TINY)
    basis = None
    if residuals.shape[1] > 2 * MAX_AXES:
        basis = _leading_subspace(residuals)
        residuals = residuals @ basis
    axes = axes_of(residuals.T @ residuals, total)
    return np.ascontiguousarray(axes if basis is None else basis @ axes)


def axes_of(moment: Array, total: float) -> Array:
    """Leading eigenvectors (r, c) of the residuals' second moment (r, r) that hold ``ENERGY`` of ``total``."""
    energy, axes = np.linalg.eigh(moment)
    count = min(int(np.searchsorted(np.cumsum(energy[::-1]) / max(total, _TINY), ENERGY)) + 1, len(energy), MAX_AXES)
    return np.ascontiguousarray(axes[:, : -count - 1 : -1])


def _leading_subspace(residuals: Array) -> Array:
    """A basis (r, 2 c) near the c leading directions, by subspace iteration (Halko, Martinsson and Tropp 2011)."""
    start = stream(0, "subspace of residuals").standard_normal((residuals.shape[1], 2 * MAX_AXES))
    for _ in range(3):
        start, _ = np.linalg.qr(residuals.T @ (residuals @ start))
    return np.asarray(start)
