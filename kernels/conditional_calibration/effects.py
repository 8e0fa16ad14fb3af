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

with v read off leave-one-out residuals (MacKinnon and White 1985, HC3). Near 0 the distribution is that of a weighted
sum of chi-squares: the interval holds every theta under which a gamma distribution of these moments has the estimate
between its tails.

Rows that count w_i, of mean 1, make both theta and its estimate weighted means; \hat m is as it was, since what is
known of a distribution does not depend on how many live under it. A then has w_i / (1 - H_{ii}) in the place of
1 / (1 - H_{ii}).

The outcome of a test has them beside its p-values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.special

from congruence.kernels.arrays import Array, printed
from congruence.kernels.conditional_calibration.bases import DISTANCES, PROTOCOL, Bases, distance_name, product
from congruence.kernels.conditional_calibration.null import RIDGES
from congruence.kernels.dependence.blocks import DependentBlocks, SumOfBlocks, t_quantile
from congruence.kernels.engine.blocks import BlockSums
from congruence.kernels.engine.system import weighted_squares
from congruence.kernels.pit import ORDERS

if TYPE_CHECKING:
    import pandas as pd


LARGEST_LEVERAGE = 0.99
_SMALLEST = 1e-12
_NEGLIGIBLE_WEIGHT = 1e-2  # directions that H hardly keeps cost as much as others
NullKind = Literal["exact", "blocks"]


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


@dataclass(frozen=True)
class LeaveOneOut:
    """H = U diag(w) U' without its diagonal: what the other rows say of a row. Two passes over the tiles of U.

    Attributes:
        place: of the directions among those of a tile.
        weights: w, (k,).
    """

    place: slice
    weights: Array

    @classmethod
    def of(cls, eigenvalues: Array, ridge: float, start: int = 0) -> LeaveOneOut:
        """The regression on a basis whose directions begin at ``start``, by the w = e / (e + ridge) that it keeps."""
        weights = eigenvalues / (eigenvalues + ridge)
        weights = weights[: max(1, int(np.count_nonzero(weights >= _NEGLIGIBLE_WEIGHT)))]
        return cls(slice(start, start + len(weights)), weights)

    @classmethod
    def of_bases(cls, bases: Bases) -> LeaveOneOut:
        """The regression on the RBF at the middle bandwidth, else on the protocol's kernel, else on the constant."""
        named = {basis.name: basis for basis in bases.all}
        basis = named.get(distance_name(DISTANCES[len(DISTANCES) // 2])) or named.get(PROTOCOL) or bases.all[0]
        return cls.of(basis.eigenvalues, min(RIDGES), basis.start)

    def at(self, vectors: Array) -> tuple[Array, Array]:
        """U of the regression at a tile's rows, (rows, k), and H_ii, (rows,)."""
        own = vectors[:, self.place]
        return own, np.minimum(own**2 @ self.weights, LARGEST_LEVERAGE)

    def add_scores(
        self,
        sums: BlockSums,
        vectors: Array,
        scores: Array,
        weights: Array | None = None,
        blocks: DependentBlocks | None = None,
    ) -> None:
        """First pass: U'phi and U'(w phi / (1 - H_ii)) of a tile; of dependent rows the latter by block, too."""
        own, leverage = self.at(vectors)
        lift = _lift(leverage, weights)[:, None]
        sums.add("regression", product(own, scores))
        sums.add("lifted", product(own, scores * lift))
        if blocks is not None:
            sums.add("on the diagonal", np.sum((leverage[:, None] * lift) * scores**2, axis=0))
            lifted = sums.sum_of("lifted in blocks", (blocks.count, own.shape[1], scores.shape[1]))
            blocks.add_products(lifted, own, lift * scores)

    def add_effects(
        self, sums: BlockSums, known: BlockSums, vectors: Array, scores: Array, weights: Array | None = None
    ) -> Array:
        """Second pass, once the first is over all rows: adds what the effects need; influence of each row, (rows, 4).

        ``weights`` (rows,), of mean 1 over all rows, are what each counts in the mean that an effect is; what other
        rows say of it is as without.

        A row's influence is what it contributes to the estimate beyond its mean, to first order. The sum of their
        squares over n^2 is its variance, with the quadratic part counted twice: where the effect is near 0 it is on the
        safe side. Those of two versions on the same rows subtract.
        """
        own, leverage = self.at(vectors)
        counts = np.ones((len(scores), 1)) if weights is None else weights[:, None]

        def of_others(projected: Array, values: Array) -> Array:
            smoothed = own @ (self.weights[:, None] * projected).astype(own.dtype)
            return np.asarray(smoothed - leverage[:, None] * values, dtype=np.float64)

        predicted = _lift(leverage)[:, None] * of_others(known.added["regression"], scores)
        lifted = of_others(known.added["lifted"], _lift(leverage, weights)[:, None] * scores)
        self.add_variances(sums, vectors, (scores - predicted) ** 2, weights)
        slope = counts * predicted + lifted
        sums.add("signal", np.sum(counts * scores * predicted, axis=0))
        sums.add("products", np.sum((scores - predicted) ** 2 * slope**2, axis=0))
        return np.asarray((scores - predicted) * slope)

    def add_variances(self, sums: BlockSums, vectors: Array, variance: Array, weights: Array | None = None) -> None:
        """What v (rows, 4) of a tile adds to the quadratic part of the estimate's variance."""
        own, leverage = self.at(vectors)
        lift = _lift(leverage, weights)
        diagonal = (leverage * lift)[:, None] * variance
        sums.add("rows", float(len(variance)))
        sums.add("variance", np.sum(variance if weights is None else weights[:, None] ** 2 * variance, axis=0))
        sums.add("diagonal", np.sum(diagonal, axis=0))
        sums.add("diagonal squares", np.sum(diagonal**2, axis=0))
        for power in range(3):
            for j in range(variance.shape[1]):
                sums.add(f"inner {power} {j}", weighted_squares(own, variance[:, j] * lift**power))

    def effects(self, sums: BlockSums, level: float = 0.95) -> Mapping[str, Effect]:
        """theta of every order, from all tiles."""
        added, rows, found = sums.added, float(sums.added["rows"]), {}
        for order, name in enumerate(ORDERS):
            signal, products, variance, diagonal = (
                float(added[part][order]) for part in ("signal", "products", "variance", "diagonal")
            )
            quadratic = max(self.quadratic(order, sums), _SMALLEST)
            linear = products - 2.0 * quadratic  # products of scores hold the quadratic part twice over
            least = variance / rows
            slope = max(linear / (4.0 * signal), least) if signal > 0 else least
            low, high = _interval(signal, max(diagonal, _SMALLEST), quadratic, slope, level)
            found[name] = Effect(signal / rows, low / rows, high / rows, level)
        return found

    def by_blocks(
        self, effects: Mapping[str, Effect], influences: Array, sums: BlockSums, in_blocks: Array, n: int
    ) -> Mapping[str, Effect]:
        """The same estimates with intervals of n rows that depend on each other within blocks.

        What pairs of rows in one block add to an estimate may be the whole of it, so the interval is that of both, the
        estimate with and without them. An estimate near 0 by luck has influences near 0, and does not know how far it
        is off. But with e the noise of H^{1/2} m, sqrt(theta) exceeds the root of the estimate by no more than that of
        e in the direction of m, whose variance is at most the largest in any direction of H^{1/2} phi / sqrt(n).

        Args:
            effects: as of independent rows.
            influences: what each block contributes to the estimates beyond their means, (B, 4).
            sums: of the first pass.
            in_blocks: U'phi of each block, in the directions of the regression, (B, k, 4).
            n: rows.
        """
        products = np.einsum("k,bkj,bkj->j", self.weights, in_blocks, sums.added["lifted in blocks"], optimize=True)
        within, count = (products - sums.added["on the diagonal"]) / n, len(in_blocks)
        scaled = np.sqrt(self.weights)[:, None] * (in_blocks - np.mean(in_blocks, axis=0))
        covariances = np.einsum("bkj,blj->jkl", scaled, scaled, optimize=True) * (count / (count - 1.0))
        noise, found = np.linalg.eigvalsh(covariances)[:, -1] / n, {}
        for j, (name, effect) in enumerate(effects.items()):
            ends = SumOfBlocks.of(influences[:, j]).interval(effect.estimate, effect.level)
            low, high = min(ends[0], ends[0] - float(within[j])), max(ends[1], ends[1] - float(within[j]))
            reach = t_quantile(len(influences), effect.level) * float(np.sqrt(noise[j]))
            high = max(high, (float(np.sqrt(max(effect.estimate, 0.0))) + reach) ** 2)
            found[name] = Effect(effect.estimate, max(low, 0.0), high, effect.level)
        return found

    def quadratic(self, order: int, sums: BlockSums) -> float:
        """2 sum A_ik^2 v_i v_k of one score, with A_ik = H_ik (lift_i + lift_k) / 2 off the diagonal."""
        plain, once, twice = (self.weights[:, None] * sums.added[f"inner {power} {order}"] for power in range(3))
        squares = float(np.sum(plain * twice.T) + np.sum(once * once.T))
        return squares - 2.0 * float(sums.added["diagonal squares"][order])


def _lift(leverage: Array, weights: Array | None = None) -> Array:
    """w / (1 - H_ii), by which the rows of H without its diagonal count."""
    return np.asarray((1.0 if weights is None else weights) / (1.0 - leverage))


def _interval(signal: float, diagonal: float, quadratic: float, slope: float, level: float) -> tuple[float, float]:
    """The a >= 0 for which signal is no rarer than the tails of a gamma distribution of variance quadratic + 4 slope a.

    ``diagonal`` is what the quadratic form would be on average with its diagonal, at a = 0: where the gamma
    distribution starts. Where few rows have nearly all the weight the form may lie below that, and the distribution
    starts lower.
    """

    from scipy.optimize import brentq  # half a second that a refusal need not wait for

    start = diagonal if signal > -diagonal else -2.0 * signal

    def below(a: float) -> float:
        mean, variance = a + start, quadratic + 4.0 * slope * a
        return float(scipy.special.gammainc(mean**2 / variance, (signal + start) * mean / variance))

    def bound(share: float) -> float:
        if below(0.0) <= share:
            return 0.0
        far = max(signal, 0.0) + float(np.sqrt(quadratic)) + slope
        while below(far) > share:
            far *= 2.0
        return float(brentq(lambda a: below(a) - share, 0.0, far))

    tail = 0.5 * (1.0 - level)
    return bound(1.0 - tail), bound(tail)


@dataclass(frozen=True, repr=False)
class ConditionalCalibrationTest:
    """A Monte-Carlo test of "given its input, every target follows its predictive distribution".

    Attributes:
        statistic: max over all hypotheses of the evidence s + log prior.
        p_value: of the whole test; at least 1 / (draws + 1).
        by_order: p-values of bias, spread, skew and tails, each for itself. A fault of one kind is often seen in
            several; which is the largest say the effects.
        by_basis: p-values of the input bases, each for itself: "constant" asks for faults on average alone.
        effects: by order, the share of the score's variance that the inputs explain (see ``effects``).
        means: by order, the mean score: its sign is the direction of what is wrong on average.
        draws: B.
        null: "exact"; "blocks" where rows depend on each other within blocks:
            then p-values hold in the limit of many blocks, and effects have intervals of Student's t by blocks.
        null_statistics: of the draws, (B,).
        blocks: how many blocks of rows are taken as independent; None where all rows are.
    """

    statistic: float
    p_value: float
    by_order: Mapping[str, float]
    by_basis: Mapping[str, float]
    effects: Mapping[str, Effect]
    means: Mapping[str, float]
    draws: int
    null: NullKind
    null_statistics: Array = field(repr=False)
    blocks: int | None = None

    def __repr__(self) -> str:
        by_order = {f"{order}_p_value": p_value for order, p_value in self.by_order.items()}
        said = {}
        if self.effects:  # none of vector targets
            largest, effect = max(self.effects.items(), key=lambda item: item[1].estimate)
            said["largest_effect"] = f"{largest} {effect.estimate:.3g} [{effect.low:.3g}, {effect.high:.3g}]"
        return printed(self, p_value=self.p_value, **by_order, **said, draws=self.draws, null=self.null)

    def to_frame(self) -> pd.DataFrame:
        """A table with a row for each order (bias, spread, skew, tails), which is the index.

        ``mean_score``: the mean score, whose sign is the direction of what is wrong on average. ``p_value``: of the
        order by itself. ``effect``, ``effect_low``, ``effect_high``: the share of the score's variance that the inputs
        explain, with its interval.
        """
        import pandas as pd

        rows = {
            order: {
                "mean_score": self.means[order],
                "p_value": self.by_order[order],
                "effect": effect.estimate,
                "effect_low": effect.low,
                "effect_high": effect.high,
            }
            for order, effect in self.effects.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("order")


def outcome_of_evidence(
    names: Sequence[str],
    observed: Array,
    null: Array,
    *,
    effects: Mapping[str, Effect],
    means: Mapping[str, float],
    blocks: int | None,
    orders: Sequence[str] = ORDERS,
) -> ConditionalCalibrationTest:
    """Returns the outcome from the evidence of the bases ``names``, (bases, orders and all of them, 1), and of B draws.

    ``blocks``: of rows that depend on each other, by whose signs the draws were made; ``orders``: what evidence has
    between bases and draws.
    """

    def p_value(axes: Any) -> float:
        """Of the maximum over the bases and orders at ``axes``."""
        reached = np.max(null[axes], axis=(0, 1)) >= np.max(observed[axes])
        return float((1 + np.count_nonzero(reached)) / (null.shape[2] + 1))

    return ConditionalCalibrationTest(
        statistic=float(np.max(observed)),
        p_value=p_value(np.s_[:]),
        by_order={name: p_value(np.s_[:, j : j + 1]) for j, name in enumerate(orders)},
        by_basis={name: p_value(np.s_[b : b + 1]) for b, name in enumerate(names)},
        effects=effects,
        means=means,
        draws=null.shape[2],
        null="exact" if blocks is None else "blocks",
        null_statistics=np.max(null, axis=(0, 1)),
        blocks=blocks,
    )
