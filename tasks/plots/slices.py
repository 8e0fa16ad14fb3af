"""An evaluation's CCE and calibration by slice."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.group_reading import GroupReading, group_readings
from congruence.kernels.plots.by_slice import FEWEST_ROWS, SLICES, Slice, slice_panels
from congruence.kernels.plots.style import shorten
from congruence.tasks.scores.evaluation import Evaluation
from congruence.tasks.scores.summary import slice_groups

_NAME_LETTERS, _VALUE_LETTERS = 20, 28


def cce_by_slice(evaluation: Evaluation) -> Figure:
    """``plots.cce_by_slice`` of the evaluation's slices, of which there are some: the highest."""
    table = evaluation.slices
    readings, q_values = slice_readings(evaluation)
    parts = []
    for (_, row), excess in zip(table.iterrows(), table["cce_excess"].tolist(), strict=True):
        key = (str(row["slice"]), str(row["value"]))
        name = f"{shorten(key[0], _NAME_LETTERS)} = {shorten(key[1], _VALUE_LETTERS)}"
        parts.append(Slice(name, int(row["rows"]), excess, readings.get(key), q_values.get(key, 1.0)))
    whole = evaluation.metrics.get("cce_excess")
    value = None if whole is None else whole.value
    return slice_panels(parts, whole=value, most=SLICES, label=evaluation.model.label)


def slice_readings(
    evaluation: Evaluation,
) -> tuple[dict[tuple[str, str], GroupReading], dict[tuple[str, str], float]]:
    """What PIT values say of each slice of 30 rows or more, by slice column and value, and q-values over them."""
    scores, slices = evaluation.valid_scores, evaluation.slices
    if "pit" not in scores:
        return {}, {}
    groups: dict[str, Array] = {}
    keys: dict[str, tuple[str, str]] = {}
    for column in dict.fromkeys(slices["slice"]):
        if column not in scores:
            continue
        codes, values = slice_groups(scores[column])
        for code, value in enumerate(values):
            rows = np.flatnonzero(codes == code)
            if len(rows) >= FEWEST_ROWS:
                keys[f"{column}\n{value}"] = (str(column), str(value))
                groups[f"{column}\n{value}"] = rows
    readings, q_values = group_readings(scores["pit"].to_numpy(float), groups)
    return {keys[name]: found for name, found in readings.items()}, {keys[name]: q for name, q in q_values.items()}
