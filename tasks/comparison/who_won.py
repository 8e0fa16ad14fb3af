"""Who won, and why: what two versions' CRPS owes to knowledge and to honesty, and which versions may be the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import DependentBlocks, TooFewBlocksError
from congruence.kernels.score_parts import FEWEST_ROWS, Part, ScoreParts, may_be_best, score_parts
from congruence.kernels.weights import mean_one
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.comparison.differences import pair_blocks
from congruence.tasks.scores.metrics.definitions import RECALIBRATED
from congruence.tasks.scores.metrics.registry import ROW_WEIGHT, mean_columns
from congruence.tasks.scores.summary import slice_groups

_SCORE = "crps"
_LEAST = 0.05
"""Of the p-value of a version that may be the best: one in 20 sets is without the best."""


@dataclass(frozen=True)
class WhoWon:
    """The CRPS of ``first`` less that of ``second`` on the same rows, in its parts; negative favours ``first``.

    Attributes:
        parts: over the rows on which both were recalibrated.
        scale: the mean CRPS of ``second`` on them, of which the shares in sentences are.
        slices: the same within each group of a slice column that has enough of these rows, by "column = value".
        sentence: what the parts say, in words.
    """

    parts: ScoreParts
    scale: float
    slices: dict[str, ScoreParts]
    sentence: str


def who_won(first: ComparedVersion, second: ComparedVersion, rows: Array) -> WhoWon | None:
    """Returns why one version's CRPS is lower; None where an evaluation does not hold what that takes.

    Args:
        first, second: the versions.
        rows: which rows are valid in both, (rows,).
    """
    if any(name not in version.scores for version in (first, second) for name in (_SCORE, RECALIBRATED)):
        return None
    columns = [_column(version, name) for version in (first, second) for name in (_SCORE, RECALIBRATED)]
    chosen = rows & np.all([np.isfinite(column) for column in columns], axis=0)
    if np.count_nonzero(chosen) < FEWEST_ROWS:
        return None
    weights = _column(first, ROW_WEIGHT)[chosen] if ROW_WEIGHT in first.scores else None
    blocks = pair_blocks(first, second, chosen, [_SCORE, RECALIBRATED])
    kept = [column[chosen] for column in columns]
    parts = score_parts(*kept, weights=weights, blocks=blocks)
    counted = np.ones(len(kept[2])) if weights is None else mean_one(weights, len(kept[2]))
    scale = float(np.mean(counted * kept[2]))
    slices: dict[str, ScoreParts] = {}
    for name in first.slices:
        if name in first.scores:
            codes, values = slice_groups(first.scores[name][chosen])
            for code, value in enumerate(values):
                here = codes == code
                if (within := _within(kept, here, weights, blocks)) is not None:
                    slices[f"{name} = {value}"] = within
    return WhoWon(parts, scale, slices, _sentence(first.label, second.label, parts, scale))


def best_set(versions: Sequence[ComparedVersion]) -> dict[str, float]:
    """Returns the p-value of each version in the model confidence set by CRPS, on the rows that are valid in all.

    Nothing where a version has no CRPS, or rows depend on each other in too few blocks.
    """
    if len(versions) < 2 or any(_SCORE not in version.scores for version in versions):
        return {}
    if any(list(version.scores["key"]) != list(versions[0].scores["key"]) for version in versions[1:]):
        return {}
    losses = {version.label: _column(version, _SCORE) for version in versions}
    rows = np.all([np.isfinite(column) for column in losses.values()], axis=0)
    first, last = versions[0], versions[-1]
    weights = _column(first, ROW_WEIGHT)[rows] if ROW_WEIGHT in first.scores else None
    try:
        blocks = pair_blocks(first, last, rows, mean_columns().values())
        return may_be_best({label: column[rows] for label, column in losses.items()}, weights=weights, blocks=blocks)
    except TooFewBlocksError:
        return {}


def in_set(p_values: dict[str, float]) -> list[str]:
    """Returns the labels of the versions that may be the best: in 95 of 100 splits the best is among them."""
    return [label for label, p_value in p_values.items() if p_value >= _LEAST]


def _within(
    columns: Sequence[Array], here: Array, weights: Array | None, blocks: DependentBlocks | None
) -> ScoreParts | None:
    if np.count_nonzero(here) < FEWEST_ROWS:
        return None
    own = None if blocks is None else blocks.of_rows(here)
    if own is not None and own.count < 10:
        return None
    return score_parts(
        *(column[here] for column in columns), weights=None if weights is None else weights[here], blocks=own
    )


def _column(version: ComparedVersion, name: str) -> Array:
    return np.asarray(version.scores[name].to_numpy(np.float64))


def _sentence(first: str, second: str, parts: ScoreParts, scale: float) -> str:
    """The parts in words: who is better, by what share of the CRPS, what of it is knowledge and what honesty."""
    if not _is_clear(parts.total) and not _is_clear(parts.honesty) and not _is_clear(parts.knowledge):
        return f"{first} and {second} have the same CRPS within chance, and know as much and are as honest."

    def share(part: Part) -> str:
        percent = 100.0 * abs(part.value) / scale
        return f"{percent:.0f} %" if percent >= 10.0 else f"{percent:.2g} %"

    if _is_clear(parts.total):
        side = "better" if parts.total.value < 0.0 else "worse"
        said = f"{first} is {side} than {second} by {share(parts.total)} of its CRPS"
    else:
        said = f"{first} and {second} have the same CRPS within chance"
    reasons = []
    for part, words in (
        (parts.knowledge, ("knows more", "knows less")),
        (parts.honesty, ("is more honest", "is less honest")),
    ):
        if _is_clear(part):
            reasons.append(f"{words[part.value > 0.0]} ({share(part)})")
    if reasons:
        said += f": it {' and '.join(reasons)}"
    gain = parts.gains[0]
    if gain.low > 0.0 and gain.value > 0.01 * scale:
        said += f". Recalibrated, {first} would gain {share(gain)}"
    return f"{said}."


def _is_clear(part: Part) -> bool:
    return part.low > 0.0 or part.high < 0.0
