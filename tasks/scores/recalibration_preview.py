"""What recalibrating a version would change, tried on part of its rows while it is scored: "What to do" in its report.

The same fit on the same halves (``hold_out``) as `congruence recalibrate`, judged alike (``correction.judgement``), on
at most ``ROWS`` rows of each half: its cost does not grow with the split, and is paid only where a fault was found.
"""

from __future__ import annotations

import hashlib
from threading import Lock

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.recalibration import (
    RehearsalSplit,
    recalibration_rehearsal,
    rehearsal_split,
)
from congruence.kernels.dependence.blocks import RowDependence, TooFewBlocksError
from congruence.kernels.dependence.hold_out import hold_out
from congruence.kernels.distributions import Distribution
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.streams import keyed_uniforms
from congruence.tasks.scores.correction import CorrectionPreview, PreviewRow, in_words
from congruence.tasks.scores.evaluation import MetricValue, verdict_of

_PURPOSE = "rows of a recalibration preview"
ROWS = 4_000
FEWEST = 60
"""Rows of one half, with fewer of which nothing is tried."""

_WORDS = {"nll": "NLL", "crps": "CRPS", "cce": "CCE", "mae": "MAE"}


def is_wanted(
    requested: tuple[str, ...], metrics: dict[str, MetricValue], targets: Array, predictive: Distribution
) -> bool:
    """Whether a preview is asked for, a fault was found, and the laws are such that they can be recalibrated."""
    correctable = targets.ndim == 1 and bool(np.any(predictive.std() > 0.0))
    return "recalibration" in requested and verdict_of(metrics).is_wrong and correctable


def rows_to_try(keys: Array, seed: int, dependence: RowDependence | None = None) -> tuple[Array, Array]:
    """Numbers of the rows that a preview looks at, and which of these are for fitting.

    Of rows that depend on each other whole groups, or the rows beside the cut of time, as many as there may be.
    """
    parts = hold_out(keys, dependence)
    beside_cut = dependence is not None and dependence.groups is None
    if dependence is not None and beside_cut:
        order = np.argsort(np.asarray(dependence.time), kind="stable")
    else:
        named = keys if dependence is None else dependence.groups
        order = np.argsort(keyed_uniforms(named, seed, _PURPOSE), kind="stable")
    first, second = order[parts.fitting[order]], order[parts.held_out[order]]
    first = first[-ROWS:] if beside_cut else first[:ROWS]
    chosen = np.sort(np.concatenate([first, second[:ROWS]]))
    return chosen, parts.fitting[chosen]


def preview(
    protocol: EvaluationProtocol,
    embeddings: Array,
    targets: Array,
    predictive: Distribution,
    keys: Array,
    half: Array,
    seed: int,
    dependence: RowDependence | None = None,
) -> CorrectionPreview | None:
    """Fit on the rows of ``half`` and judge on the others; None where they are too few, or it does harm there.

    Args:
        protocol: with its input kernel and lambda.
        embeddings: (n, d), as the encoder gave them.
        targets: (n,).
        predictive: n laws of one target.
        keys: one per row.
        half: which are for fitting, (n,).
        seed: of the fit and of randomised PIT values.
        dependence: which of the n rows depend on each other.
    """
    if min(int(half.sum()), int((~half).sum())) < FEWEST or getattr(predictive, "values", np.ones((1, 2))).shape[1] < 2:
        return None
    x = protocol.apply(np.asarray(embeddings, dtype=np.float64))
    split = _SPLITS.of(x, half, protocol, seed, dependence)
    try:
        tried = recalibration_rehearsal(split, targets, predictive, seed=seed, keys=keys)
    except TooFewBlocksError:
        return None
    found = [(word, tried.changes[name]) for name, word in _WORDS.items() if name in tried.changes]
    table = [PreviewRow(word, change.before, change.after, change.standard_error) for word, change in found]
    table.append(PreviewRow("calibration p", *tried.p_values))
    made = CorrectionPreview(in_words(tried.map, x[half]), tried.fitted_on, tried.rows, tuple(table))
    return None if made.harms else made


class _LastSplit:
    """The split that this process tried last: the versions of a split follow each other, and look at the same rows."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: tuple[str, RehearsalSplit] | None = None

    def of(
        self, x: Array, half: Array, protocol: EvaluationProtocol, seed: int, dependence: RowDependence | None
    ) -> RehearsalSplit:
        """The rehearsal's split of these rows."""
        named = f"{protocol.digest} {seed} {x.shape}".encode()
        columns = [x, np.packbits(half)]
        if dependence is not None:
            columns += [column for column in (dependence.groups, dependence.time) if column is not None]
        digest = hashlib.sha256(named + b"".join(np.ascontiguousarray(each).tobytes() for each in columns)).hexdigest()
        with self._lock:
            known = self._known
            if known is None or known[0] != digest:
                kernel, regularization = protocol.input_kernel, protocol.regularization
                made = rehearsal_split(
                    x, half, input_kernel=kernel, regularization=regularization, seed=seed, dependence=dependence
                )
                known = self._known = (digest, made)
            return known[1]


_SPLITS = _LastSplit()
