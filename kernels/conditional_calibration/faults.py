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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.special
from scipy.special import ndtr, ndtri, owens_t

from congruence.kernels.arrays import Array, require_matrix, to_numpy
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import ORDERS, mean_scores, pit_scores

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

_MUCH_NEARER = 0.25
"""Of the squared distance to a skew or tails, at which a shift and a factor together are what explains scores."""

_BISECTIONS = 35  # to 1e-10 of the factor
_FINE, _COARSE = 200, 30  # points on each half of a curve
_MIRROR = np.array([-1.0, 1.0, -1.0, 1.0])  # scores of -z

_STEPS, _RULE = np.polynomial.legendre.leggauss(200)
_NORMAL = 8.0 * _STEPS
_WEIGHTS = 8.0 * _RULE * np.exp(-0.5 * _NORMAL**2) / np.sqrt(2.0 * np.pi)
_LEVELS = np.clip(ndtr(_NORMAL), 1e-15, 1.0 - 1e-15)
_TINY = 1e-12


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
    found = []  # of each kind: squared distance, (m,), the point nearest to the scores, (m, 4), and its strength, (m,)
    for tree, strengths in _curves(members):
        distance, at = tree.query(s)
        found.append((np.square(distance), np.asarray(tree.data)[at], strengths[at]))
    misfit = np.stack([squares + extra.get(kind, 0.0) for kind, (squares, _, _) in enumerate(found)])
    shift, factor = rank_shift_and_factor(s[:, [BIAS, SPREAD]], members)
    best = np.argmin(misfit, axis=0)
    # A narrow distribution beside the predictions has the scores of a skewed one, which a shift and a factor explain.
    shaped = np.flatnonzero(np.isin(best, (SKEW, TAILS)))
    shapes = _shapes_of_normals(s[shaped], shift[shaped], factor[shaped], members)
    apart = np.sum((s[shaped][:, [SKEW, TAILS]] - shapes) ** 2, axis=1)
    simple = shaped[apart < _MUCH_NEARER * np.stack([each[0] for each in found])[best[shaped], shaped]]
    best[simple] = np.argmin(misfit[: SPREAD + 1, simple], axis=0)
    explained, strengths = (np.stack([each[part] for each in found])[best, np.arange(len(s))] for part in (1, 2))
    return Faults(s, best, strengths, shift, factor, s - explained)


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


def rank_shift_and_factor(scores: Array, members: int | None) -> tuple[Array, Array]:
    """``shift_and_factor`` of bias and spread scores (m, 2), which may be of ranks; 0 and 1 where these tell none."""
    return shift_and_factor(*_of_distribution(scores, members).T)


def _of_distribution(scores: Array, members: int | None) -> Array:
    """The distribution's bias and spread scores, (m, 2), from those of ranks among draws; 0 where they tell none."""
    if members is None:
        return scores
    kept = np.diag(rank_scores(members))[[BIAS, SPREAD]]
    return np.asarray(np.divide(scores, kept, out=np.zeros_like(scores), where=kept > _TINY))


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


@cache
def _curves(members: int | None) -> Sequence[tuple[cKDTree, Array]]:
    """Points on the curves of each kind of fault, in the order of ``ORDERS``, and its strength at each of them, (k,).

    Of ranks among ``members`` draws.
    """
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
        found.append((cKDTree(points), strengths))
    return found


def _shapes_of_normals(scores: Array, shift: Array, factor: Array, members: int | None) -> Array:
    """The skew and tails scores, (m, 2), to .005, of N(shift, factor^2), whose bias and spread scores (m, 4) have."""
    place = np.abs(shift), np.log(factor)
    skew, tails = (spline.ev(*place) for spline in _normal_shapes())
    found = np.stack([np.sign(shift) * skew, tails], axis=1)
    if members is None:
        return found
    whole = np.hstack([_of_distribution(scores[:, [BIAS, SPREAD]], members), found])
    return np.asarray(whole @ rank_scores(members)[[SKEW, TAILS]].T)


@cache
def _normal_shapes() -> Any:
    from scipy.interpolate import RectBivariateSpline

    shifts, logs = np.linspace(0.0, 6.0, 31), np.log(np.geomspace(*FACTORS, 49))
    z = shifts[:, None, None] + np.exp(logs)[:, None] * _NORMAL
    scores = _mean_scores(z.reshape(-1, len(_NORMAL))).reshape(len(shifts), len(logs), -1)
    return [RectBivariateSpline(shifts, logs, scores[:, :, order]) for order in (SKEW, TAILS)]


def scores_of_normals(shift: Array, factor: Array, members: int | None = None) -> Array:
    """Returns E phi_j of u = Phi(z) with z ~ N(shift, factor^2), (k, 4), of (k,) each; of ranks among ``members``."""
    found = _mean_scores(shift[:, None] + factor[:, None] * _NORMAL)
    return found if members is None else np.asarray(found @ rank_scores(members).T)


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
