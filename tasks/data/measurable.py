"""Whether anything can be measured on a split, said before any work is spent on it."""

from __future__ import annotations

from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.parts import FIRST_ROWS
from congruence.tasks.data.split import Split
from congruence.tasks.runtime.errors import TooManyInvalidRowsError


def require_measurable(split: Split, max_invalid: float = 0.01) -> str | None:
    """One rule for every row that lacks a finite number, in its features or its targets: it is left out, and said.

    Reads the index's record alone. Images and texts that cannot be used show when they are decoded; they count against
    the same limit there.

    Args:
        split: a labelled one.
        max_invalid: the fraction of rows that may be left out.

    Returns:
        how many rows are left out, with the first of them, where there are any.

    Raises:
        TooManyInvalidRowsError: more rows than ``max_invalid`` allows lack a number.
        SplitError: fewer than two rows are left, or all their targets are the same.
    """
    left_out = rows_left_out(split)
    lacking = split.facts.inputs.rows + split.facts.targets.rows
    where = f"split {split.name!r} ({split.settings.uri})"
    if left_out is not None and lacking > max_invalid * split.rows:
        raise TooManyInvalidRowsError(
            f"{left_out}; at most {max_invalid:.2%} may be left out: repair these rows, or raise max_invalid"
        )
    if split.rows - lacking < 2:
        said = f"holds {split.rows} row{'s' if split.rows > 1 else ''}, of which {split.rows - lacking} can be used"
        raise SplitError(f"{where}: {said}; an evaluation compares rows and needs at least two (better hundreds)")
    ranges = split.facts.ranges
    if ranges and all(low == high for low, high in ranges.values()):
        values = ", ".join(f"{name!r} is {low:g}" for name, (low, _) in ranges.items())
        raise SplitError(
            f"{where}, {split.place(0)} and all rows after it: the target {values} in every row, so that there is "
            "nothing to predict; check the target column, or choose rows that differ"
        )
    return left_out


def rows_left_out(split: Split) -> str | None:
    """One sentence on the rows that lack a finite number: how many, and the first three; None where none does."""
    inputs, targets = split.facts.inputs, split.facts.targets
    rows = inputs.rows + targets.rows
    if not rows:
        return None
    first = sorted([*inputs.first, *targets.first])[:FIRST_ROWS]
    listed = "; ".join(f"row {row} ({split.place(row)}): {reason}" for row, reason in first)
    more = f"; and {rows - len(first)} more" if rows > len(first) else ""
    return (
        f"split {split.name!r}: {rows} of {split.rows} rows lack a finite number and are left out "
        f"({inputs.rows} in the features, {targets.rows} in the targets): {listed}{more}"
    )
