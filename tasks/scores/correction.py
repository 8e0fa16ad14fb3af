"""What recalibrating a version would change: tried on part of the rows while it is scored.

The same fit on the same halves (``folds``) as `congruence recalibrate`, judged alike, on at most ``ROWS`` rows of each
half: its cost does not grow with the split, and is paid only where a fault was found.
"""

from __future__ import annotations

import hashlib

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import RowDependence, TooFewBlocksError
from congruence.kernels.dependence.correlation import hold_out
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.recalibration.fit import RehearsalSplit, recalibration_rehearsal, rehearsal_split
from congruence.kernels.recalibration.recalibration_map import RecalibrationMap
from congruence.kernels.rng import keyed_uniforms
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.sentences.calibration import (
    CALIBRATION_P,
    CorrectionPreview,
    PreviewRow,
)

_PURPOSE = "rows of a recalibration preview"
ROWS = 4_000
FEWEST = 60
"""Rows of one half, with fewer of which nothing is tried."""

_WORDS = {"nll": "NLL", "crps": "CRPS", "cce": "CCE", "mae": "MAE"}


def rows_to_try(rows: Rows) -> tuple[Array, Array]:
    """Numbers of the rows that a preview looks at, and which of these are for fitting.

    Of rows that depend on each other whole groups, or the rows beside the cut of time, as many as there may be.
    """
    dependence = rows.dependence
    parts = hold_out(rows.names, dependence)
    beside_cut = dependence is not None and dependence.groups is None
    if dependence is not None and beside_cut:
        order = np.argsort(np.asarray(dependence.time), kind="stable")
    else:
        named = rows.names if dependence is None else dependence.groups
        order = np.argsort(keyed_uniforms(named, rows.seed, _PURPOSE), kind="stable")
    first, second = order[parts.fitting[order]], order[parts.held_out[order]]
    first = first[-ROWS:] if beside_cut else first[:ROWS]
    chosen = np.sort(np.concatenate([first, second[:ROWS]]))
    return chosen, parts.fitting[chosen]


def preview(protocol: EvaluationProtocol, rows: Rows, embeddings: Array, half: Array) -> CorrectionPreview | None:
    """Fit on the rows of ``half`` and judge on the others; None where they are too few.

    Args:
        protocol: with its input kernel and lambda.
        rows: n of one target each.
        embeddings: (n, d), as the encoder gave them.
        half: which are for fitting, (n,).
    """
    targets, predictive, seed = rows.targets, rows.predictive, rows.seed
    if min(int(half.sum()), int((~half).sum())) < FEWEST or getattr(predictive, "values", np.ones((1, 2))).shape[1] < 2:
        return None
    if min(np.ptp(targets[half]), np.ptp(targets[~half])) == 0.0:  # rare events, of which a half has none
        return None
    x = protocol.apply(np.asarray(embeddings, dtype=np.float64))
    split = _split_of(x, half, protocol, seed, rows.dependence)
    try:
        tried = recalibration_rehearsal(split, targets, predictive, seed=seed, keys=rows.names)
    except TooFewBlocksError:
        return None
    found = [(word, tried.changes[name]) for name, word in _WORDS.items() if name in tried.changes]
    table = [PreviewRow(word, change.before, change.after, change.standard_error) for word, change in found]
    table.append(PreviewRow(CALIBRATION_P, *tried.p_values))
    return CorrectionPreview(in_words(tried.map, x[half]), tried.fitted_on, tried.rows, tuple(table))


_LAST: dict[str, RehearsalSplit] = {}
"""The split that this process tried last: the versions of a split follow each other, and look at the same rows."""


def _split_of(
    x: Array, half: Array, protocol: EvaluationProtocol, seed: int, dependence: RowDependence | None
) -> RehearsalSplit:
    """The rehearsal's split of these rows."""
    columns = [x, np.packbits(half)]
    if dependence is not None:
        columns += [column for column in (dependence.groups, dependence.time) if column is not None]
    named = f"{protocol.digest} {seed} {x.shape}".encode()
    digest = hashlib.sha256(named + b"".join(np.ascontiguousarray(each).tobytes() for each in columns)).hexdigest()
    if (known := _LAST.get(digest)) is None:
        kernel, regularization = protocol.input_kernel, protocol.regularization
        known = rehearsal_split(
            x, half, input_kernel=kernel, regularization=regularization, seed=seed, dependence=dependence
        )
        _LAST.clear()
        _LAST[digest] = known
    return known


def in_words(fitted: RecalibrationMap, x: Array) -> str:
    """What a map changes at the inputs x, in one line; "" where nothing."""
    if fitted.changes_nothing:
        return ""
    score_map, parts = fitted.at(x), []
    if fitted.form.temperature is not None:
        parts.append(f"probabilities of bins taken at temperature {fitted.form.temperature:.3g}")
    if fitted.form.factor is not None:
        parts.append(f"spreads multiplied by {_range(score_map.factor)}")
    if fitted.form.shift is not None:
        parts.append(f"predictions moved by {_range(score_map.shift, ' of their spreads')}")
    if fitted.form.shape is not None:
        parts.append("their shape corrected")
    return ", ".join(parts)


def _range(values: Array, unit: str = "") -> str:
    low, high = (f"{end:.3g}" for end in np.quantile(values, [0.05, 0.95]))
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}, by the input"
