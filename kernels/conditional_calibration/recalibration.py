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
from dataclasses import replace
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.input_features import InputFeatures
from congruence.kernels.conditional_calibration.recalibration_map import (
    LARGEST_SCORE,
    Design,
    Form,
    Moves,
    NormalScores,
    RecalibrationMap,
    fit_moves,
    fit_parts,
    fit_shape,
    normal_score_map,
)
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.dependence.hold_out import folds
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.recalibrated import score_intervals
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.scores import matched_targets
from congruence.kernels.streams import keyed_uniforms

FOLDS = 5
FEWEST_ROWS = 10 * FOLDS
RIDGES = (np.inf, 100.0, 10.0, 1.0, 0.1)
"""Of b and log c, relative to the protocol's n lambda; an infinite one leaves a constant."""

SHAPES = ((np.inf, 0.5), (np.inf, 1.0), (10.0, 0.5), (10.0, 1.0), (1.0, 1.0))
"""Of H: ridge, and its share in the mixture with the identity."""

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
        InvalidInputError: rows that do not match, fewer than 50, or laws without levels to map.
    """
    targets = matched_targets(predictive, y)
    n = len(targets)
    if len(features) != n:
        raise InvalidInputError(f"y: {n} rows, but the features have {len(features)}; they must match row by row")
    if n < FEWEST_ROWS:
        raise InvalidInputError(f"y: {n} rows; a recalibration is fitted on at least {FEWEST_ROWS}")
    names = np.arange(n) if keys is None else keys
    scores = NormalScores(*score_intervals(predictive, targets), keyed_uniforms(names, seed, "points in jumps"))
    found = folds(names, FOLDS, seed, _PURPOSE, blocks)
    order = np.argsort(keyed_uniforms(names, seed, _PURPOSE), kind="stable")
    few = order[~found.beside_cuts[order]][:FORM_ROWS]
    within = None if blocks is None else blocks.of_rows(few).labels
    form = _chosen_form(features.values[few], scores[few], found.numbers[few], within)
    final = fit_parts(Design(features.values), scores, form)
    return RecalibrationMap(form, features.kernel, features.landmarks, final.constants, features.basis @ final.slopes)


def _chosen_form(features: Array, scores: NormalScores, fold: Array, within: Array | None) -> Form:
    """The form that cross-validation over the folds chooses, part by part.

    ``within``: the block of each row (n,), where rows depend on each other.
    """
    outside = {k: fold == k for k in np.unique(fold).tolist()}
    designs = {k: Design(features[~held]) for k, held in outside.items()}
    in_turn = None if within is None else np.concatenate([within[held] for held in outside.values()])
    form = Form()
    moves: dict[tuple[Any, ...], Moves] = {}
    parts: list[tuple[str, Sequence[Any]]] = [("shift", RIDGES), ("factor", RIDGES), ("shape", SHAPES)]
    for part, changes in parts:
        options = (None, *changes)
        gains: list[list[Array]] = [[] for _ in options]
        for k, held in outside.items():
            for option, gained in zip(options, gains, strict=True):
                tried = replace(form, **{part: option})
                # Moves are judged at the scores' own spread: of a law that is too narrow every move looks good.
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
    jumps = (high > low)[:, 0]
    gains = np.empty(len(scores))
    point = np.clip(low[~jumps], -LARGEST_SCORE, LARGEST_SCORE)
    gains[~jumps] = score_map[~jumps].log_slope(point)[:, 0]
    gains[jumps] = score_map[jumps].log_between(low[jumps], high[jumps])[:, 0]
    return gains


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
