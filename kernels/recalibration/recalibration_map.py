r"""The leading directions of an input kernel as features F(x), so that smooth functions of x are F(x) beta + constant.

F_k(x) = u_k(x) sqrt(e_k / n lambda) for K = U diag(e) U', so that ridge regression on F with penalty r |beta|^2 is
kernel ridge regression with r times the protocol's n lambda. Directions of which the protocol keeps under 1 % are left
out. The features know the inputs of all rows and the targets of none.

x -> G_x, the map that recalibrates predictions where they are: moved, stretched and bent as the input says.

Its parts are fitted to normal scores, a ridge regression each, of a form that is given; as plain arrays it is kept in
a file without pickle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
from scipy.special import ndtr, ndtri

from congruence.kernels import kernel_functions
from congruence.kernels.arrays import Array, RowFields, row_slices, to_numpy
from congruence.kernels.conditional_calibration.faults import rank_shift_and_factor
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.recalibrated import recalibrated
from congruence.kernels.distributions.score_map import NormalScoreMap
from congruence.kernels.engine.spectrum import Spectrum
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel, Linear
from congruence.kernels.pit import mean_scores

_BLOCK = 4096


@dataclass(frozen=True)
class InputFeatures:
    """F at the n reference rows, and what it takes to have it at any other input.

    Attributes:
        values: F(x_i), (n, k).
        landmarks: reference inputs (m, d) whose kernel values span the features.
        kernel: of the inputs.
        basis: (m, k): F(x) = k(x, landmarks) basis.
    """

    values: Array = field(repr=False)
    landmarks: Array = field(repr=False)
    kernel: Kernel
    basis: Array = field(repr=False)

    def __len__(self) -> int:
        return len(self.values)


def input_features(spectrum: Spectrum, x: Array) -> InputFeatures:
    """Returns the features of the rows x (n, d) that a spectrum is of."""
    keep = spectrum.kept
    roots = np.sqrt(spectrum.eigenvalues[:keep] / spectrum.shift)
    landmarks = spectrum.landmarks if spectrum.center is None else spectrum.landmarks + spectrum.center
    return InputFeatures(
        np.asarray(spectrum.vectors(x, keep), dtype=np.float64) * roots,
        landmarks.astype(np.float64),
        spectrum.kernel,
        np.asarray(spectrum.basis[:, :keep], dtype=np.float64) * roots,
    )


def linear_in_kernel(kernel: Kernel, landmarks: Array, weights: Array, x: Any) -> Array:
    """k(x, landmarks) weights, (m, c), for inputs x (m, d), block by block in float64.

    Raises:
        InvalidInputError: another number of features than the landmarks have.
    """
    points = to_numpy(x)
    if points.ndim != 2 or points.shape[1] != landmarks.shape[1]:
        raise InvalidInputError(
            f"x: shape {points.shape}, expected (m, {landmarks.shape[1]}): embed as the reference split was"
        )
    center = kernel.center(landmarks)
    nodes = landmarks if center is None else landmarks - center
    result = np.empty((len(points), weights.shape[1]))
    for rows in row_slices(len(points), _BLOCK):
        block = points[rows].astype(np.float64)
        block = block if center is None else block - center
        result[rows] = np.asarray(kernel(block, nodes)) @ weights
    return result


LEVELS = np.array([0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.94, 0.97, 0.99, 1.0])
"""Of H, the distribution function that bends a distribution: its inner values are what is fitted."""

_LEAST_DENSITY = 0.05
_LARGEST_LOG_FACTOR = np.log(50.0)
_ARRAYS = ("landmarks", "constants", "weights", "levels")
LARGEST_SCORE = 40.0  # a target outside a bounded support has an infinite one
_STEPS = 60
_LEAST_SQUARE = 1e-200  # of targets that all lie where they were predicted
_DRAWS = 8
_LEAST_STEP = 1e-3


@dataclass(frozen=True)
class Form:
    """How a map may vary: what was chosen for each part, None for no change.

    Attributes:
        shift: ridge of b.
        factor: ridge of log c.
        shape: ridge of H and its share.
        temperature: at which probabilities of bins are taken before all else.
        members: of few draws, whose places among each other the map was fitted to.
    """

    shift: float | None = None
    factor: float | None = None
    shape: tuple[float, float] | None = None
    temperature: float | None = None
    members: int | None = None

    @property
    def changes_nothing(self) -> bool:
        """Whether every part stays."""
        return self == Form(members=self.members)

    @property
    def is_a_temperature(self) -> bool:
        """Whether bins at another temperature are all of the correction."""
        return self == Form(temperature=self.temperature, members=self.members)

    def tempered(self, predictive: Distribution) -> Distribution:
        """The predictions at the temperature, which the rest of the map corrects."""
        law = predictive if self.temperature is None else predictive.tempered(self.temperature)
        if law is None:
            raise InvalidInputError("predictive: has no bins, and the correction was fitted to probabilities of bins")
        return law


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
        """Whether the data chose to leave every distribution as it is."""
        return self.form.changes_nothing

    @property
    def depends_on_input(self) -> bool:
        """Whether the map differs from input to input; else every distribution is moved, stretched and bent alike."""
        return bool(np.any(self.weights != 0.0))

    def everywhere(self, rows: int) -> NormalScoreMap:
        """The map of ``rows`` inputs that need not be known, where it does not depend on them.

        Raises:
            InvalidInputError: it does.
        """
        if self.depends_on_input:
            raise InvalidInputError("x: the map differs from input to input; give the embedded inputs to `at`")
        return normal_score_map(np.broadcast_to(self.constants, (rows, len(self.constants))), self.form)

    def at(self, x: Any) -> NormalScoreMap:
        """The map of each input x (m, d), embedded as the reference split was."""
        return normal_score_map(
            self.constants + linear_in_kernel(self.kernel, self.landmarks, self.weights, x), self.form
        )

    def __call__(self, x: Any, predictive: Distribution) -> Distribution:
        """The predictions at inputs x, recalibrated."""
        return recalibrated(self.form.tempered(predictive), self.at(x))


def normal_score_map(values: Array, form: Form) -> NormalScoreMap:
    """The map from rows of b, log c and the inner levels' corrections, (m, L)."""
    shift = values[:, 0]
    factor = np.exp(np.clip(values[:, 1], -_LARGEST_LOG_FACTOR, _LARGEST_LOG_FACTOR))
    if form.members is not None:
        shift, factor = _behind_draws(shift, factor, form.members)
    shares = np.tile(LEVELS, (len(values), 1))
    if form.shape is not None:
        shares = _rising(values[:, 2:])
    return NormalScoreMap(shift, factor, LEVELS, shares)


def _behind_draws(shift: Array, factor: Array, members: int) -> tuple[Array, Array]:
    """Shift and factor of the distribution behind draws from those of their places, which their number blurs.

    Targets of N(b, c^2) lie among ``members`` standard normal draws as the mean bias and spread scores of these say.
    """
    ranks, found = np.arange(members + 1), np.empty((2, len(shift)))
    ends, scores = ndtri(ranks / (members + 1.0)), mean_scores(ranks / (members + 1.0), (ranks + 1.0) / (members + 1.0))
    for rows in row_slices(len(shift), _BLOCK):
        below = ndtr((ends - shift[rows, None]) / factor[rows, None])
        found[:, rows] = rank_shift_and_factor(np.diff(below, append=1.0) @ scores[:, :2], members)
    return found[0], found[1]


def _rising(corrections: Array) -> Array:
    """Distribution functions from corrections of the inner levels, (m, L): rearranged, and nowhere flat."""
    inner = np.sort(np.clip(LEVELS[1:-1] + corrections, 0.0, 1.0), axis=1)
    ends = np.zeros((len(inner), 1))
    mass = np.diff(np.concatenate([ends, inner, ends + 1.0], axis=1), axis=1)
    mass = np.maximum(mass, _LEAST_DENSITY * np.diff(LEVELS))
    shares = np.concatenate([ends, np.cumsum(mass, axis=1)], axis=1) / mass.sum(axis=1, keepdims=True)
    shares[:, -1] = 1.0
    return np.asarray(shares)


def map_arrays(fitted: RecalibrationMap) -> dict[str, Array]:
    """The arrays of a map, with its form and kernel as the bytes of a JSON text under ``described``."""
    described = json.dumps({"form": asdict(fitted.form), "kernel": fitted.kernel.describe()}).encode()
    arrays = {name: np.asarray(getattr(fitted, name), dtype=np.float64) for name in _ARRAYS}
    return arrays | {"described": np.frombuffer(described, dtype=np.uint8)}


def map_of(arrays: Mapping[str, Array]) -> RecalibrationMap:
    """The map that ``map_arrays`` wrote.

    Raises:
        InvalidInputError: something else.
    """
    try:
        described = json.loads(np.asarray(arrays["described"]).tobytes())
        form, kernel = described["form"], kernel_of(described["kernel"])
        shape = None if form["shape"] is None else (form["shape"][0], form["shape"][1])
        chosen = Form(form["shift"], form["factor"], shape, form.get("temperature"), form.get("members"))
        return RecalibrationMap(chosen, kernel, *(np.asarray(arrays[name]) for name in _ARRAYS))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInputError(f"arrays: are no recalibration map ({error}); fit and log it again") from error


def kernel_of(described: Mapping[str, Any]) -> Kernel:
    """The kernel that ``Kernel.describe`` described.

    Raises:
        KeyError, TypeError, AttributeError: no kernel of this package.
    """
    kind: Any = getattr(kernel_functions, described["kind"])
    if "parts" in described:
        return kind(tuple(kernel_of(part) for part in described["parts"]))  # type: ignore[no-any-return]
    names = ("gamma", "coef0") if kind is Linear else tuple(item.name for item in fields(kind))
    return kind(**{name: described[name] for name in names})  # type: ignore[no-any-return]


class Design:
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
            self._factors[ridge] = scipy.linalg.cho_factor(self._gram + ridge * np.eye(len(self._gram)))
        return np.asarray(scipy.linalg.cho_solve(self._factors[ridge], rhs, check_finite=False))

    def regress(self, values: Array, ridge: float) -> tuple[Array, Array]:
        """Constants (c,) and slopes (k, c) for values (n, c); an infinite ridge leaves the constants."""
        mean = values.mean(axis=0)
        if np.isinf(ridge):
            return mean, np.zeros((self.features.shape[1], values.shape[1]))
        slopes = self.solve(self.features.T @ (values - mean), ridge)
        return mean - self.center @ slopes, slopes


@dataclass(frozen=True)
class NormalScores(RowFields):
    """Normal scores of n targets: between ``low`` and ``high``, at a random share of that interval's probability."""

    low: Array
    high: Array
    share: Array

    @property
    def are_points(self) -> bool:
        """Whether no target lies in a jump."""
        return bool(np.all(self.low == self.high))

    def drawn(self, shift: Array, factor: Array) -> Array:
        """One score of each interval from N(shift, factor^2) given that it falls there."""
        low, high = (self.low - shift) / factor, (self.high - shift) / factor
        # From the side on which the probabilities are small.
        with np.errstate(invalid="ignore"):  # an interval without ends
            side = np.where(low + high > 0.0, -1.0, 1.0)
        ends = ndtr(np.where(side > 0.0, low, -high)), ndtr(np.where(side > 0.0, high, -low))
        share = np.where(side > 0.0, self.share, 1.0 - self.share)
        with np.errstate(invalid="ignore"):
            inside = side * ndtri(ends[0] + share * (ends[1] - ends[0]))
            inside = np.clip(inside, low, high)
        return np.asarray(np.clip(shift + factor * inside, -LARGEST_SCORE, LARGEST_SCORE))

    def within_reach(self, spreads: float) -> NormalScores:
        """The same with ends at most so many ``spreads``, by quartiles, from the median, where a score hardly lies.

        A target that is next to impossible has a score of 40, and a few of them would move the map of all rows. Where
        spreads are wrong by other factors in other rows, scores that are not a few lie far out: then half as far again
        as all but 2 % of them do.
        """
        drawn = self.drawn(np.zeros(len(self)), np.ones(len(self)))
        low, middle, high = np.quantile(drawn, [0.25, 0.5, 0.75])
        if high == low:
            return self
        most = 1.5 * np.quantile(np.abs(drawn - middle), 0.98, method="lower")
        reach = max(spreads * (high - low) / (2.0 * ndtri(0.75)), float(most))
        below, above = (np.clip(end, middle - reach, middle + reach) for end in (self.low, self.high))
        return NormalScores(below, above, self.share)


@dataclass(frozen=True)
class Fitted:
    """b, log c and H - identity at the inner levels as linear functions of the features: L columns in all.

    Attributes:
        constants: (L,).
        slopes: (k, L).
        left: what b and c leave of the scores that were fitted, (n,).
    """

    constants: Array
    slopes: Array
    left: Array

    def at(self, features: Array) -> Array:
        """The values of some rows, (n, L)."""
        return np.asarray(self.constants + features @ self.slopes)


def fit_parts(design: Design, scores: NormalScores, form: Form) -> Fitted:
    """b, then log c, then H, each given those before it; what ``form`` leaves out stays as it is."""
    return fit_shape(design, fit_moves(design, scores, form), form)


def fit_moves(design: Design, scores: NormalScores, form: Form) -> Fitted:
    """b, then log c given b: of a form its shift and factor alone."""
    constants, slopes = np.zeros(len(LEVELS)), np.zeros((design.features.shape[1], len(LEVELS)))
    shift, factor = np.zeros(len(scores)), np.ones(len(scores))
    z = scores.drawn(shift, factor)
    moves = form.shift is not None or form.factor is not None
    # Of a jump only its ends are known: scores are drawn again from the fitted distribution in it (stochastic EM).
    for _ in range(1 if scores.are_points or not moves else _DRAWS):
        if form.shift is not None:
            constants[:1], slopes[:, :1] = design.regress(z[:, None], form.shift)
            shift = constants[0] + design.features @ slopes[:, 0]
        if form.factor is not None:
            constants[1], slopes[:, 1] = _log_spread(design, z - shift, form.factor, slopes[:, 1])
            factor = np.exp(constants[1] + design.features @ slopes[:, 1])
        z = scores.drawn(shift, factor)
    return Fitted(constants, slopes, (z - shift) / factor)


def fit_shape(design: Design, moves: Fitted, form: Form) -> Fitted:
    """H given b and log c: of a form its shape alone."""
    if form.shape is None:
        return moves
    ridge, share = form.shape
    below = ndtr(moves.left)[:, None] <= LEVELS[1:-1]
    constant, slope = design.regress(below - LEVELS[1:-1], ridge)
    constants, slopes = moves.constants.copy(), moves.slopes.copy()
    constants[2:], slopes[:, 2:] = share * constant, share * slope
    return replace(moves, constants=constants, slopes=slopes)


def _log_spread(design: Design, residuals: Array, ridge: float, start: Array) -> tuple[float, Array]:
    """log c with least sum (log c + r^2 / (2 c^2)) + ridge |slopes|^2: constant and slopes.

    Fisher's scoring: the information of log c is 2 in every row, so one factor serves all steps.
    """
    squares = np.maximum(residuals**2, _LEAST_SQUARE)
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
