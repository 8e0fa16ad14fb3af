"""Two versions row by row: on which rows one scores better, and along slices, targets and predictions where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.streams import stream
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.comparison.differences import REACH
from congruence.tasks.scores.metrics.registry import REGION
from congruence.tasks.scores.summary import slice_groups, tenths

ROWS = 1_000
SCORES = ("crps", "nll", "absolute_error")
"""The score by which rows are won and lost: the first that both versions have. Rows are independent in it."""

LARGEST = 50
_COLUMNS = ("cce", "mean", "std", "nll", "crps")


@dataclass(frozen=True)
class DifferenceAlong:
    """The mean difference of the score in groups of rows, (g,) each, with 95 % intervals over the rows.

    ``column`` is that of ``Explored.frame`` which makes the groups; ``edges`` are those between tenths of numbers.
    """

    name: str
    column: str
    groups: tuple[str, ...]
    edges: list[float] | None
    rows: Array = field(repr=False)
    value: Array = field(repr=False)
    low: Array = field(repr=False)
    high: Array = field(repr=False)

    @property
    def explained(self) -> float:
        """What the groups explain of the difference's variance, less what chance gives, in squared units of it."""
        error = (self.high - self.low) / (2.0 * REACH)
        mean = self.rows @ self.value / self.rows.sum()
        return float(max(0.0, self.rows @ ((self.value - mean) ** 2 - error**2) / self.rows.sum()))


@dataclass(frozen=True)
class Explored:
    """The rows of a pair that a page shows.

    Attributes:
        score: by which they are compared.
        frame: half of them those that differ most, the others drawn at random: ``row``, ``key``, ``target``,
            ``difference`` of the score (negative where the first version is better), ``cce``, ``mean``, ``std``,
            ``nll`` and ``crps`` of both with the endings ``_first`` and ``_second``, and the columns of ``groups``.
        groups: slice columns and the region.
        along: mean differences in them and in tenths of targets and predictions, over all rows.
    """

    score: str
    frame: pd.DataFrame = field(repr=False)
    groups: tuple[str, ...]
    along: tuple[DifferenceAlong, ...] = field(repr=False)


def rows_apart(first: ComparedVersion, second: ComparedVersion, rows: Array) -> tuple[pd.DataFrame, Explored | None]:
    """The rows on which two versions differ most in CCE, and those that a page explores; each column is read once.

    What is the rows' own is read of ``second``, which has the same.

    Args:
        first, second: the versions.
        rows: which are valid in both, booleans.

    Returns:
        50 rows, the largest difference first, both ways; and the explored ones, None without a score of both.
    """
    valid = np.flatnonzero(rows)
    apart = difference(first, second, "cce")
    most = valid[np.argsort(-np.abs(apart[valid]), kind="stable")[:LARGEST]]
    largest: dict[str, Any] = {"row": most, "cce_difference": apart[most]}
    score = next((name for name in SCORES if name in first.scores and name in second.scores), None)
    lead = np.empty(0) if score is None else difference(first, second, score)[valid]
    valid, lead = valid[: len(lead)][np.isfinite(lead)], lead[np.isfinite(lead)]
    chosen = _chosen(lead)
    places = valid[chosen]
    table: dict[str, Any] = {"row": places, "difference": lead[chosen]}
    along = []
    for column in ("key", "target"):
        if column in second.scores:
            values = second.scores[column].to_numpy()
            largest[column], table[column] = values[most], values[places]
            if column == "target" and len(valid):
                along.append(_along(column, column, *tenths(values[valid].astype(float)), lead))
    for column in _COLUMNS:
        if column in first.scores and column in second.scores:
            for name, version in (("first", first), ("second", second)):
                values = version.scores[column].to_numpy(float)
                largest[f"{column}_{name}"], table[f"{column}_{name}"] = values[most], values[places]
                if column == "mean" and len(valid):
                    title = f"prediction of {version.label}"
                    along.append(_along(title, f"mean_{name}", *tenths(values[valid]), lead))
    if score is None or not len(valid):
        return pd.DataFrame(largest), None
    groups = []
    for name in [name for name in (*second.slices, REGION) if name in second.scores]:
        codes, names = slice_groups(second.scores[name].iloc[valid])
        groups.append("region of the inputs" if name == REGION else name)
        table[groups[-1]] = names[codes[chosen]]
        along.append(_along(groups[-1], groups[-1], codes, [str(each) for each in names], None, lead))
    frame = pd.DataFrame(table)
    single = dict.fromkeys(frame.select_dtypes("float64").columns, "float32")
    differing = sorted((each for each in along if len(each.groups) > 1), key=lambda each: -each.explained)
    return pd.DataFrame(largest), Explored(score, frame.astype(single), tuple(groups), tuple(differing))


def difference(first: ComparedVersion, second: ComparedVersion, column: str) -> Array:
    """What the first version has more of a column, row by row, (rows,)."""
    return np.asarray(first.scores[column].to_numpy(float) - second.scores[column].to_numpy(float))


def _chosen(difference: Array) -> Array:
    """Positions: those that differ most, the largest first, then others at random."""
    order = np.argsort(-np.abs(difference), kind="stable")
    if len(order) <= ROWS:
        return np.asarray(order)
    rest = order[ROWS // 2 :]
    drawn = stream(0, "rows of a comparison").choice(len(rest), ROWS - ROWS // 2, replace=False)
    return np.concatenate([order[: ROWS // 2], rest[np.sort(drawn)]])


def _along(
    name: str, column: str, codes: Array, groups: list[str], edges: list[float] | None, difference: Array
) -> DifferenceAlong:
    rows = np.bincount(codes, minlength=len(groups)).astype(float)
    mean = np.bincount(codes, difference, len(groups)) / rows
    squares = np.bincount(codes, (difference - mean[codes]) ** 2, len(groups))
    error = REACH * np.sqrt(np.where(rows > 1, squares / np.maximum(rows - 1, 1), np.var(difference)) / rows)
    return DifferenceAlong(name, column, tuple(groups), edges, rows, mean, mean - error, mean + error)
