"""CCE by slice: which parts of the split a version fits and which it does not."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.plots.style import BLUE, GREEN, INK, figure_of, new_axes, shorten
from congruence.tasks.scores.evaluation import Evaluation

SLICES = 30


def cce_by_slice(evaluation: Evaluation, *, slices: int = SLICES) -> Figure:
    """Mean CCE of each slice (the ``slices`` highest), with its noise floor and the mean over the split.

    Raises:
        InvalidInputError: the evaluation has no slices.
    """
    table = evaluation.slices
    if table.empty:
        raise InvalidInputError("slices: this evaluation has none; name slice columns in the split's settings")
    column = next((name for name in ("cce_mean", "cce") if name in table), None)
    if column is None:
        raise InvalidInputError(f"slices: no column cce_mean; there are {', '.join(map(str, table.columns))}")
    total = len(table)
    table = table.sort_values(column, ascending=False, kind="stable").head(slices).iloc[::-1]
    names = [
        f"{shorten(str(row['slice']), 20)} = {shorten(str(row['value']), 28)}  ({row['rows']:,})"
        for _, row in table.iterrows()
    ]
    places = np.arange(len(table))
    kept = "" if total == len(table) else f", the {len(table)} highest of {total:,}"
    title, label = f"CCE by slice{kept}: {evaluation.model.label}", "mean CCE of the slice (number of its points)"
    axes = new_axes(title, label, "", height=1.8 + 0.24 * len(table))
    axes.barh(places, table[column].to_numpy(float), color=BLUE, alpha=0.75, height=0.7)
    if "cce_noise_floor" in table:
        floor = table["cce_noise_floor"].to_numpy(float)
        axes.plot(
            floor,
            places,
            "|",
            color=GREEN,
            markersize=11,
            markeredgewidth=2.2,
            label="root expected square of a true version",
        )
    if "cce_mean" in evaluation.metrics:
        mean = evaluation.metrics["cce_mean"].value
        axes.axvline(mean, color=INK, linewidth=1.2, linestyle="--", label=f"whole split {mean:.4g}")
    axes.set_yticks(places, names)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(-0.6, len(table) - 0.4)
    figure = figure_of(axes)
    figure.set_figwidth(figure.get_figwidth() + 0.06 * max(len(name) for name in names))
    figure.legend(loc="outside lower center", ncols=2, fontsize=8.5, frameon=False, labelcolor=INK)
    return figure
