"""New inputs in words: why one is unusual or withheld, and whether withholding helps on the labelled split."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.pit import ORDERS
from congruence.kernels.trust.columns import PICTURE_COLUMNS, Column, ColumnRanges, blank, is_of_pictures
from congruence.kernels.trust.judgement import BEYOND, WithholdingJudgement
from congruence.kernels.trust.scorer import InputScores
from congruence.kernels.trust.support import Support, SupportReading
from congruence.tasks.sentences.calibration import fault_clause, listed

if TYPE_CHECKING:
    import pandas as pd

NEAREST = 3
_SHARE = 0.25  # of the squared distance, below which a column is not named
_NAMED = 2
_CATEGORIES = 6
_DIGITS, _PICTURE_DIGITS = 6, 4


@dataclass(frozen=True)
class Rows:
    """Rows of a labelled split, or inputs to be scored, as far as words need them.

    Attributes:
        x: before they were normalised, (n, d), as the support was given them.
        columns: what they are in their table, (n, c); None where there are only vectors.
        keys: their names, (n,); their numbers by default.
    """

    x: Array = field(repr=False)
    columns: pd.DataFrame | None = field(default=None, repr=False)
    keys: Any | None = field(default=None, repr=False)

    @cached_property
    def ranges(self) -> ColumnRanges | None:
        """What all columns hold."""
        return None if self.columns is None else ColumnRanges.of(self.columns)


def reasons(support: Support, scores: InputScores, known: Rows, asked: Rows) -> Array:
    """Why each input is unusual or withheld, (m,) texts; "" for the others, by the rows ``known`` and the ``support``.

    Both are of the labelled split (``InputScorer.support``).
    """
    found = np.full(len(scores.withhold), "", dtype=object)
    unusual = scores.support.unusual(scores.rule.unusual)
    for row in np.flatnonzero(unusual).tolist():
        found[row] = unusual_reason(support, scores.support, row, known, asked)
    for place, row in enumerate(np.flatnonzero(scores.withhold & ~unusual).tolist()):
        there = (
            f"CCE {scores.cce[row]:.3g}, of a true version {scores.cce_expected[row]:.3g} "
            f"(p = {scores.cce_p_value[row]:.2g})"
        )
        if (faults := scores.faults) is not None and scores.wrong[row]:
            sizes = (float(each[place]) for each in (faults.strength, faults.shift, faults.factor))
            there = f"near it {fault_clause(ORDERS[int(faults.dominant[place])], *sizes)}; {there}"
        found[row] = there
    return found


def unusual_reason(support: Support, reading: SupportReading, row: int, known: Rows, asked: Rows) -> str:
    """Why one input (``row`` of those ``asked``) is unusual: the value that no row comes near, or what tells it apart.

    The ``reading`` of the inputs is that of ``support.at``.
    """
    nearest = reading.nearest[row]
    typical = float(np.median(support.held_out))
    within = f"its {len(nearest)} nearest lie within {float(reading.distances[row]):.3g}, an ordinary row's"
    far = f"few rows near it: {within} within {typical:.3g}"
    names = [str(number if known.keys is None else known.keys[number]) for number in nearest[:NEAREST].tolist()]
    near = f"nearest rows {', '.join(names)}"
    ranges = known.ranges
    if asked.columns is None or ranges is None or known.columns is None or reading.outside is None:
        return f"{far}; {near}"
    if not support.has_blank and blank(asked.columns.iloc[[row]])[0]:
        return "a picture of one shade, or black or white nearly everywhere: the split holds none"
    values, outside = asked.columns.iloc[row], np.flatnonzero(reading.outside[row]).tolist()
    assert support.columns is not None
    if outside:
        return "; ".join([*(_outside(support.columns, number, values, ranges) for number in outside), near])
    if is_of_pictures(known.columns):
        return f"{far}; {near}"
    apart = [
        _apart(ranges.named(name), values[name], known.columns[name].iloc[nearest[:NEAREST]])
        for name in _columns_apart(support, np.asarray(asked.x[row]), values, known, int(nearest[0]))
    ]
    return "; ".join([*(apart or [far]), near])


def _outside(neighbours: ColumnRanges, number: int, row: pd.Series[Any], split: ColumnRanges) -> str:
    """What is outside in one row, by the number of a column or a run of 0/1 columns of the ``neighbours``."""
    if number >= len(neighbours.columns):
        names = neighbours.one_hot[number - len(neighbours.columns)]
        count = int(sum(float(row[name]) for name in names))
        many = f"{count or 'none'} of the {len(names)} is 1"
        return f"{names[0]} to {names[-1]}: {many}, always exactly one in the split"
    column = split.columns[number]
    value = row[column.name]
    if value is None or value != value:
        return f"{column.name} missing, in the split it {'hardly ever' if column.has_missing else 'never'} is"
    inside = column.low <= value <= column.high if column.categories is None else value in column.categories
    digits = _PICTURE_DIGITS if tuple(item.name for item in split.columns) == PICTURE_COLUMNS else _DIGITS
    there = "hardly a row of the split holds that" if inside else f"the split holds {held(column, digits)}"
    return f"{column.name} {_shown(value, digits)}: {there}"


def _apart(column: Column, value: Any, nearest: pd.Series[Any]) -> str:
    """A value beyond what the split holds, or beside those of the nearest rows."""
    if not np.isnan(column.low) and (value < column.low or value > column.high):
        return f"{column.name} {_shown(value)}: the split holds {held(column)}"
    return f"{column.name} {_shown(value)}: the nearest rows have {', '.join(map(_shown, nearest))}"


def _columns_apart(support: Support, x: Array, row: pd.Series[Any], known: Rows, nearest: int) -> list[str]:
    """The columns that tell an input from the nearest row, where features are columns."""
    assert known.columns is not None
    names = [str(name) for name in known.columns]
    if len(names) < len(x):
        return [name for name in names if row[name] != known.columns[name].iloc[nearest]][:_NAMED]
    squares = support.whitening.shares(x - known.x[nearest])
    if not squares.sum() > 0:
        return []
    order = np.argsort(-squares, kind="stable")[:_NAMED]
    return [names[place] for place in order.tolist() if squares[place] >= _SHARE * squares.sum()]


def held(column: Column, digits: int = _DIGITS) -> str:
    """What the split holds in a column: "18 to 99", or "A, B and C"."""
    if column.categories is None or (len(column.categories) > _CATEGORIES and not np.isnan(column.low)):
        return f"{column.low:.{digits}g} to {column.high:.{digits}g}"
    names = sorted(map(_shown, column.categories))
    if len(names) > _CATEGORIES:
        return f"{', '.join(names[: _CATEGORIES - 1])} and {len(names) - _CATEGORIES + 1:,} other values"
    return listed(names) if names else "nothing"


def _shown(value: Any, digits: int = _DIGITS) -> str:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        return str(value)
    return f"{value:.{digits}g}"


def withholding_sentence(judgement: WithholdingJudgement) -> str:
    """Whether withholding where the version is wrong helps on the labelled split, and what could not be judged."""
    return " ".join([_whether_it_helps(judgement), *notes(judgement)])


def notes(judgement: WithholdingJudgement) -> list[str]:
    """What could not be judged, and why."""
    if not judgement.impossible:
        return []
    some = f"{judgement.impossible:,} of the {judgement.rows:,} labelled targets"
    are = "is" if judgement.impossible == 1 else "are"
    return [f"NLL judges nothing: {some} {are} impossible under the version, whose mean NLL is infinite."]


def _whether_it_helps(judgement: WithholdingJudgement) -> str:
    withheld, rows, losses = judgement.withheld, judgement.rows, judgement.losses
    if not losses and withheld > rows // 2:
        return (
            f"The version is wrong nearly everywhere on the labelled split ({withheld:,} of {rows:,} rows), so nothing "
            "is withheld on that account: correct the version first."
        )
    if not losses and withheld:
        return (
            f"On the labelled split the rule would withhold {withheld:,} of {rows:,} rows, too few to judge whether "
            "that helps: nothing is withheld on that account."
        )
    if not losses:
        return (
            f"On none of the {rows:,} labelled rows is the version found wrong by enough to matter: nothing is "
            "withheld on that account."
        )
    parts = ", ".join(
        f"{name} {loss.withheld:.3g} against {loss.rest:.3g}" for name, loss in losses.items() if name in BEYOND
    )
    where = f"of the {withheld:,} of {rows:,} labelled rows that would be withheld against the rest"
    if judgement.helps:
        return f"Withholding where the version is wrong helps: {parts}, {where}."
    return f"Withholding where the version seems wrong does not help, so nothing is withheld for it: {parts}, {where}."
