r"""How far is a model from calibrated? The share of each score's variance that the inputs explain, with intervals.

A true model's scores have mean 0 and variance 1 at every input. With m(x) = E[phi_j(u) | x] and the ridge regression
H = U diag(w) U' on a basis of the inputs,

.. math::  \theta_j = \frac1n \sum_i m(x_i) m_{-i}(x_i)

is the mean square of m as far as other rows show it: m_{-i} is what H makes of m without row i. It is 0 if the model is
the truth, and of the order of 1 if it is useless. The p-value of a faulty model goes to 0 with n; theta stays, so it is
what people decide on. Its estimate puts scores in the place of m,

.. math::  \hat\theta_j = \frac1n \sum_i \phi_{ij} \hat m_{-i, j}(x_i), \qquad
           \hat m_{-i} = \frac{(H \phi)_i - H_{ii} \phi_i}{1 - H_{ii}}

and is unbiased whatever the variance of the scores, since rows are independent (under the null with small H_ii it is
sum_l w_l (c_l^2 - 1) / n). It is a quadratic form phi' A phi / n without a diagonal, of variance

.. math::  \Big(4 \sum_i v_i (A m)_i^2 + 2 \sum_{i,k} A_{ik}^2 v_i v_k\Big) / n^2, \qquad v_i = Var(\phi_i | x_i)

with v read off leave-one-out residuals (MacKinnon and White 1985, HC3). Near 0 the law is that of a weighted sum of
chi-squares: the interval holds every theta under which a gamma law of these moments has the estimate between its tails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy.optimize
import scipy.stats

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.bases import InputBasis
from congruence.kernels.conditional_calibration.null import inner_products, projected_scores, row_blocks
from congruence.kernels.conditional_calibration.pit_scores import ORDERS

LARGEST_LEVERAGE = 0.99
_SMALLEST = 1e-12
_NEGLIGIBLE_WEIGHT = 1e-2  # directions that H hardly keeps cost as much as others


@dataclass(frozen=True)
class Effect:
    """The share of one score's variance that the inputs explain.

    Attributes:
        estimate: of theta, unbiased: below 0 as often as above if the model is the truth.
        low, high: the interval, inside [0, inf).
        level: its coverage.
    """

    estimate: float
    low: float
    high: float
    level: float = 0.95


def explained_shares(basis: InputBasis, ridge: float, scores: Array, *, level: float = 0.95) -> dict[str, Effect]:
    """Estimates of theta, by the names of the orders, with w = e / (e + n ridge), from scores (n, 4)."""
    regression = LeaveOneOut.of(basis, ridge)
    return {name: regression.effect(scores[:, j], level) for j, name in enumerate(ORDERS)}


def effect_influence(basis: InputBasis, ridge: float, scores: Array) -> Array:
    """``LeaveOneOut.influence`` of scores (n, 4), (n, 4): by which the effects of two versions are compared."""
    regression = LeaveOneOut.of(basis, ridge)
    return np.column_stack([regression.influence(column) for column in scores.T])


@dataclass(frozen=True)
class LeaveOneOut:
    """H = U diag(w) U' without its diagonal: what the other rows say of a row.

    Attributes:
        vectors: U, (n, k).
        weights: w, (k,).
        leverage: H_ii, (n,).
    """

    vectors: Array
    weights: Array
    leverage: Array

    @classmethod
    def of(cls, basis: InputBasis, ridge: float) -> LeaveOneOut:
        """The regression on a basis."""
        weights = kept_weights(basis.eigenvalues, ridge)
        vectors = basis.vectors[:, : len(weights)]
        leverage = np.concatenate([vectors[rows] ** 2 @ weights for rows in row_blocks(len(vectors))])
        return cls(vectors, weights, np.minimum(leverage, LARGEST_LEVERAGE))

    def of_others(self, values: Array) -> Array:
        """(H - diag H) values, (n, r), for values (n, r)."""
        coefficients = self.weights[:, None] * projected_scores(self.vectors, values)
        smoothed = np.concatenate([self.vectors[rows] @ coefficients for rows in row_blocks(len(values))])
        return np.asarray(smoothed - self.leverage[:, None] * values)

    def effect(self, score: Array, level: float) -> Effect:
        """theta of one score (n,)."""
        predicted, lifted = self.predictions(score)
        return self.sums(float(score @ predicted), (score - predicted) ** 2, predicted + lifted).effect(level)

    def predictions(self, score: Array) -> tuple[Array, Array]:
        """m_-i(x_i), and (H - diag H) of the scores over 1 - H_ii: together twice A phi, (n,) each."""
        lift = 1.0 / (1.0 - self.leverage)
        others, lifted = self.of_others(np.column_stack([score, lift * score])).T
        return lift * others, lifted

    def influence(self, score: Array) -> Array:
        """What each row contributes to the estimate beyond its mean, to first order, (n,).

        The sum of their squares over n^2 is its variance, with the quadratic part counted twice: where the effect is
        near 0 it is on the safe side. Those of two versions on the same rows subtract.
        """
        predicted, lifted = self.predictions(score)
        return np.asarray((score - predicted) * (predicted + lifted))

    def sums(self, signal: float, variance: Array, products: Array) -> EffectSums:
        """Of all rows, from v and (A phi)_i twice over, (n,) each."""
        lift = 1.0 / (1.0 - self.leverage)
        own = self.leverage * lift * variance
        return EffectSums(
            len(variance),
            signal,
            float(variance @ products**2),
            float(np.sum(variance)),
            float(np.sum(own)),
            float(np.sum(own**2)),
            [self._inner(variance * lift**power) for power in (0, 1, 2)],
        )

    def _inner(self, values: Array) -> Array:
        """diag(w) U' diag(values) U, (k, k)."""
        return self.weights[:, None] * inner_products(self.vectors, self.vectors, values)


def kept_weights(eigenvalues: Array, ridge: float) -> Array:
    """w = e / (e + ridge) of the directions that H keeps, from e = eigenvalues / n, decreasing."""
    weights = eigenvalues / (eigenvalues + ridge)
    return np.asarray(weights[: max(1, int(np.count_nonzero(weights >= _NEGLIGIBLE_WEIGHT)))])


@dataclass(frozen=True)
class EffectSums:
    """What the estimate and its interval need of the rows, summed over them.

    Attributes:
        rows: n.
        signal: sum of phi_i m_-i(x_i).
        products: sum of v_i (predicted_i + lifted_i)^2.
        variance: sum of v_i.
        diagonal, diagonal_squares: sums of H_ii lift_i v_i and of its square.
        inner: diag(w) U' diag(v lift^p) U for p = 0, 1, 2, (k, k) each.
    """

    rows: int
    signal: float
    products: float
    variance: float
    diagonal: float
    diagonal_squares: float
    inner: Sequence[Array] = field(repr=False)

    @property
    def quadratic(self) -> float:
        """2 sum A_ik^2 v_i v_k with A_ik = H_ik (lift_i + lift_k) / 2 off the diagonal."""
        plain, once, twice = self.inner
        return float(np.sum(plain * twice.T) + np.sum(once * once.T)) - 2.0 * self.diagonal_squares

    def effect(self, level: float) -> Effect:
        """theta with its interval."""
        quadratic = max(self.quadratic, _SMALLEST)
        # Products of scores hold the quadratic part twice over.
        linear = self.products - 2.0 * quadratic
        least = self.variance / self.rows
        slope = max(linear / (4.0 * self.signal), least) if self.signal > 0 else least
        low, high = _interval(self.signal, max(self.diagonal, _SMALLEST), quadratic, slope, level)
        return Effect(self.signal / self.rows, low / self.rows, high / self.rows, level)


def _interval(signal: float, diagonal: float, quadratic: float, slope: float, level: float) -> tuple[float, float]:
    """The a >= 0 for which signal is no rarer than the tails of a gamma law of variance quadratic + 4 slope a.

    ``diagonal`` is what the quadratic form would be on average with its diagonal, at a = 0: where the gamma law starts.
    """

    def below(a: float) -> float:
        mean, variance = a + diagonal, quadratic + 4.0 * slope * a
        return float(scipy.stats.gamma.cdf(signal + diagonal, mean**2 / variance, scale=variance / mean))

    def bound(share: float) -> float:
        if below(0.0) <= share:
            return 0.0
        far = max(signal, 0.0) + float(np.sqrt(quadratic)) + slope
        while below(far) > share:
            far *= 2.0
        return float(scipy.optimize.brentq(lambda a: below(a) - share, 0.0, far))

    tail = 0.5 * (1.0 - level)
    return bound(1.0 - tail), bound(tail)
