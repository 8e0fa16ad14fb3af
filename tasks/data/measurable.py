"""Whether anything can be measured on a split, said before any work is spent on it."""

from __future__ import annotations

from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.ingested import FIRST_ROWS, Lacking
from congruence.tasks.data.split import Split
from congruence.tasks.runtime.errors import TooManyInvalidRowsError

_STAND_INS = {
    "mean": "the feature's mean stands in",
    "indicator": "the feature's mean stands in, beside a feature that is 1 where it is missing",
}


def require_measurable(split: Split, max_invalid: float = 0.01, *, missing: str = "leave_out") -> str | None:
    """One rule for every row that lacks a finite number, in its features or its targets: it is left out, and said.

    Reads the manifest alone. Images and texts that cannot be used show when they are decoded; they count against
    the same limit there.

    Args:
        split: a labelled one.
        max_invalid: the fraction of rows that may be left out.
        missing: what the encoder makes of a feature without a value (``EncoderSettings.missing``): unless "leave_out",
            such rows stay, and do not count against the limit.

    Returns:
        how many rows are left out, and how many stay without all their features, with the first of them; None where
        every row is whole.

    Raises:
        TooManyInvalidRowsError: more rows than ``max_invalid`` allows lack a number.
        SplitError: fewer than two rows are left, or all their targets are the same.
    """
    inputs, targets = _lacking(split, missing)
    lacking = inputs.rows + targets.rows
    left_out = _left_out(split, inputs, targets)
    where = f"split {split.name!r} ({split.settings.uri})"
    if left_out is not None and lacking > max_invalid * split.rows:
        remedy = "repair these rows, or raise max_invalid"
        if missing == "leave_out" and split.facts.missing.rows:
            remedy = (
                "repair these rows, raise max_invalid, or, where the models take missing values themselves, set "
                "missing: mean (or indicator) under encoder: the rows then stay"
            )
        raise TooManyInvalidRowsError(f"{left_out}; at most {max_invalid:.2%} may be left out: {remedy}")
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
    return "\n".join(text for text in (left_out, _staying(split, missing)) if text is not None) or None


def rows_left_out(split: Split, missing: str = "leave_out") -> int:
    """How many rows lack a finite number and are left out, see ``require_measurable``."""
    return sum(part.rows for part in _lacking(split, missing))


def _lacking(split: Split, missing: str) -> tuple[Lacking, Lacking]:
    """The rows that are left out for their features, and those for their targets."""
    facts = split.facts
    if missing != "leave_out":
        return facts.inputs, facts.targets
    first = sorted([*facts.inputs.first, *facts.missing.first])[:FIRST_ROWS]
    return Lacking(facts.inputs.rows + facts.missing.rows, first), facts.targets


def _left_out(split: Split, inputs: Lacking, targets: Lacking) -> str | None:
    """One sentence on the rows that lack a finite number: how many, and the first three; None where none does."""
    rows = inputs.rows + targets.rows
    if not rows:
        return None
    return (
        f"split {split.name!r}: {rows} of {split.rows} rows lack a finite number and are left out "
        f"({inputs.rows} in the features, {targets.rows} in the targets): "
        f"{_listed(split, [*inputs.first, *targets.first], rows)}"
    )


def _staying(split: Split, missing: str) -> str | None:
    """One sentence on the rows that stay without all their features; None where there are none."""
    found = split.facts.missing
    if missing == "leave_out" or not found.rows:
        return None
    return (
        f"split {split.name!r}: {found.rows} of {split.rows} rows lack a feature and stay: the models are given them "
        f"as they are, and for nearness {_STAND_INS[missing]} (encoder.missing: {missing}): "
        f"{_listed(split, found.first, found.rows)}"
    )


def _listed(split: Split, places: list[tuple[int, str]], rows: int) -> str:
    first = sorted(places)[:FIRST_ROWS]
    listed = "; ".join(f"row {row} ({split.place(row)}): {reason}" for row, reason in first)
    return listed + (f"; and {rows - len(first)} more" if rows > len(first) else "")
