r"""How far is a model from calibrated? The share of each score's variance that the inputs explain, with intervals.

A true model's scores have mean 0 and variance 1 at every input. With m(x) = E[phi_j(u) | x] and H = U diag(w) U'

.. math::  \theta_j = m' H m / n

is the mean square of m as far as the basis resolves it: 0 if the model is the truth, and of the order of 1 if it is
useless. The p-value of a faulty model goes to 0 with n; theta stays, so it is what people decide on.

phi' H phi exceeds m' H m by sum_i H_ii v_i on average, v_i = Var(phi(u_i) | x_i): 1 under the null, where the estimate is
sum_l w_l (c_l^2 - 1) / n, but not under alternatives. phi_i r_i with r the leave-one-out residual of the ridge regression
H estimates v_i, and products of residuals the variance of what is left (the sandwich of a quadratic form).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.optimize
import scipy.stats

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.bases import InputBasis
from congruence.kernels.conditional_calibration.null import inner_products, projected_scores, row_blocks
from congruence.kernels.conditional_calibration.pit_scores import ORDERS

_LARGEST_LEVERAGE = 0.99


@dataclass(frozen=True)
class Effect:
    """The share of one score's variance that the inputs explain.

    Attributes:
        estimate: theta, without bias; a little below 0 as often as above if the model is the truth.
        low, high: the interval, inside [0, inf).
        level: its coverage.
    """

    estimate: float
    low: float
    high: float
    level: float = 0.95


def explained_shares(basis: InputBasis, ridge: float, scores: Array, *, level: float = 0.95) -> dict[str, Effect]:
    """theta of every order, by its name, at w = e / (e + n ridge), for scores (n, 4)."""
    weights = (basis.eigenvalues / (basis.eigenvalues + ridge)).astype(np.float64)
    vectors = basis.vectors
    coefficients = weights[:, None] * projected_scores(vectors, scores)
    fitted, leverage = np.empty(scores.shape), np.empty(len(scores))
    for rows in row_blocks(len(scores)):
        fitted[rows] = vectors[rows] @ coefficients
        leverage[rows] = vectors[rows] ** 2 @ weights
    leverage = np.minimum(leverage, _LARGEST_LEVERAGE)
    others = fitted - leverage[:, None] * scores
    residuals = (scores - fitted) / (1.0 - leverage)[:, None]
    return {
        name: _effect(vectors, weights, leverage, scores[:, j], others[:, j], residuals[:, j], level)
        for j, name in enumerate(ORDERS)
    }


def _effect(
    vectors: Array, weights: Array, leverage: Array, score: Array, others: Array, residual: Array, level: float
) -> Effect:
    """One order: ``others`` is H phi without each row's own term."""
    n = len(score)
    noise = float(np.sum(leverage * score * residual))
    signal = float(score @ (others + leverage * score)) - noise
    square = residual**2
    inner = weights[:, None] * inner_products(vectors * square[:, None].astype(np.float32), vectors)
    quadratic = 2.0 * max(float(np.sum(inner * inner.T)) - float(np.sum((leverage * square) ** 2)), 0.0)
    linear = max(4.0 * float(np.sum(square * others**2)) - 2.0 * quadratic, 0.0)
    floor = float(np.mean(square))
    slope = max(linear / (4.0 * signal), floor) if signal > 0 else floor
    low, high = _interval(signal, max(noise, 1e-12), max(quadratic, 1e-12), slope, level)
    return Effect(signal / n, low / n, high / n, level)


def _interval(signal: float, noise: float, quadratic: float, slope: float, level: float) -> tuple[float, float]:
    """Signals a under which a gamma law of mean a + noise and variance quadratic + 4 slope a has the form in its middle."""

    def below(a: float) -> float:
        mean, variance = a + noise, quadratic + 4.0 * slope * a
        return float(scipy.stats.gamma.cdf(signal + noise, mean**2 / variance, scale=variance / mean))

    def bound(share: float) -> float:
        if below(0.0) <= share:
            return 0.0
        far = max(signal, 0.0) + np.sqrt(quadratic) + slope
        while below(far) > share:
            far *= 2.0
        return float(scipy.optimize.brentq(lambda a: below(a) - share, 0.0, far))

    tail = 0.5 * (1.0 - level)
    return bound(1.0 - tail), bound(tail)
