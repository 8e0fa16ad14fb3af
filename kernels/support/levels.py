"""The level at which an input is unusual, for those who read settings without loading what computes."""

import math

UNUSUAL = 0.01

_TYPICAL_HELD_OUT, _HELD_OUT = 199, 10_000


def held_out_rows(rows: int) -> int:
    """How many of the labelled rows are held out from the neighbours: half of few, 199 of more, a third of many."""
    return min(max(rows // 3, min(_TYPICAL_HELD_OUT, rows // 2)), _HELD_OUT)


def rows_for(level: float) -> int:
    """The labelled rows of which enough are held out for a p-value to reach ``level``."""
    needed = math.ceil(1.0 / level - 1e-9) - 1
    return (2 if needed <= _TYPICAL_HELD_OUT else 3) * needed
