"""CCE and calibration by slice: which parts of the split a version fits and which it does not."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.local_reading import GroupReading, group_readings
from congruence.kernels.errors import InvalidInputError
from congruence.tasks.plots.style import BLUE, INK, MUTED, dress, new_figure, shorten
from congruence.tasks.scores.evaluation import Evaluation
from congruence.tasks.scores.summary import slice_labels

SLICES = 30
FEWEST_ROWS = 30  # for an interval of the shift and of the factor to say something
_LEVEL = 0.05
_NAME_LETTERS, _VALUE_LETTERS = 20, 28


def cce_by_slice(evaluation: Evaluation, *, slices: int = SLICES) -> Figure:
    """Excess CCE of each slice (the ``slices`` highest) and, where there are PIT values, its fault with 95 % intervals.

    The excess is the root of the mean squared CCE less what is expected of a true version, so slices of few rows and of
    many compare. Points of a slice share the targets of the same reference rows, so it has no interval of its own; the
    PIT values beside it are independent, and their shift and spread factor have one.

    Raises:
        InvalidInputError: the evaluation has no slices.
    """
    table = evaluation.slices
    if table.empty:
        raise InvalidInputError("slices: this evaluation has none; name slice columns in the split's settings")
    if "cce_mean" not in table:
        raise InvalidInputError(f"slices: no column cce_mean; there are {', '.join(map(str, table.columns))}")
    total = len(table)
    table = table.assign(excess=_excess(table))
    table = table.sort_values("excess", ascending=False, kind="stable").head(slices).iloc[::-1]
    readings, q_values = slice_readings(evaluation)
    panels = 3 if readings else 1
    names = [f"{_name(row)}  ({row['rows']:,})" for _, row in table.iterrows()]
    letters = max(len(name) for name in names)
    figure = new_figure(3.6 + 0.06 * letters + 2.3 * (panels - 1), 1.8 + 0.24 * len(table))
    axes = figure.subplots(1, panels, squeeze=False)[0]
    _excess_panel(axes[0], evaluation, table["excess"].to_numpy(float))
    axes[0].set_yticks(np.arange(len(table)), names)
    if readings:
        keys = [(str(row["slice"]), str(row["value"])) for _, row in table.iterrows()]
        _interval_panel(axes[1], "shift, in predicted spreads", 0.0, keys, readings, q_values)
        _interval_panel(axes[2], "targets' spread / predicted", 1.0, keys, readings, q_values)
    for panel in axes:
        panel.set_ylim(-0.6, len(table) - 0.4)
        panel.grid(visible=False, axis="y")
    kept = "" if total == len(table) else f", the {len(table)} highest of {total:,}"
    figure.suptitle(f"By slice{kept}: {evaluation.model.label}", x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


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
        codes, values = pd.factorize(slice_labels(scores[column]), sort=True)
        for code, value in enumerate(values):
            rows = np.flatnonzero(codes == code)
            if len(rows) >= FEWEST_ROWS:
                keys[f"{column}\n{value}"] = (str(column), str(value))
                groups[f"{column}\n{value}"] = rows
    readings, q_values = group_readings(scores["pit"].to_numpy(float), groups)
    return {keys[name]: found for name, found in readings.items()}, {keys[name]: q for name, q in q_values.items()}


def _excess(table: pd.DataFrame) -> Array:
    if "cce_excess" in table:
        return table["cce_excess"].to_numpy(float)
    floor = table["cce_noise_floor"].to_numpy(float) if "cce_noise_floor" in table else 0.0
    return np.asarray(np.sqrt(np.maximum(table["cce_mean"].to_numpy(float) ** 2 - floor**2, 0.0)))


def _name(row: pd.Series) -> str:
    return f"{shorten(str(row['slice']), _NAME_LETTERS)} = {shorten(str(row['value']), _VALUE_LETTERS)}"


def _excess_panel(axes: Axes, evaluation: Evaluation, excess: Array) -> None:
    dress(axes, "", "excess CCE over a true version's", "")
    axes.barh(np.arange(len(excess)), excess, color=BLUE, alpha=0.75, height=0.7)
    whole = evaluation.metrics.get("cce_excess")
    if whole is not None:
        axes.axvline(whole.value, color=INK, linewidth=1.2, linestyle="--")
        axes.set_title(f"dashed: whole split {whole.value:.3g}", fontsize=8.5, loc="left", color=INK)
    axes.set_xlim(left=0.0)


def _interval_panel(
    axes: Axes,
    label: str,
    right: float,
    keys: list[tuple[str, str]],
    readings: dict[tuple[str, str], GroupReading],
    q_values: dict[tuple[str, str], float],
) -> None:
    """Dots with 95 % intervals; grey where chance explains what is seen."""
    dress(axes, "", label, "")
    axes.axvline(right, color=MUTED, linewidth=1.0)
    for place, key in enumerate(keys):
        if key not in readings:
            continue
        found = readings[key]
        value, ends = (found.shift, found.shift_interval) if right == 0.0 else (found.factor, found.factor_interval)
        colour = BLUE if q_values[key] <= _LEVEL else MUTED
        axes.plot(ends, [place, place], color=colour, alpha=0.6, linewidth=2.5, solid_capstyle="butt")
        axes.plot(value, place, "o", color=colour, markersize=4)
    axes.set_yticks([])
