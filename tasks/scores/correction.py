"""What to do with a version: use it, recalibrate it, change the model, bring more rows, or name what they share.

What recalibrating would change is tried on part of the rows while a version is scored: the same fit on the same halves
(``folds``) as `congruence recalibrate`, judged alike, on at most ``ROWS`` rows of each half: its cost does not grow
with the split, and is paid only where a fault was found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import RowDependence, TooFewBlocksError
from congruence.kernels.dependence.correlation import hold_out
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.recalibration.fit import RehearsalSplit, recalibration_rehearsal, rehearsal_split
from congruence.kernels.recalibration.recalibration_map import RecalibrationMap
from congruence.kernels.rng import keyed_uniforms
from congruence.kernels.verdict import NOT_JUDGED, Verdict
from congruence.tasks.scores.evaluation import (
    ROW_CORRELATION,
    Evaluation,
    MetricValue,
    verdict_of,
)
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.sentences.calibration import (
    CALIBRATION_P,
    WORTH_IT,
    CorrectionPreview,
    PreviewRow,
    significant,
)

NAME_WHAT_ROWS_SHARE = (
    "Rows are correlated. Name in the split what they share, and evaluate again: the column that orders them (time:) "
    "or that holds those that belong together (groups:), by whose blocks p-values and intervals then go; or that says "
    "to which of a few large parts a row belongs (slices:), each of which then has its own faults."
)

_PURPOSE = "rows of a recalibration preview"
ROWS = 4_000
FEWEST = 60
"""Rows of one half, with fewer of which nothing is tried."""

_WORDS = {"nll": "NLL", "crps": "CRPS", "cce": "CCE", "mae": "MAE"}

Kind = Literal["use", "recalibrate", "change the model", "bring more rows", "name what rows share"]

MANY_DRAWS = 100
"""From which it does not matter that they are moved about their own middle: CRPS is 5 % too low of 10, 1 % of 50."""


@dataclass(frozen=True)
class Advice:
    """What to do, and why, with what it gains."""

    kind: Kind
    reason: str

    @property
    def words(self) -> str:
        """The kind, as a heading has it."""
        return self.kind.capitalize()


def advise(
    verdict: Verdict, metrics: Mapping[str, MetricValue], preview: CorrectionPreview | None = None
) -> Advice | None:
    """What helps; None where nothing contradicts a version whose skill was not measured.

    "Use" is said of a version in which no fault was found and whose CRPS is below that of the distribution of all
    targets, beyond chance. "Recalibrate" is said where that gets a score of rows that it was not fitted on down by as
    much as ``WORTH_IT`` beyond chance, or CRPS by as much while the fault that they show is found no more; and by that
    better than ignoring the input.
    """
    if verdict.state == NOT_JUDGED:
        if ROW_CORRELATION in metrics:  # more of them would say no more
            return Advice("name what rows share", NAME_WHAT_ROWS_SHARE)
        return Advice("bring more rows", f"No test was possible: {verdict.reason}.")
    skill = metrics.get("crps_skill")
    if not verdict.is_wrong:
        return None if skill is None else _of_right(skill)
    if preview is not None and preview.improves and (gain := _gain(preview)):
        then = next((row.then for row in preview.table if row.name == "CRPS"), None)
        without = metrics.get("crps_uncertainty")
        if then is None or without is None or then < without.value:
            return Advice(
                "recalibrate", f"Do not use it as it is. On rows that the correction was not fitted on, {gain}."
            )
        return Advice(
            "change the model",
            f"Recalibrated, its CRPS would be {significant(then)}: no better than ignoring the input "
            f"({significant(without.value)}).",
        )
    if skill is not None and (skill.value if skill.high is None else skill.high) <= 0.0:
        return Advice("change the model", "It scores no better than ignoring the input, and no correction helps.")
    tried = "" if preview is None else " No correction of its levels gains enough on rows that it was not fitted on."
    return Advice("change the model", f"Do not use it as it is.{tried}")


def advice_of(evaluation: Evaluation) -> str:
    """What to do with an evaluated version, in a sentence or two; "" where nothing is advised."""
    found = advise(evaluation.verdict, evaluation.metrics, evaluation.preview)
    return "" if found is None else f"{found.words}. {found.reason}"


def _of_right(skill: MetricValue) -> Advice:
    low, high = (skill.value if end is None else end for end in (skill.low, skill.high))
    if low > 0.0:
        return Advice("use", f"Its CRPS is {percent(skill.value)} below that of ignoring the input.")
    if high <= 0.0:
        return Advice("change the model", "It scores no better than ignoring the input.")
    return Advice("bring more rows", "Whether it scores better than ignoring the input, so few rows cannot show.")


def _gain(preview: CorrectionPreview) -> str:
    """What a correction takes off, in words; "" where it is not worth it or another score gets worse."""
    rows = {row.name: row for row in preview.table if row.name in WORTH_IT}
    if any(row.is_worse for row in rows.values()):
        return ""
    parts, is_worth_it = [], preview.leaves_no_fault
    if (crps := rows.get("CRPS")) is not None and (crps.is_better or preview.leaves_no_fault):
        is_worth_it |= crps.now - crps.then >= WORTH_IT["CRPS"] * crps.now
        share = percent(1.0 - crps.then / crps.now) + ("" if crps.is_better else ", within chance")
        parts.append(f"CRPS falls from {significant(crps.now)} to {significant(crps.then)} ({share})")
    if (nll := rows.get("NLL")) is not None and nll.is_better:
        is_worth_it |= nll.now - nll.then >= WORTH_IT["NLL"]
        parts.append(f"NLL falls from {significant(nll.now)} to {significant(nll.then)}")
    said = " and ".join(parts) + (", and no fault is found" if preview.leaves_no_fault else "")
    return said if is_worth_it else ""


def percent(share: float) -> str:
    """A share in whole percents, in tenths where these would say nothing."""
    return f"{100.0 * share:.{0 if abs(share) >= 0.02 else 1}f} %"


def is_wanted(requested: tuple[str, ...], metrics: Mapping[str, MetricValue], rows: Rows) -> bool:
    """Whether a preview is asked for, a fault was found, and the laws are such that they can be recalibrated."""
    correctable = rows.is_scalar and bool(np.any(rows.predictive.std() > 0.0))
    return "recalibration" in requested and verdict_of(metrics).is_wrong and correctable


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
    """Fit on the rows of ``half`` and judge on the others; None where they are too few, or it does harm there.

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
    made = CorrectionPreview(
        in_words(tried.map, x[half], predictive.members), tried.fitted_on, tried.rows, tuple(table)
    )
    return None if made.harms else made


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


def in_words(fitted: RecalibrationMap, x: Array, members: int | None = None) -> str:
    """What a map changes at the inputs x, in one line; "" where nothing.

    The CRPS of an ensemble takes its ``members`` as drawn one by one, which they then no longer are.
    """
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
    said = ", ".join(parts)
    if members is None or members > MANY_DRAWS:
        return said
    return f"{said}; its CRPS reads too low, as the {members} draws of a row move together"


def _range(values: Array, unit: str = "") -> str:
    low, high = (f"{end:.3g}" for end in np.quantile(values, [0.05, 0.95]))
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}, by the input"
