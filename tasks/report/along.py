"""Along each feature and slice: what is wrong in its bins, beside what a version that is right would show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit_scores import pit_scores
from congruence.kernels.calibration.totals import actual_over_expected, has_total
from congruence.kernels.conditional_calibration.regions import GroupCalibrations, calibration_by_group
from congruence.tasks.report.packing import LETTERS, rounded
from congruence.tasks.scores.segments import is_numeric
from congruence.tasks.scores.summary import slice_groups, tenths

FEW_VALUES = 12
"""Numbers of at most as many distinct values are taken value by value."""

MOST_FEATURES = 60


def bins_of(values: pd.Series[Any]) -> tuple[Array, list[str], list[float] | None]:
    """The bin of each row, the bins' names, and the edges between tenths of a column of numbers."""
    is_number = is_numeric(values)
    if not is_number or values.nunique() <= FEW_VALUES:
        codes, names = slice_groups(values)
        if is_number:
            order = np.argsort([float(name) if name != "missing" else np.inf for name in names], kind="stable")
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            codes, names = place[codes], names[order]
        return codes, [str(name)[:LETTERS] for name in names], None
    return tenths(values.to_numpy(float, na_value=np.nan))


def along_each(
    columns: pd.DataFrame, targets: Array, mean: Array, std: Array, pit: Array, *, counts: bool = False
) -> list[dict[str, Any]]:
    """A record a feature or slice, what explains most first; none of constant columns.

    Args:
        columns: features and slices of n rows.
        targets, mean, std, pit: of the same rows, (n,) each.
        counts: whether actual over expected is wanted, too.
    """
    scores = pit_scores(pit)
    found = []
    for name in list(columns.columns)[:MOST_FEATURES]:
        codes, labels, edges = bins_of(columns[name])
        if len(labels) < 2:
            continue
        read = calibration_by_group(codes, len(labels), targets, mean, std, scores)
        record = {"name": str(name), "bins": labels, "edges": edges, **_record(read)}
        if counts and has_total(targets, mean):
            record["ratio"] = _ends(actual_over_expected(codes, len(labels), targets, mean, std), "ratio")
        found.append(record)
    return sorted(found, key=lambda each: -each["explained"])


def _record(read: GroupCalibrations) -> dict[str, Any]:
    bands = {name: _ends(getattr(read, name), "value") for name in ("bias", "spread", "skew", "tails")}
    plain = {name: rounded(getattr(read, name)) for name in ("rows", "target", "mean")}
    return {"explained": float(f"{read.explained:.4g}"), **plain, **bands}


def _ends(found: object, value: str) -> list[list[float | None]]:
    """Value, low, high, and the ends of a right version's, by bin."""
    return [rounded(getattr(found, name)) for name in (value, "low", "high", "null_low", "null_high")]
