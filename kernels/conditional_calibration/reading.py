r"""From mean PIT scores to the one fault that explains them best, and to a shift and a spread factor.

Mean scores s = (E phi_1, ..., E phi_4) are a point in four dimensions, 0 if the predictions are true. Each kind of
fault is a curve from there. With z = Phi^-1(u) and N standard normal,

- bias: z = b + N; targets lie b predicted spreads above the prediction;
- spread: z = c N; the targets' spread is c times the predicted one;
- skew: z a Gamma distribution standardised to mean 0 and variance 1, or to the mean and spread that leave phi_1 and
  phi_2 at 0;
- tails: z Student's t (heavier) or the sinh-arcsinh distribution (lighter; Jones and Pewsey 2009), standardised in
  either way.

The estimates' errors are alike in every coordinate and uncorrelated, so the nearest curve is the likeliest fault.

Shift and factor together follow from the first two scores in closed form (D. B. Owen 1956, equation 3.4): if
z = b + c N then E phi_1 = sqrt(3) (2 Phi(h) - 1) and E phi_2 = sqrt(5) (1 - 12 T(h, a)) with h = b / sqrt(1 + c^2),
a = 1 / sqrt(1 + 2 c^2) and Owen's function T.

A group of labelled rows is read by its mean scores, whose spread under a true model is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.special
from scipy.special import ndtr, ndtri, owens_t

from congruence.kernels.arrays import Array, require_matrix, to_numpy
from congruence.kernels.conditional_calibration.counts import JumpScores, by_group
from congruence.kernels.dependence.blocks import FEWEST_BLOCKS, DependentBlocks, t_quantile, two_sided_p_value
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import ORDERS, mean_scores, pit_scores, require_pit

if TYPE_CHECKING:
    from scipy.spatial import cKDTree


BIAS, SPREAD, SKEW, TAILS = range(len(ORDERS))
FACTORS = (0.05, 20.0)
"""The spread factors that four bounded scores can tell; beyond them an estimate stays at the end."""

GROSS_BIAS = 0.9
"""A bias score from which a fault is no skew and no tails, whatever the nearest curve: a shift of one spread has it."""

SHAPE_DOUBT = 6.0
"""Squared errors by which a skew or tails must fit better than a shift or a spread, which are commoner."""

MIXED_TAILS = 2.0
"""An average over places that are too narrow and too wide *has* heavy tails: a tails score of up to this many times the
variance of the spread score over them is no fault of the tails."""

_BISECTIONS = 35  # to 1e-10 of the factor
_FINE, _COARSE = 200, 30  # points on each half of a curve
_MIRROR = np.array([-1.0, 1.0, -1.0, 1.0])  # scores of -z

_STEPS, _RULE = np.polynomial.legendre.leggauss(200)
_NORMAL = 8.0 * _STEPS
_WEIGHTS = 8.0 * _RULE * np.exp(-0.5 * _NORMAL**2) / np.sqrt(2.0 * np.pi)
_LEVELS = np.clip(ndtr(_NORMAL), 1e-15, 1.0 - 1e-15)
_TINY = 1e-12
_TURNS = 32
_LARGEST_BIAS = np.sqrt(3.0)


@dataclass(frozen=True)
class Faults:
    """What is wrong at each of m places.

    Attributes:
        scores: mean PIT scores (m, 4), in the order of ``ORDERS``.
        dominant: number in ``ORDERS`` of the single fault that explains the scores best, (m,).
        strength: length of that explanation in score units with the fault's sign, (m,); its square is the share of the
            scores' variance that it makes. Positive: targets above the predictions, spread too small, skewed to the
            right, tails heavier than predicted.
        shift: how far the targets lie above the predictions, in predicted spreads, (m,).
        factor: the targets' spread over the predicted one, (m,): above 1 the predictions are too narrow.
        unexplained: the scores less that explanation, (m, 4).
    """

    scores: Array = field(repr=False)
    dominant: Array
    strength: Array
    shift: Array
    factor: Array
    unexplained: Array = field(repr=False)

    def __len__(self) -> int:
        return len(self.dominant)

    @property
    def names(self) -> list[str]:
        """The dominant fault of each place in words of ``ORDERS``."""
        return [ORDERS[kind] for kind in self.dominant]


def faults(scores: Any, errors: Any = 0.0, *, mixing: float = 0.0, members: int | None = None) -> Faults:
    """The dominant fault, shift and factor at places with mean PIT scores (m, 4).

    Args:
        scores: estimated mean scores.
        errors: the standard error of each place's scores, (m,) or one for all.
        mixing: variance of the spread score over the places from which each place's scores are averaged.
        members: where the scores are those of ranks among so many draws of a distribution: faults are the
            distribution's, see ``rank_scores``.

    Raises:
        InvalidInputError: not four finite scores per place.
    """
    s = to_numpy(require_matrix(scores, "scores")).astype(np.float64)
    if s.shape[1] != len(ORDERS):
        raise InvalidInputError(f"scores: shape {s.shape}, expected {len(ORDERS)} columns, {', '.join(ORDERS)}")
    doubt = SHAPE_DOUBT * np.broadcast_to(np.asarray(errors, dtype=np.float64), (len(s),)) ** 2
    kept = 1.0 if members is None else float(rank_scores(members)[BIAS, BIAS])
    doubt = np.where(np.abs(s[:, BIAS]) >= GROSS_BIAS * kept, np.inf, doubt)
    extra = {SKEW: doubt, TAILS: doubt + (MIXED_TAILS * mixing) ** 2}
    curves = _curves(members)
    found = [curve.nearest(s) for curve in curves]
    misfit = [squares + extra.get(curve.kind, 0.0) for curve, (squares, _, _) in zip(curves, found, strict=True)]
    best, rows = np.argmin(misfit, axis=0), np.arange(len(s))
    explained, strengths = (np.stack([each[part] for each in found])[best, rows] for part in (1, 2))
    shift, factor = _shift_and_factor(s[:, [BIAS, SPREAD]], members)
    kinds = np.array([curve.kind for curve in curves])
    return Faults(s, kinds[best], strengths, shift, factor, s - explained)


@cache
def rank_scores(members: int) -> Array:
    r"""A (4, 4), by which scores of a rank among m draws follow from the distribution's: E[phi(rank) | u] = A phi(u).

    y among m draws of F has r of them below it with the probability that a binomial distribution of m and u = F(y)
    gives r, and the mean of the scores over [r, r + 1] / (m + 1) is a polynomial of u of their own degree. So A is
    triangular: the scores of five members keep .83 of a bias, .56 of a spread and .09 of tails, and those of three none
    of tails.
    """
    nodes, weights = scipy.special.roots_sh_legendre(len(ORDERS) + 1)
    ranks = np.arange(members + 1)
    held = scipy.special.comb(members, ranks) * nodes[:, None] ** ranks * (1.0 - nodes[:, None]) ** (members - ranks)
    of_ranks = held @ mean_scores(ranks / (members + 1.0), (ranks + 1.0) / (members + 1.0))
    return np.asarray(of_ranks.T @ (weights[:, None] * pit_scores(nodes)))


def _shift_and_factor(scores: Array, members: int | None) -> tuple[Array, Array]:
    """``shift_and_factor`` of bias and spread scores (m, 2), which may be of ranks; 0 and 1 where these tell none."""
    if members is None:
        return shift_and_factor(scores[:, 0], scores[:, 1])
    kept = np.diag(rank_scores(members))[[BIAS, SPREAD]]
    return shift_and_factor(*np.divide(scores, kept, out=np.zeros_like(scores), where=kept > _TINY).T)


def shift_and_factor(bias: Any, spread: Any) -> tuple[Array, Array]:
    """(b, c), (m,) each, with E phi_1 and E phi_2 as given where z ~ N(b, c^2); see the module.

    Scores that no normal distribution has (a spread score below what the bias alone leaves possible) get the factor
    nearest to them among ``FACTORS``.
    """
    bias, spread = np.broadcast_arrays(np.asarray(bias, dtype=np.float64), np.asarray(spread, dtype=np.float64))
    level = np.clip((1.0 + bias / np.sqrt(3.0)) / 2.0, 1e-12, 1.0 - 1e-12)
    h = ndtri(level)
    wanted = (1.0 - spread / np.sqrt(5.0)) / 12.0
    low, high = (np.full(h.shape, 1.0 / np.sqrt(1.0 + 2.0 * c * c)) for c in FACTORS[::-1])
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        below = owens_t(h, middle) < wanted
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    factor = np.sqrt((1.0 / ((low + high) / 2.0) ** 2 - 1.0) / 2.0)
    return h * np.sqrt(1.0 + factor**2), factor


@dataclass(frozen=True)
class _Curve:
    """The curves of one kind of fault, as points (k, 4) with the strength of the fault at each, (k,)."""

    kind: int
    points: Array
    strengths: Array
    tree: cKDTree

    def nearest(self, scores: Array) -> tuple[Array, Array, Array]:
        """Of scores (m, 4): squared distance, (m,), the point nearest to them, (m, 4), and its strength, (m,)."""
        distance, at = self.tree.query(scores)
        return np.square(distance), np.asarray(self.points[at]), np.asarray(self.strengths[at])


@cache
def _curves(members: int | None) -> list[_Curve]:
    """One for each kind of fault, in the order of ``ORDERS``; of ranks among ``members`` draws."""
    from scipy.spatial import cKDTree  # a third of a second that a refusal need not wait for

    fine = np.linspace(0.0, 1.0, _FINE + 1)[1:, None] ** 1.5
    coarse = np.linspace(0.0, 1.0, _COARSE + 1)[1:, None]
    skewed = np.asarray(scipy.special.gammaincinv(1.0 / (1.5 * coarse) ** 2, _LEVELS))
    heavy = np.asarray(scipy.special.stdtrit(1.0 / (0.48 * coarse), _LEVELS))
    light = np.sinh(np.arcsinh(_NORMAL) / (1.0 + 4.0 * coarse))
    curves: list[tuple[Array, int, float]] = []
    for sign in (-1.0, 1.0):
        curves.append((_mean_scores(_NORMAL + sign * 4.0 * fine), BIAS, sign))
        curves.append((_mean_scores(_NORMAL * FACTORS[1] ** (sign * fine)), SPREAD, sign))
    for form in (_standardised, _neutral):
        upwards = _mean_scores(form(skewed))
        curves.append((upwards, SKEW, 1.0))
        curves.append((upwards * _MIRROR, SKEW, -1.0))
        curves.append((_mean_scores(form(heavy)), TAILS, 1.0))
        curves.append((_mean_scores(form(light)), TAILS, -1.0))
    found = []
    for kind in range(len(ORDERS)):
        mine = [(points, sign * np.linalg.norm(points, axis=1)) for points, of, sign in curves if of == kind]
        points, strengths = (np.concatenate(part) for part in zip(*mine, strict=True))
        points = points if members is None else points @ rank_scores(members).T
        found.append(_Curve(kind, points, strengths, cKDTree(points)))
    return found


def _mean_scores(z: Array) -> Array:
    """E phi_j of u = Phi(z), (k, 4), where z (k, nodes) is given at the nodes ``_NORMAL`` of N."""
    return np.asarray(_WEIGHTS @ pit_scores(ndtr(z).ravel()).reshape(*z.shape, len(ORDERS)))


def _standardised(z: Array) -> Array:
    centred = z - (z @ _WEIGHTS)[:, None]
    return np.asarray(centred / np.sqrt(centred**2 @ _WEIGHTS)[:, None])


def _neutral(z: Array) -> Array:
    """z (k, nodes), shifted and scaled row by row until its bias and spread scores are 0."""
    for _ in range(25):
        shift, factor = shift_and_factor(*_mean_scores(z).T[:2])
        z = (z - shift[:, None]) / factor[:, None]
    return z


@dataclass(frozen=True)
class Place:
    """A slice, region or target, and what its rows say; ``q_value`` over all places that were read."""

    name: str
    q_value: float
    reading: Any


@dataclass(frozen=True)
class GroupReading:
    """What is wrong in a group of labelled rows: a slice, a region, a whole split.

    Attributes:
        rows: how many they are.
        share: of the split.
        p_value: of the group over all four orders.
        order_p_values: of each order, (4,).
        score_errors: standard errors of the mean scores as they are, true model or not, (4,).
        dominant: the name of the dominant fault.
        strength, shift, factor: see ``Faults``.
        unexplained: the mean scores less what the dominant fault explains, and of tails less what places of various
            spreads make together, (4,).
        shift_interval, factor_interval: 95 %.
    """

    rows: int
    share: float
    p_value: float
    order_p_values: Array
    score_errors: Array
    dominant: str
    strength: float
    shift: float
    factor: float
    unexplained: Array
    shift_interval: tuple[float, float]
    factor_interval: tuple[float, float]

    def second(self) -> str | None:
        """Another fault that the dominant one leaves unexplained by more than 3.3 standard errors, if any."""
        left = np.abs(self.unexplained) / self.score_errors
        left[ORDERS.index(self.dominant)] = 0.0
        return ORDERS[int(np.argmax(left))] if left.max() > 3.3 else None


def group_reading(
    pit: Any,
    rows: Any | None = None,
    *,
    mixing: float = 0.0,
    blocks: DependentBlocks | None = None,
    members: int | None = None,
) -> GroupReading:
    """Read the scores of some rows by their plain means, whose spread under the truth is known.

    Of rows that depend on each other it is that of sums within blocks; p-values are 1 where the group has fewer than
    ten of them, since so few say nothing.

    Args:
        pit: PIT values of all n reference rows; of counts their ``JumpScores``, which take no random number.
        rows: row numbers or a mask; all by default.
        mixing: variance of the spread score over the places that the group holds, see ``faults``.
        blocks: of all n rows, where they depend on each other.
        members: where the PIT values are those of ranks among so many draws, see ``faults``.

    Raises:
        InvalidInputError: fewer than two rows, or values that are no probabilities.
    """
    values = pit if isinstance(pit, JumpScores) else require_pit(pit)
    some = values if rows is None else values[np.asarray(rows)]
    count = len(some)
    if count < 2:
        raise InvalidInputError(f"rows: a group of {count} rows; a reading needs at least 2, and some 30 to say much")
    scores = some.values if isinstance(some, JumpScores) else pit_scores(some)
    mean, quantile = scores.mean(axis=0), t_quantile(None)
    if blocks is None:
        if_true = np.ones(len(ORDERS))
        if isinstance(some, JumpScores):
            if_true = np.maximum(some.variance.mean(axis=0), _TINY)
        p_values = 2.0 * ndtr(-np.abs(mean) * np.sqrt(count / if_true))
        # Of few rows that happen to agree, the sample spread says nothing: then the truth's.
        squares = scores.T @ scores - count * np.outer(mean, mean)
        covariance = (squares + 4.0 * np.diag(if_true)) / (count + 3.0) / count
    else:
        own = blocks if rows is None else blocks.of_rows(np.asarray(rows))
        covariance = mean_covariance(scores, own)
        known = own.count >= FEWEST_BLOCKS
        ratios = np.abs(mean) / np.sqrt(np.diag(covariance))
        p_values = np.array([two_sided_p_value(ratio, own.count) if known else 1.0 for ratio in ratios])
        quantile = t_quantile(max(own.count, 2))
    # Ranks among few draws tell shapes from spreads less than the scores of a distribution do.
    doubt = 0.0 if members is None else float(np.sqrt(np.mean(np.diag(covariance))))
    fault = faults(mean[None, :], doubt, mixing=mixing, members=members)
    unexplained = fault.unexplained[0]
    unexplained[TAILS] -= np.clip(unexplained[TAILS], 0.0, MIXED_TAILS * mixing)
    return GroupReading(
        count,
        count / len(values),
        float(sidak(np.min(p_values), len(ORDERS))),
        p_values,
        np.sqrt(np.diag(covariance)),
        fault.names[0],
        float(fault.strength[0]),
        float(fault.shift[0]),
        float(fault.factor[0]),
        unexplained,
        *_intervals(fault, covariance[:2, :2], quantile, members),
    )


def mean_covariance(values: Array, blocks: DependentBlocks) -> Array:
    """Of the means of columns (n, c) whose rows depend on each other within blocks, (c, c)."""
    sums = blocks.sums(values - values.mean(axis=0))
    count = blocks.count
    # Of few blocks that happen to agree, as much again as independent rows of a true version would have.
    prior = 4.0 * len(values) / count * np.eye(values.shape[1])
    return np.asarray((sums.T @ sums + prior) * (count / (count + 3.0)) / len(values) ** 2)


def group_readings(
    pit: Any, groups: Mapping[str, Any], blocks: DependentBlocks | None = None, members: int | None = None
) -> tuple[dict[str, GroupReading], dict[str, float]]:
    """``group_reading`` of named groups of rows, and q-values over them.

    Groups of fewer than two rows are left out.
    """
    values = pit if isinstance(pit, JumpScores) else require_pit(pit)
    if isinstance(values, JumpScores):
        values.variance  # noqa: B018 - of all rows once, not for each group that holds them
    return by_group(lambda rows: group_reading(values, rows, blocks=blocks, members=members), groups, 2)


def _intervals(
    fault: Faults, covariance: Array, quantile: float, members: int | None
) -> tuple[tuple[float, float], tuple[float, float]]:
    """95 % intervals of shift and factor: their least and largest values on the ellipse of the scores' errors.

    Of a linear function these are its ends by the delta method. Points that no distribution has, with a bias score
    beyond those of targets that all lie on one side, are left out.
    """
    turns = np.linspace(0.0, 2.0 * np.pi, _TURNS, endpoint=False)
    ellipse = quantile * np.column_stack([np.cos(turns), np.sin(turns)]) @ np.linalg.cholesky(covariance).T
    points = fault.scores[0, [BIAS, SPREAD]] + np.vstack([np.zeros(2), ellipse])
    points[1:] = np.where(np.abs(points[1:, :1]) < _LARGEST_BIAS, points[1:], points[:1])
    ends = [(float(np.min(values)), float(np.max(values))) for values in _shift_and_factor(points, members)]
    return ends[0], ends[1]


def sidak(smallest: Any, count: int) -> Array:
    """1 - (1 - p)^count of p-values, each the smallest of ``count`` uncorrelated ones (Sidak 1967)."""
    return np.asarray(-np.expm1(count * np.log1p(-np.minimum(smallest, 1.0 - 1e-16))))
