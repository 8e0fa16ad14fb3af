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
from dataclasses import dataclass, field, replace
from functools import cached_property
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
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.scores import matched_targets
from congruence.kernels.streams import keyed_uniforms

FOLDS = 5
RIDGES = (np.inf, 100.0, 10.0, 1.0, 0.1)
"""Of b and log c, relative to the protocol's n lambda; an infinite one leaves a constant."""

SHAPES = ((np.inf, 0.5), (np.inf, 1.0), (10.0, 0.5), (10.0, 1.0), (1.0, 1.0))
"""Of H: ridge, and its share in the mixture with the identity."""

LEVELS = np.array([0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.94, 0.97, 0.99, 1.0])
FORM_ROWS = 20_000
"""Rows on which the form is chosen; its parameters are fitted on all of them."""

_LEAST_DENSITY = 0.05
_LARGEST_SCORE = 40.0  # a target outside a bounded support has an infinite one
_LARGEST_LOG_FACTOR = np.log(50.0)
_STEPS = 60
_DRAWS = 8
_LEAST_STEP = 1e-3


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

    @property
    def changes_nothing(self) -> bool:
        """Whether the data chose to leave every law as it is."""
        return self.form == Form()

    @property
    def depends_on_input(self) -> bool:
        """Whether the map differs from input to input; else every law is moved, stretched and bent alike."""
        return bool(np.any(self.weights != 0.0))

    def everywhere(self, rows: int) -> NormalScoreMap:
        """The map of ``rows`` inputs that need not be known, where it does not depend on them.

        Raises:
            InvalidInputError: it does.
        """
        if self.depends_on_input:
            raise InvalidInputError("x: the map differs from input to input; give the embedded inputs to `at`")
        return _score_map(np.broadcast_to(self.constants, (rows, len(self.constants))), self.form)

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
    scores, fold, split = _in_folds(features, y, predictive, folds, seed, keys)
    forms = [_chosen_form(split, without) for without in range(folds)]
    held_out = np.empty((len(scores), len(LEVELS)))
    for k in range(folds):
        inside = fold != k
        fitted = _fit(_Design(features.values[inside]), scores[inside], forms[k])
        held_out[~inside] = fitted.at(features.values[~inside])
    maps = [_score_map(held_out[fold == k], forms[k]) for k in range(folds)]
    place = np.argsort(np.concatenate([np.flatnonzero(fold == k) for k in range(folds)]))
    whole = _whole_map(features, scores, split)
    return Recalibration(whole, NormalScoreMap.concatenate(maps)[place], fold, tuple(forms))


def fit_recalibration_map(
    features: InputFeatures,
    y: Any,
    predictive: Distribution,
    *,
    folds: int = FOLDS,
    seed: int = 0,
    keys: Any | None = None,
) -> RecalibrationMap:
    """The map of ``fit_recalibration`` without its twin on the rows themselves, for a sixth of the work.

    Raises:
        InvalidInputError: see ``fit_recalibration``.
    """
    scores, _, split = _in_folds(features, y, predictive, folds, seed, keys)
    return _whole_map(features, scores, split)


def _in_folds(
    features: InputFeatures, y: Any, predictive: Distribution, folds: int, seed: int, keys: Any | None
) -> tuple[_Scores, Array, _Split]:
    """The scores of all rows, the fold of each, and the rows on which the form is chosen."""
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
    few = order[:FORM_ROWS]
    return scores, fold, _Split(features.values[few], scores[few], fold[few])


def _whole_map(features: InputFeatures, scores: _Scores, split: _Split) -> RecalibrationMap:
    form = _chosen_form(split, None)
    final = _fit(_Design(features.values), scores, form)
    return RecalibrationMap(form, features.kernel, features.landmarks, final.constants, features.basis @ final.slopes)


class _Design:
    """Features (n, k) of some rows, and ridge regressions on them with a free constant."""

    def __init__(self, features: Array) -> None:
        self.features = features
        self.center = features.mean(axis=0)
        self._factors: dict[float, Any] = {}

    @cached_property
    def _gram(self) -> Array:
        return np.asarray(self.features.T @ self.features - len(self.features) * np.outer(self.center, self.center))

    def solve(self, rhs: Array, ridge: float) -> Array:
        """(F_c'F_c + ridge)^-1 rhs for centred features F_c."""
        if ridge not in self._factors:
            gram = self._gram.copy()
            gram[np.diag_indices_from(gram)] += ridge
            self._factors[ridge] = scipy.linalg.cho_factor(gram)
        return np.asarray(scipy.linalg.cho_solve(self._factors[ridge], rhs))

    def regress(self, values: Array, ridge: float) -> tuple[Array, Array]:
        """Constants (c,) and slopes (k, c) for values (n, c); an infinite ridge leaves the constants."""
        mean = values.mean(axis=0)
        if np.isinf(ridge):
            return mean, np.zeros((self.features.shape[1], values.shape[1]))
        slopes = self.solve(self.features.T @ (values - mean), ridge)
        return mean - self.center @ slopes, slopes


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


def _fit(design: _Design, scores: _Scores, form: Form) -> _Fitted:
    width = len(LEVELS)
    constants, slopes = np.zeros(width), np.zeros((design.features.shape[1], width))
    shift, factor = np.zeros(len(scores)), np.ones(len(scores))
    z = scores.drawn(shift, factor)
    moves = form.shift is not None or form.factor is not None
    # Of a jump only its ends are known: scores are drawn anew from the fitted law in it (stochastic EM).
    for _ in range(1 if scores.are_points or not moves else _DRAWS):
        if form.shift is not None:
            constants[:1], slopes[:, :1] = design.regress(z[:, None], form.shift)
            shift = constants[0] + design.features @ slopes[:, 0]
        if form.factor is not None:
            constants[1], slopes[:, 1] = _log_spread(design, z - shift, form.factor, slopes[:, 1])
            factor = np.exp(constants[1] + design.features @ slopes[:, 1])
        z = scores.drawn(shift, factor)
    if form.shape is not None:
        ridge, share = form.shape
        below = ndtr((z - shift) / factor)[:, None] <= LEVELS[1:-1]
        constant, slope = design.regress(below - LEVELS[1:-1], ridge)
        constants[2:], slopes[:, 2:] = share * constant, share * slope
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


def _log_spread(design: _Design, residuals: Array, ridge: float, start: Array) -> tuple[float, Array]:
    """log c with least sum (log c + r^2 / (2 c^2)) + ridge |slopes|^2: constant and slopes.

    Fisher's scoring: the information of log c is 2 in every row, so one factor serves all steps.
    """
    squares = residuals**2
    if np.isinf(ridge):
        return 0.5 * float(np.log(np.mean(squares))), np.zeros_like(start)

    def level(slopes: Array) -> tuple[float, Array, float]:
        """The best constant for slopes, the excess r^2 / c^2 - 1, and the loss."""
        varying = design.features @ slopes
        scaled = squares * np.exp(-2.0 * varying)
        constant = 0.5 * float(np.log(np.mean(scaled)))
        loss = len(squares) * (constant + 0.5) + float(np.sum(varying)) + ridge * float(slopes @ slopes)
        return constant, scaled * np.exp(-2.0 * constant) - 1.0, loss

    slopes, step = start.copy(), 1.0
    constant, excess, loss = level(slopes)
    for _ in range(_STEPS):
        direction = design.solve(0.5 * (design.features.T @ excess) - ridge * slopes, ridge)
        moved = slopes + step * direction
        trial = level(moved)
        while not trial[2] <= loss and step > _LEAST_STEP:
            step /= 2.0
            moved = slopes + step * direction
            trial = level(moved)
        if not trial[2] <= loss:
            break
        gained = loss - trial[2]
        slopes, (constant, excess, loss), step = moved, trial, min(1.0, 2.0 * step)
        if gained < 1e-6 * len(squares) ** 0.5:
            break
    return constant, slopes


@dataclass(frozen=True)
class _Split:
    """Labelled rows in folds, and designs of what is left without some of them."""

    features: Array
    scores: _Scores
    fold: Array
    _designs: dict[frozenset[int], _Design] = field(default_factory=dict)

    def without(self, *folds: int) -> tuple[_Design, _Scores]:
        rows = ~np.isin(self.fold, folds)
        key = frozenset(folds)
        if key not in self._designs:
            self._designs[key] = _Design(self.features[rows])
        return self._designs[key], self.scores[rows]


def _chosen_form(split: _Split, without: int | None) -> Form:
    """The form that cross-validation over all folds but one chooses, part by part."""
    inner = [k for k in np.unique(split.fold).tolist() if k != without]
    left = () if without is None else (without,)
    form = Form()
    parts: list[tuple[str, Sequence[Any]]] = [("shift", RIDGES), ("factor", RIDGES), ("shape", SHAPES)]
    for part, changes in parts:
        options = (None, *changes)
        gains: list[list[Array]] = [[] for _ in options]
        for k in inner:
            design, scores = split.without(k, *left)
            outside = split.fold == k
            for option, gained in zip(options, gains, strict=True):
                tried = replace(form, **{part: option})
                # Moves are judged at the scores' own spread: of a law that is too narrow every move looks good.
                judged = replace(tried, factor=np.inf) if part == "shift" else tried
                values = _fit(design, scores, judged).at(split.features[outside])
                gained.append(_log_score(values, split.scores[outside], judged))
        table = np.column_stack([np.concatenate(gained) for gained in gains])
        form = replace(form, **{part: options[_simplest(table)]})
    return form


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
