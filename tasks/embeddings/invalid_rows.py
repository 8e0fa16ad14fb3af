"""Rows without an embedding: a few of them in words, all of them in a file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from congruence.tasks.data.split import Split
from congruence.tasks.runtime.errors import TooManyInvalidRowsError
from congruence.tasks.runtime.files import write_whole

_LISTED = 5


def require_few_invalid(
    reasons: Mapping[int, str], split: Split, max_invalid: float = 0.01, folder: Path | None = None
) -> str | None:
    """What there is to say of the rows that have no embedding; None where all have one.

    Args:
        reasons: why, by row of the split.
        split: their split.
        max_invalid: the fraction of rows that may be left out.
        folder: where all of them are listed, one JSON object a line, when the message does not hold them.

    Raises:
        TooManyInvalidRowsError: more rows than ``max_invalid`` allows.
    """
    if not reasons:
        return None
    share = f"{len(reasons)} of {split.rows} rows have no embedding ({len(reasons) / split.rows:.2%}"
    listed = _listed(reasons, split, folder)
    if len(reasons) <= max_invalid * split.rows:
        return f"split {split.name!r}: {share}) and are left out:\n{listed}"
    raise TooManyInvalidRowsError(
        f"split {split.name!r}: {share}, allowed {max_invalid:.2%}):\n{listed}\n"
        "Repair these inputs, or raise max_invalid if the evaluation may leave them out."
    )


def _listed(reasons: Mapping[int, str], split: Split, folder: Path | None) -> str:
    rows = sorted(reasons)
    lines = [f"  row {row} ({split.place(row)}): {reasons[row]}" for row in rows[:_LISTED]]
    if len(rows) > _LISTED:
        commonest = Counter(reasons.values()).most_common(1)[0][0]
        where = "" if folder is None else f"; all of them: {_write(reasons, split, folder)}"
        lines.append(f"  and {len(rows) - _LISTED} more, most often: {commonest}{where}")
    return "\n".join(lines)


def _write(reasons: Mapping[int, str], split: Split, folder: Path) -> Path:
    path = folder / f"{split.name.replace('/', '_')}-{split.digest[:8]}.jsonl"
    rows = ({"row": row, "place": split.place(row), "reason": reasons[row]} for row in sorted(reasons))
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return path
