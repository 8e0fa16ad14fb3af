"""Rows without an embedding: a few of them in words, all of them in a file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from congruence.tasks.data.split import Split
from congruence.tasks.encoders.base import InvalidRow
from congruence.tasks.encoders.images import decode_image
from congruence.tasks.runtime.errors import TooManyInvalidRowsError
from congruence.tasks.runtime.files import write_whole

_LISTED = 5
_REMEDY = "Repair these inputs, or raise max_invalid if the evaluation may leave them out."
LOOKED_AT = 300
"""Pictures, evenly spaced, that are decoded before an evaluation is said to be possible."""


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
    raise TooManyInvalidRowsError(f"split {split.name!r}: {share}, allowed {max_invalid:.2%}):\n{listed}\n{_REMEDY}")


def require_pictures(split: Split, max_invalid: float, max_pixels: int) -> str | None:
    """What there is to say of pictures that cannot be shown, before all are read: files of all, content of hundreds.

    Raises:
        TooManyInvalidRowsError: as it seems, more rows than ``max_invalid`` allows have none.
    """
    if split.settings.input_kind != "image":
        return None
    absent = split.rows_without_file()
    reasons = dict.fromkeys(absent, "its file does not exist")
    step = max(1, split.rows // LOOKED_AT)
    for shard in split.shards:
        chosen = set(range(-(-shard.start // step) * step, shard.stop, step)).difference(absent)
        for row, read in enumerate(split.input_readers(shard) if chosen else (), shard.start):
            if row in chosen:
                try:
                    decode_image(read(), max_pixels)
                except InvalidRow as invalid:
                    reasons[row] = invalid.reason
    if not reasons:
        return None
    expected = min(split.rows, len(absent) + step * (len(reasons) - len(absent)))
    said = f"split {split.name!r}: about {expected} of {split.rows} rows have no picture"
    said = f"{said if step > 1 else said.replace('about ', '')} ({expected / split.rows:.2%}"
    if expected <= max_invalid * split.rows:
        return f"{said}) and are left out:\n{_listed(reasons, split, None)}"
    raise TooManyInvalidRowsError(f"{said}, allowed {max_invalid:.2%}):\n{_listed(reasons, split, None)}\n{_REMEDY}")


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
