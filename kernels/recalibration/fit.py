r"""What the predictions would be if they were recalibrated where they are: G_x(F(y)), fitted on labelled rows.

With the normal scores z_i = Phi^-1(F_i(y_i)), normal with mean 0 and variance 1 at every x if the model is the truth,

1. b(x): the mean of z, by kernel ridge regression;
2. c(x) = exp(a smooth function): their spread, by penalised maximum likelihood;
3. H_x: the distribution function of Phi((z - b) / c), smoothed at each level, rearranged and mixed with the identity.

Probabilities of bins (histograms) are first taken at another temperature, one number for all rows, where held-out rows
gain by it: most of what a network's softmax has wrong, and the law stays a histogram.

How smooth, and whether at all, the data say: of each part the simplest form within one standard error of the best
held-out log score is taken (Hastie, Tibshirani and Friedman 2009, section 7.10), and no change at all unless the best
is two ahead. Where F jumps at a target (counts, draws, bounds) the score is only known to an interval, and the
likelihood is that interval's; so it is where targets are rounded coarsely. Of few draws F is that of their places, and
the shift and the spread that these show are less than those of the distribution behind the draws: the map is turned
into one of that distribution.

What a version's scores would be on held-out rows if it were recalibrated where it is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.prepared import PreparedCalibration, prepare_calibration
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence
from congruence.kernels.dependence.correlation import folds, version_blocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.recalibrated import recalibrated, score_intervals
from congruence.kernels.distributions.recalibrated_draws import few_members
from congruence.kernels.engine.driver import HeldSplit
from congruence.kernels.engine.landmarks import Accuracy
from congruence.kernels.engine.measure import measure_held
from congruence.kernels.engine.plan import Ask
from congruence.kernels.engine.results import difference_of_influences
from congruence.kernels.engine.spectrum import input_spectrum
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.pit import cell_step
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.recalibration.recalibration_map import (
    LARGEST_SCORE,
    Design,
    Fitted,
    Form,
    InputFeatures,
    NormalScores,
    RecalibrationMap,
    fit_moves,
    fit_parts,
    fit_shape,
    input_features,
    normal_score_map,
)
from congruence.kernels.rng import keyed_uniforms
from congruence.kernels.scores import crps, matched_targets, negative_log_likelihood, resolution

FOLDS = 5
FEWEST_ROWS = 10 * FOLDS
RIDGES = (np.inf, 100.0, 10.0, 1.0, 0.1)
"""Of b and log c, relative to the protocol's n lambda; an infinite one leaves a constant."""

SHAPES = ((np.inf, 0.5), (np.inf, 1.0), (10.0, 0.5), (10.0, 1.0), (1.0, 1.0))
"""Of H: ridge, and its share in the mixture with the identity."""

TEMPERATURES = np.geomspace(0.25, 4.0, 41)
"""Of bins' probabilities; the middle one leaves them."""

TEMPERED_ROWS = 5000
"""Rows on which the temperature is fitted, one number: thousands of bins a row take long."""

_REACH = 8.0
"""Spreads of the normal scores from their median, beyond which a target counts as lying there: a wrong label. Nearer,
the tails of right ones would be cut (Student's t of three degrees under a normal: .08 nats at 4, nothing at 8)."""

_MOVED_AGAIN = 3
"""Times that what the places among moved draws leave of shift and spread is added: a distribution that is not normal,
stretched, is no stretched one in normal scores."""

_PURPOSE = "recalibration folds"

FORM_ROWS = 20_000
"""Rows on which the form is chosen; its parameters are fitted on all of them."""


def fit_recalibration(
    features: InputFeatures,
    y: Any,
    predictive: Distribution,
    *,
    seed: int = 0,
    keys: Any | None = None,
    blocks: DependentBlocks | None = None,
) -> RecalibrationMap:
    """Fit the recalibration of one version on labelled rows.

    Args:
        features: of the reference inputs, ``input_features(prepared.spectrum)``.
        y: targets (n,).
        predictive: n distributions of one target.
        seed: of the folds by which the form of the map is chosen, and of the random points in jumps of F.
        keys: names of the rows, on which both depend; row numbers by default.
        blocks: of rows that depend on each other: no fold divides one, and gains are judged by their sums within them.

    Raises:
        InvalidInputError: rows that do not match, fewer than 50, or distributions without levels to map.
    """
    targets = matched_targets(predictive, y)
    n = len(targets)
    if len(features) != n:
        raise InvalidInputError(f"y: {n} rows, but the features have {len(features)}; they must match row by row")
    if n < FEWEST_ROWS:
        raise InvalidInputError(f"y: {n} rows; a recalibration is fitted on at least {FEWEST_ROWS}")
    names = np.arange(n) if keys is None else keys
    found = folds(names, FOLDS, seed, _PURPOSE, blocks)
    order = np.argsort(keyed_uniforms(names, seed, _PURPOSE), kind="stable")
    few = order[~found.beside_cuts[order]][:FORM_ROWS]
    within = None if blocks is None else blocks.of_rows(few).labels
    fewer = few[:TEMPERED_ROWS]
    known = None if within is None else within[:TEMPERED_ROWS]
    first = Form(temperature=_temperature(predictive[fewer], targets[fewer], found.numbers[fewer], known))
    step = cell_step(targets, predictive)
    intervals = score_intervals(first.tempered(predictive), targets, step)
    shares, design = keyed_uniforms(names, seed, "points in jumps"), Design(features.values)
    scores = NormalScores(*intervals, shares).within_reach(_REACH)
    form = _chosen_form(features.values[few], scores[few], found.numbers[few], within, first)
    final = fit_parts(design, scores, form)
    form = replace(form, members=few_members(predictive))
    if form.members and not form.changes_nothing:

        def left_by(moved: Distribution) -> Fitted:
            intervals = score_intervals(moved, targets, step)
            return fit_parts(design, NormalScores(*intervals, shares).within_reach(_REACH), form)

        final = _behind_draws(final, form, predictive, features.values, left_by)
    return RecalibrationMap(form, features.kernel, features.landmarks, final.constants, features.basis @ final.slopes)


def _behind_draws(
    fitted: Fitted, form: Form, draws: Distribution, columns: Array, left_by: Callable[[Distribution], Fitted]
) -> Fitted:
    """Adds to a map what the places among the draws that it has moved leave of shift and spread, some times."""
    for _ in range(_MOVED_AGAIN):
        values = fitted.at(columns)
        left = left_by(recalibrated(draws, normal_score_map(values, replace(form, shape=None))))
        for rest, so_far in ((left.constants, fitted.constants), (left.slopes, fitted.slopes)):
            rest[..., 0] *= np.exp(np.mean(values[:, 1]))  # in spreads of the moved draws
            rest[..., :2] += so_far[..., :2]
        fitted = left
    return fitted


def _temperature(predictive: Distribution, targets: Array, fold: Array, within: Array | None) -> float | None:
    """The temperature of most likelihood; None without bins, and where rows outside of each fold do not tell of it."""
    if predictive.tempered(1.0) is None:
        return None
    laws = (Form(temperature=float(each)).tempered(predictive) for each in TEMPERATURES)
    scores = np.column_stack([law.log_prob(targets) for law in laws])
    # A target in a bin without mass has none at any temperature.
    gains = np.where(np.isfinite(scores), scores, 0.0)
    gains -= gains[:, [len(TEMPERATURES) // 2]]
    gained = np.zeros((len(gains), 2))
    for k in np.unique(fold):
        held = fold == k
        gained[held, 1] = gains[held, int(np.argmax(gains[~held].mean(axis=0)))]
    chosen = float(TEMPERATURES[int(np.argmax(gains.mean(axis=0)))])
    return chosen if _simplest(gained, within) else None


def _chosen_form(features: Array, scores: NormalScores, fold: Array, within: Array | None, first: Form) -> Form:
    """The form that cross-validation over the folds chooses, part by part, beside the temperature of ``first``.

    ``within``: the block of each row (n,), where rows depend on each other.
    """
    outside = {k: fold == k for k in np.unique(fold).tolist()}
    designs = {k: Design(features[~held]) for k, held in outside.items()}
    in_turn = None if within is None else np.concatenate([within[held] for held in outside.values()])
    form = first
    moves: dict[tuple[Any, ...], Fitted] = {}
    parts: list[tuple[str, Sequence[Any]]] = [("shift", RIDGES), ("factor", RIDGES), ("shape", SHAPES)]
    for part, changes in parts:
        options = (None, *changes)
        gains: list[list[Array]] = [[] for _ in options]
        for k, held in outside.items():
            for option, gained in zip(options, gains, strict=True):
                tried = replace(form, **{part: option})
                # Moves are judged at the scores' own spread: where that is predicted too small, every move looks good.
                judged = replace(tried, factor=np.inf) if part == "shift" else tried
                key = (k, judged.shift, judged.factor)
                if key not in moves:  # forms differ in one part at a time, shapes by the dozen in nothing else
                    moves[key] = fit_moves(designs[k], scores[~held], judged)
                values = fit_shape(designs[k], moves[key], judged).at(features[held])
                gained.append(_log_score(values, scores[held], judged))
        table = np.column_stack([np.concatenate(gained) for gained in gains])
        form = replace(form, **{part: options[_simplest(table, in_turn)]})
    return form


def _log_score(values: Array, scores: NormalScores, form: Form) -> Array:
    """log probability of the intervals, or density of the points, under the map, up to a constant."""
    score_map = normal_score_map(values, form)
    low, high = scores.low[:, None], scores.high[:, None]
    density = score_map.log_slope(np.clip(low, -LARGEST_SCORE, LARGEST_SCORE))[:, 0]
    if scores.are_points:
        return np.asarray(density)
    return np.where((high > low)[:, 0], score_map.log_between(low, high)[:, 0], density)


def _simplest(gains: Array, within: Array | None) -> int:
    """No change, the first column, unless the best is two standard errors ahead; else the first within one of it.

    Standard errors by sums within blocks (n,), where rows depend on each other.
    """
    best = gains[:, int(np.argmax(gains.mean(axis=0)))]
    behind = best[:, None] - gains
    if within is None:
        error = behind.std(axis=0, ddof=1) / np.sqrt(len(gains))
    else:
        labels = np.unique(within, return_inverse=True)[1].reshape(-1)
        blocks = DependentBlocks(labels, int(labels.max()) + 1, "")
        error = np.array([blocks.standard_error(column) for column in behind.T])
    error[0] *= 2.0
    return int(np.argmax(behind.mean(axis=0) <= error))


@dataclass(frozen=True)
class Change:
    """A mean over the rows, lower is better, before and after, and the standard error of their paired difference."""

    before: float
    after: float
    standard_error: float


@dataclass(frozen=True)
class RecalibrationRehearsal:
    """What a recalibration that was fitted on some rows changes on others, which it has not seen.

    Attributes:
        changes: of "nll", "crps", "cce" and "mae" on the held-out rows.
        p_values: of calibration given the input on them, before and after.
        rows: how many they are.
        fitted_on: rows of the fit.
        map: what was fitted.
    """

    changes: dict[str, Change]
    p_values: tuple[float, float]
    rows: int
    fitted_on: int
    map: RecalibrationMap = field(repr=False)


@dataclass(frozen=True)
class RehearsalSplit:
    """What a rehearsal needs of the inputs alone, made once for all versions of a split; see ``rehearsal_split``.

    Attributes:
        for_fitting: which rows the fit sees, (n,) booleans.
        dependence: which of the n rows depend on each other.
        features: of those.
        points: inputs of the others, (m, d).
        protocol: kernel and lambda of their system, which has seen nothing of the fit's.
        calibration: bases and null of the test on them.
    """

    for_fitting: Array = field(repr=False)
    dependence: RowDependence | None = field(repr=False)
    features: InputFeatures = field(repr=False)
    points: Array = field(repr=False)
    protocol: EvaluationProtocol = field(repr=False)
    calibration: PreparedCalibration = field(repr=False)
    systems: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def held_out(self) -> RowDependence | None:
        """Which of the rows that the fit does not see depend on each other."""
        return None if self.dependence is None else self.dependence.of_rows(~self.for_fitting)


def rehearsal_split(
    x: Any,
    for_fitting: Any,
    *,
    input_kernel: Kernel,
    regularization: float = 0.1,
    seed: int = 0,
    dependence: RowDependence | None = None,
) -> RehearsalSplit:
    """Systems of the rows for fitting and of the others, each its own, so that nothing of one is seen by the other.

    Args:
        x: inputs (n, d), normalised as the protocol says.
        for_fitting: which rows the fit sees, (n,).
        input_kernel: of the protocol.
        regularization: lambda.
        seed: of landmarks and draws.
        dependence: which of the n rows depend on each other; none on both sides (``dependence.correlation.hold_out``).

    Raises:
        InvalidInputError: fewer than two rows held out.
    """
    points, fitting = np.asarray(x), np.asarray(for_fitting, dtype=bool)
    fit = input_spectrum(points[fitting], input_kernel, regularization)
    held_out = points[~fitting]
    protocol = EvaluationProtocol("rehearsal", False, input_kernel, regularization=regularization)
    calibration = prepare_calibration(held_out, input_kernel=input_kernel, regularization=regularization, seed=seed)
    features = input_features(fit, points[fitting])
    return RehearsalSplit(fitting, dependence, features, held_out, protocol, calibration)


def recalibration_rehearsal(
    split: RehearsalSplit, y: Any, predictive: Distribution, *, seed: int = 0, keys: Any | None = None
) -> RecalibrationRehearsal:
    """Fit on some rows and score on the others.

    Cross-fitting would score every row but flatter what smooths targets over neighbours, CCE and the tests of
    calibration: a row's neighbours were in the fit.

    Args:
        split: of the n rows.
        y: targets (n,).
        predictive: n distributions of one target.
        seed, keys: see ``fit_recalibration``.

    Raises:
        InvalidInputError: see ``fit_recalibration``.
    """
    targets = matched_targets(predictive, y)
    names = np.arange(len(targets)) if keys is None else np.asarray(keys)
    fitting, held_out = np.flatnonzero(split.for_fitting), np.flatnonzero(~split.for_fitting)
    known = None if split.dependence is None else split.dependence.of_rows(fitting)
    own = version_blocks(known, targets[fitting], predictive[fitting])
    found = fit_recalibration(
        split.features, targets[fitting], predictive[fitting], seed=seed, keys=names[fitting], blocks=own
    )
    before, targets = predictive[held_out], targets[held_out]
    after = before if found.changes_nothing else found(split.points, before)
    blocks = version_blocks(split.held_out, targets, before, after)
    changes = _scored(targets, before, after, blocks)
    changes["cce"] = _congruence(split, targets, before, after, seed, blocks)
    models = [before] if after is before else [before, after]
    tests = [
        split.calibration.test_version(targets, predicted, keys=names[held_out], seed=seed, dependence=split.held_out)
        for predicted in models
    ]
    p_values = (tests[0].p_value, tests[-1].p_value)
    return RecalibrationRehearsal(changes, p_values, len(held_out), len(fitting), found)


def _scored(y: Array, before: Distribution, after: Distribution, blocks: DependentBlocks | None) -> dict[str, Change]:
    """The changes of CRPS, of the absolute error of the mean and, where it is finite before and after, of NLL.

    Not that of quantiles or draws: their density is what we draw through them, and those not true may score better.
    """
    changes = {
        "crps": _paired(crps(y, before), crps(y, after), blocks),
        "mae": _paired(np.abs(y - before.mean()), np.abs(y - after.mean()), blocks),
    }
    if before.has_density() and after.has_density() and before.quantile_levels is before.draws is None:
        step = resolution(y)
        scores = [negative_log_likelihood(y, predicted, infinite="keep", step=step) for predicted in (before, after)]
        if all(np.isfinite(score).all() for score in scores):
            changes["nll"] = _paired(scores[0], scores[1], blocks)
    return changes


def _paired(before: Array, after: Array, blocks: DependentBlocks | None) -> Change:
    difference = after - before
    error = float(np.std(difference, ddof=1) / np.sqrt(len(difference)))
    if blocks is not None:
        error = blocks.standard_error(difference)
    return Change(float(np.mean(before)), float(np.mean(after)), error)


def _congruence(
    split: RehearsalSplit,
    y: Array,
    before: Distribution,
    after: Distribution,
    seed: int,
    blocks: DependentBlocks | None,
) -> Change:
    versions = {"before": before} if after is before else {"before": before, "after": after}
    held = HeldSplit(split.points, y, dependence=split.held_out, systems=split.systems)
    ask = Ask(list(versions), tested=False, band=False, uncertainty=after is not before)
    results = measure_held(held, split.protocol, versions, ask, Accuracy(), seed)
    if after is before:
        return Change(results["before"].mean, results["before"].mean, 0.0)
    then, now = (results[name].uncertainty.influence for name in ("after", "before"))
    signs, targets = blocks is None, before.stated != "cells"
    difference = difference_of_influences(then, now, blocks, shares_signs=signs, shares_targets=targets)
    return Change(results["before"].mean, results["after"].mean, difference.mean_standard_error)
