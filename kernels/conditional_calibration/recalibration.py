r"""What the predictions would be if they were recalibrated where they are: G_x(F(y)), fitted on labelled rows.

With the normal scores z_i = Phi^-1(F_i(y_i)), normal with mean 0 and variance 1 at every x if the model is the truth,

1. b(x): the mean of z, by kernel ridge regression;
2. c(x) = exp(a smooth function): their spread, by penalised maximum likelihood;
3. H_x: the distribution function of Phi((z - b) / c), smoothed at each level, rearranged and mixed with the identity.

How smooth, and whether at all, the data say: of each part the simplest form within one standard error of the best
held-out log score is taken (Hastie, Tibshirani and Friedman 2009, section 7.10), and no change at all unless the best
is two ahead. Where F jumps at a target (counts, draws, bounds) the score is only known to an interval, and the
likelihood is that interval's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg
from scipy.special import ndtr, ndtri

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.input_features import InputFeatures, linear_in_kernel
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.normal_score_map import NormalScoreMap
from congruence.kernels.distributions.recalibrated import recalibrated, score_intervals
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.functions import Kernel
from congruence.kernels.scores import matched_targets
from congruence.kernels.streams import keyed_uniforms

FOLDS = 5
RIDGES = (np.inf, 100.0, 10.0, 1.0, 0.1)
"""Of b and log c, relative to the protocol's n lambda; an infinite one leaves a constant."""

SHAPES = ((np.inf, 0.5), (np.inf, 1.0), (10.0, 0.5), (10.0, 1.0), (1.0, 1.0))
"""Of H: ridge, and its share in the mixture with the identity."""

LEVELS = np.array([0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.94, 0.97, 0.99, 1.0])
_LEAST_DENSITY = 0.05
_LARGEST_SCORE = 40.0  # a target outside a bounded support has an infinite one
_LARGEST_LOG_FACTOR = np.log(50.0)
_STEPS = 60
_DRAWS = 8


@dataclass(frozen=True)
class Form:
    """How a map may vary: what was chosen for each part, None for no change.

    Attributes:
        shift: ridge of b.
        factor: ridge of log c.
        shape: ridge of H and its share.
    """

    shift: float | None = None
    factor: float | None = None
    shape: tuple[float, float] | None = None


@dataclass(frozen=True)
class RecalibrationMap:
    """x -> G_x, with all that it takes to apply it to new inputs: arrays and a kernel.

    Attributes:
        form: what was chosen.
        kernel: of the inputs.
        landmarks: (m, d).
        constants: of b, log c and each inner level of H, (2 + L - 2,).
        weights: on the kernel values at the landmarks, (m, 2 + L - 2).
        levels: of H, (L,).
    """

    form: Form
    kernel: Kernel
    landmarks: Array = field(repr=False)
    constants: Array = field(repr=False)
    weights: Array = field(repr=False)
    levels: Array = field(default_factory=lambda: LEVELS, repr=False)

    def at(self, x: Any) -> NormalScoreMap:
        """The map of each input x (m, d), embedded as the reference split was."""
        return _score_map(self.constants + linear_in_kernel(self.kernel, self.landmarks, self.weights, x), self.form)

    def __call__(self, x: Any, predictive: Distribution) -> Distribution:
        """The predictions at inputs x, recalibrated."""
        return recalibrated(predictive, self.at(x))


@dataclass(frozen=True)
class Recalibration:
    """A map fitted on all reference rows, and its honest twin on them.

    Attributes:
        map: fitted on all rows: for new ones.
        held_out: the maps of the reference rows, each fitted without the row's fold, n rows.
        folds: the fold of each row, (n,).
        forms: what was chosen without each fold.
    """

    map: RecalibrationMap
    held_out: NormalScoreMap = field(repr=False)
    folds: Array = field(repr=False)
    forms: tuple[Form, ...]


def fit_recalibration(
    features: InputFeatures,
    y: Any,
    predictive: Distribution,
    *,
    folds: int = FOLDS,
    seed: int = 0,
    keys: Any | None = None,
) -> Recalibration:
    """Fit the recalibration of one version on labelled rows, with cross-fitted maps of these rows.

    Args:
        features: of the reference inputs, ``input_features(prepared.spectrum)``.
        y: targets (n,).
        predictive: n distributions of one target.
        folds: K; a row's own map comes from the K - 1 folds without it, and so does the choice of its form.
        seed: of the folds and of the random points in jumps of F.
        keys: names of the rows, on which both depend; row numbers by default.

    Raises:
        InvalidInputError: rows that do not match, fewer than 10 a fold, or laws without levels to map.
    """
    targets = matched_targets(predictive, y)
    n = len(targets)
    if len(features) != n:
        raise InvalidInputError(f"y: {n} rows, but the features have {len(features)}; they must match row by row")
    if folds < 2 or n < 10 * folds:
        raise InvalidInputError(f"folds: {folds} folds of {n} rows; give 2 or more folds of at least 10 rows each")
    names = np.arange(n) if keys is None else keys
    jumps = keyed_uniforms(names, seed, "points in jumps")
    scores = _Scores(*score_intervals(predictive, targets), jumps)
    order = np.argsort(keyed_uniforms(names, seed, "recalibration folds"), kind="stable")
    fold = np.empty(n, dtype=np.intp)
    fold[order] = np.arange(n) % folds
    forms = _chosen_forms(features.values, scores, fold, folds)
    held_out = np.empty((n, len(LEVELS)))
    for k in range(folds):
        inside = fold != k
        held_out[~inside] = _fit(features.values[inside], scores[inside], forms[k]).at(features.values[~inside])
    maps = [_score_map(held_out[fold == k], forms[k]) for k in range(folds)]
    place = np.argsort(np.concatenate([np.flatnonzero(fold == k) for k in range(folds)]))
    final = _fit(features.values, scores, forms[-1])
    whole = RecalibrationMap(
        forms[-1], features.kernel, features.landmarks, final.constants, features.basis @ final.slopes
    )
    return Recalibration(whole, NormalScoreMap.concatenate(maps)[place], fold, tuple(forms[:-1]))


@dataclass(frozen=True)
class _Scores:
    """Normal scores of n targets: between ``low`` and ``high``, at a random share of that interval's probability."""

    low: Array
    high: Array
    share: Array

    def __len__(self) -> int:
        return len(self.low)

    def __getitem__(self, rows: Array) -> _Scores:
        return _Scores(self.low[rows], self.high[rows], self.share[rows])

    @property
    def are_points(self) -> bool:
        return bool(np.all(self.low == self.high))

    def drawn(self, shift: Array, factor: Array) -> Array:
        """One score of each interval from N(shift, factor^2) given that it falls there."""
        low, high = (self.low - shift) / factor, (self.high - shift) / factor
        # From the side on which the probabilities are small.
        side = np.where(low + high > 0.0, -1.0, 1.0)
        ends = ndtr(np.where(side > 0.0, low, -high)), ndtr(np.where(side > 0.0, high, -low))
        share = np.where(side > 0.0, self.share, 1.0 - self.share)
        with np.errstate(invalid="ignore"):
            inside = side * ndtri(ends[0] + share * (ends[1] - ends[0]))
            inside = np.clip(inside, low, high)
        return np.asarray(np.clip(shift + factor * inside, -_LARGEST_SCORE, _LARGEST_SCORE))


@dataclass(frozen=True)
class _Fitted:
    """b, log c and H - identity at the inner levels as linear functions of the features: L columns in all."""

    constants: Array
    slopes: Array

    def at(self, features: Array) -> Array:
        return np.asarray(self.constants + features @ self.slopes)


def _fit(features: Array, scores: _Scores, form: Form) -> _Fitted:
    width = len(LEVELS)
    constants, slopes = np.zeros(width), np.zeros((features.shape[1], width))
    shift, factor = np.zeros(len(scores)), np.ones(len(scores))
    z = scores.drawn(shift, factor)
    moves = form.shift is not None or form.factor is not None
    # Of a jump only its ends are known: scores are drawn anew from the fitted law in it (stochastic EM).
    for _ in range(1 if scores.are_points or not moves else _DRAWS):
        if form.shift is not None:
            constants[0], slopes[:, 0], shift = _location(features, z, form.shift)
        if form.factor is not None:
            constants[1], slopes[:, 1], factor = _log_spread(features, z - shift, form.factor)
        z = scores.drawn(shift, factor)
    if form.shape is not None:
        ridge, share = form.shape
        constants[2:], slopes[:, 2:] = _shape(features, ndtr((z - shift) / factor), ridge)
        constants[2:] *= share
        slopes[:, 2:] *= share
    return _Fitted(constants, slopes)


def _score_map(values: Array, form: Form) -> NormalScoreMap:
    """The map from rows of b, log c and the inner levels' corrections, (m, L)."""
    shift = values[:, 0]
    factor = np.exp(np.clip(values[:, 1], -_LARGEST_LOG_FACTOR, _LARGEST_LOG_FACTOR))
    shares = np.tile(LEVELS, (len(values), 1))
    if form.shape is not None:
        shares = _rising(values[:, 2:])
    return NormalScoreMap(shift, factor, LEVELS, shares)


def _rising(corrections: Array) -> Array:
    """Distribution functions from corrections of the inner levels, (m, L): rearranged, and nowhere flat."""
    inner = np.sort(np.clip(LEVELS[1:-1] + corrections, 0.0, 1.0), axis=1)
    ends = np.zeros((len(inner), 1))
    mass = np.diff(np.concatenate([ends, inner, ends + 1.0], axis=1), axis=1)
    mass = np.maximum(mass, _LEAST_DENSITY * np.diff(LEVELS))
    shares = np.concatenate([ends, np.cumsum(mass, axis=1)], axis=1) / mass.sum(axis=1, keepdims=True)
    shares[:, -1] = 1.0
    return np.asarray(shares)


def _location(features: Array, z: Array, ridge: float) -> tuple[float, Array, Array]:
    """Ridge regression of z with a free constant: constant, slopes, and fitted values (n,)."""
    constant, slopes = _ridge(features, z[:, None], ridge)
    return float(constant[0]), slopes[:, 0], constant[0] + features @ slopes[:, 0]


def _ridge(features: Array, values: Array, ridge: float) -> tuple[Array, Array]:
    if np.isinf(ridge):
        return values.mean(axis=0), np.zeros((features.shape[1], values.shape[1]))
    center, mean = features.mean(axis=0), values.mean(axis=0)
    centred = features - center
    gram = centred.T @ centred
    gram[np.diag_indices_from(gram)] += ridge
    slopes = scipy.linalg.solve(gram, centred.T @ (values - mean), assume_a="pos")
    return mean - center @ slopes, slopes


def _log_spread(features: Array, residuals: Array, ridge: float) -> tuple[float, Array, Array]:
    """log c with least sum (log c + r^2 / (2 c^2)) + ridge |slopes|^2: constant, slopes, and c (n,).

    Fisher's scoring: the information of log c is 2 in every row, so one factor serves all steps.
    """
    squares = residuals**2
    constant = 0.5 * float(np.log(np.mean(squares)))
    slopes = np.zeros(features.shape[1])
    if np.isinf(ridge):
        return constant, slopes, np.full(len(residuals), np.exp(constant))
    center = features.mean(axis=0)
    centred = features - center
    gram = centred.T @ centred
    gram[np.diag_indices_from(gram)] += ridge
    factor = scipy.linalg.cho_factor(gram)

    def loss(constant: float, slopes: Array) -> float:
        log_c = constant + centred @ slopes
        return float(np.sum(log_c + 0.5 * squares * np.exp(-2.0 * log_c)) + ridge * slopes @ slopes)

    current, step = loss(constant, slopes), 1.0
    for _ in range(_STEPS):
        excess = squares * np.exp(-2.0 * (constant + centred @ slopes)) - 1.0
        direction = scipy.linalg.cho_solve(factor, 0.5 * (centred.T @ excess) - ridge * slopes)
        rise = 0.5 * float(np.mean(excess))
        while step > 1e-4 and not (trial := loss(constant + step * rise, slopes + step * direction)) <= current:
            step /= 2.0
        if step <= 1e-4:
            break
        constant, slopes = constant + step * rise, slopes + step * direction
        gained, current, step = current - trial, trial, min(1.0, 2.0 * step)
        if gained < 1e-9 * len(residuals):
            break
    constant -= float(center @ slopes)
    return constant, slopes, np.exp(constant + features @ slopes)


def _shape(features: Array, v: Array, ridge: float) -> tuple[Array, Array]:
    return _ridge(features, (v[:, None] <= LEVELS[1:-1]) - LEVELS[1:-1], ridge)


def _chosen_forms(features: Array, scores: _Scores, fold: Array, folds: int) -> list[Form]:
    """The form chosen without each fold, and last the one chosen with all of them."""
    forms = [Form()] * (folds + 1)
    parts: list[tuple[str, Sequence[Any]]] = [
        ("shift", (None, *RIDGES)),
        ("factor", (None, *RIDGES)),
        ("shape", (None, *SHAPES)),
    ]
    for part, options in parts:
        gains = np.empty((len(scores), len(options)))
        for k in range(folds):
            inside, outside = fold != k, fold == k
            for column, option in enumerate(options):
                tried = _with(forms[k], part, option)
                # Moves are judged at the scores' own spread: of a law that is too narrow every move looks good.
                judged = _with(tried, "factor", np.inf) if part == "shift" else tried
                fitted = _fit(features[inside], scores[inside], judged)
                gains[outside, column] = _log_score(fitted.at(features[outside]), scores[outside], judged)
        for k in range(folds + 1):
            forms[k] = _with(forms[k], part, options[_simplest(gains[fold != k])])
    return forms


def _with(form: Form, part: str, option: Any) -> Form:
    return Form(**{**vars(form), part: option})


def _log_score(values: Array, scores: _Scores, form: Form) -> Array:
    """log probability of the intervals, or density of the points, under the map, up to a constant."""
    score_map = _score_map(values, form)
    low, high = scores.low[:, None], scores.high[:, None]
    jumps = (high > low)[:, 0]
    gains = np.empty(len(scores))
    point = np.clip(low[~jumps], -_LARGEST_SCORE, _LARGEST_SCORE)
    gains[~jumps] = score_map[~jumps].log_slope(point)[:, 0]
    gains[jumps] = score_map[jumps].log_between(low[jumps], high[jumps])[:, 0]
    return gains


def _simplest(gains: Array) -> int:
    """No change, the first column, unless the best is two standard errors ahead; else the first within one of it."""
    best = gains[:, int(np.argmax(gains.mean(axis=0)))]
    behind = best[:, None] - gains
    error = behind.std(axis=0, ddof=1) / np.sqrt(len(gains))
    error[0] *= 2.0
    return int(np.argmax(behind.mean(axis=0) <= error))
