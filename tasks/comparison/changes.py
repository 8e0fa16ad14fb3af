"""In what a version is better or worse calibrated than another, and where, in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.reading import group_reading
from congruence.kernels.pit import ORDERS
from congruence.kernels.verdict import SIGNIFICANCE
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.scores.evaluation import verdict_of
from congruence.tasks.scores.metrics.registry import REGION
from congruence.tasks.scores.summary import slice_groups
from congruence.tasks.sentences.calibration import Change, change, change_sentence

_SENTENCES = 3
_FEWEST = 30


def changes(first: ComparedVersion, second: ComparedVersion, rows: Array) -> tuple[str, ...]:
    """What ``first`` changes against ``second``: over all rows if that can be said, else on slices, else in regions.

    Nothing where neither version is wrong, or where an evaluation holds no regions or
    (under another seed) others.

    Args:
        first, second: the versions.
        rows: which rows are valid in both, (rows,).
    """
    if not any(verdict_of(version.metrics).is_wrong for version in (first, second)) or np.count_nonzero(rows) < _FEWEST:
        return ()
    if REGION not in first.scores or REGION not in second.scores:
        return ()
    regions, others = (version.scores[REGION].to_numpy()[rows].astype(str) for version in (first, second))
    if not np.array_equal(regions, others):
        return ()
    new, old = (version.scores["pit"].to_numpy(float)[rows] for version in (first, second))
    sliced = {name: first.scores[name][rows] for name in first.slices if name in first.scores}
    places = [place for name, labels in sliced.items() for place in _places(labels, f"{name} ")]
    of_regions = _places(pd.Series(regions), "")
    return _said(first.label, second.label, new, old, places or of_regions, of_regions)


Place = tuple[str, Array]


def _places(labels: pd.Series[Any], prefix: str) -> list[Place]:
    """Names and rows of the groups of enough rows."""
    codes, values = slice_groups(labels)
    found = [(f"{prefix}{value}", codes == code) for code, value in enumerate(values)]
    return [place for place in found if np.count_nonzero(place[1]) >= _FEWEST]


def _said(
    first: str, second: str, new: Array, old: Array, places: list[Place], regions: list[Place]
) -> tuple[str, ...]:
    """By PIT values (v,) of both; p-values are held against 5 % over all places that are named.

    ``regions`` are those over which an average may mix faults.
    """
    spread = ORDERS.index("spread")

    def mixing(pit: Array) -> float:
        found = [group_reading(pit, rows).fault.scores[0, spread] for _, rows in regions]
        return float(np.var(found)) if found else 0.0

    whole = [group_reading(pit, mixing=mixing(pit)) for pit in (old, new)]
    overall = change(*whole)
    if overall is not None:
        return (change_sentence(second, first, ["all rows"], overall),)
    changed: dict[tuple[bool, str], list[tuple[float, str, Change]]] = {}
    for name, rows in places:
        was, now = group_reading(old, rows), group_reading(new, rows)
        if min(was.p_value, now.p_value) * len(places) <= SIGNIFICANCE and (found := change(was, now)) is not None:
            size = abs(now.strength**2 - was.strength**2) * now.share
            changed.setdefault((found.better, found.fault), []).append((size, name, found))
    ordered = sorted(changed.values(), key=lambda alike: -sum(size for size, _, _ in alike))
    sentences = []
    for alike in ordered[:_SENTENCES]:
        alike.sort(key=lambda each: each[:2], reverse=True)
        sentences.append(change_sentence(second, first, [name for _, name, _ in alike], alike[0][2]))
    return tuple(sentences)
