"""Side by side: slices of a split, versions, and what withholding new inputs gains."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.reading import GroupReading, group_readings
from congruence.kernels.engine.results import excess_over
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.trust.judgement import RejectionCurve
from congruence.tasks.plots.style import (
    BLUE,
    BY_CCE,
    FLOOR_LABEL,
    GREEN,
    INK,
    MUTED,
    RED,
    Errors,
    draw_withholding,
    dress,
    dressed,
    errors_of,
    figure_or_new,
    legend,
    require_rows,
    shorten,
)
from congruence.tasks.scores.evaluation import Evaluation, MetricValue
from congruence.tasks.scores.metrics.definitions import BAND
from congruence.tasks.scores.metrics.registry import metric_of, shown
from congruence.tasks.scores.points import slice_groups

SLICES = 20
FEWEST_ROWS = 30  # for an interval of the shift and of the factor to say something
LETTERS = 36
_LEVEL = 0.05
_READING = "dot: value; bar: 95 % confidence interval; green: what 95 % of true versions have"
_SLICE_LETTERS = 51


@dataclass(frozen=True)
class Slice:
    """A part of a split: its mean CCE beyond what is expected of a true version (``excess_over``).

    And what its PIT values say, where there are some, with the q-value of that over all slices.
    """

    name: str
    rows: int
    excess: float
    reading: GroupReading | None = None
    q_value: float = 1.0


def cce_by_slice(
    result: Errors,
    slices: Mapping[str, Any],
    *,
    pit: Any | None = None,
    members: int | None = None,
    most: int = SLICES,
    label: str = "",
    figure: Figure | None = None,
) -> Figure:
    """Excess CCE of each slice (the ``most`` highest) and, where there are PIT values, its fault with 95 % intervals.

    The excess is what the mean CCE has beyond the mean noise floor (``excess_over``), so slices of few rows and of many
    compare. Points of a slice share the targets of the same reference rows, so it has no interval of its own; the
    PIT values beside it are independent, and their shift and spread factor have one.

    Args:
        result: CCE at n labelled points, or its table.
        slices: row numbers or a mask (n,) of each slice, by its name.
        pit: PIT values of the n points, (n,); slices of 30 rows or more are read.
        members: of an ensemble whose ranks the PIT values are: shifts and factors are then of the distribution that its
            members are drawn from.
        most: slices that are drawn.
        label: of the version, for the title.
        figure: to draw on; by default a new one.

    Raises:
        InvalidInputError: no slices, an empty one, or rows that there are not.
    """
    cce, floor = errors_of(result)
    rows = {name: rows_of(chosen, name, len(cce)) for name, chosen in slices.items()}
    readings: dict[str, GroupReading] = {}
    q_values: dict[str, float] = {}
    if pit is not None:
        values = require_rows(np.asarray(pit), "pit", len(cce))
        large = {name: chosen for name, chosen in rows.items() if len(chosen) >= FEWEST_ROWS}
        readings, q_values = group_readings(values, large, members=members)
    found = [
        Slice(name, len(at), _excess(cce[at], floor[at]), readings.get(name), q_values.get(name, 1.0))
        for name, at in rows.items()
    ]
    return slice_panels(found, whole=_excess(cce, floor), most=most, label=label, figure=figure)


def rows_of(chosen: Any, name: str, points: int) -> Array:
    """Row numbers from row numbers or a mask.

    Raises:
        InvalidInputError: there are none, or some that the points have not.
    """
    rows = np.asarray(chosen)
    if rows.dtype == bool:
        rows = np.flatnonzero(require_rows(rows, f"slices[{name!r}]", points))
    if rows.ndim != 1 or len(rows) == 0 or rows.dtype.kind not in "iu":
        raise InvalidInputError(f"slices[{name!r}]: expected one or more row numbers, or a mask with True in it")
    if rows.min() < 0 or rows.max() >= points:
        raise InvalidInputError(f"slices[{name!r}]: rows {rows.min()} to {rows.max()}, expected 0 to {points - 1}")
    return rows


def _excess(cce: Array, floor: Array) -> float:
    return excess_over(float(np.mean(cce)), float(np.mean(floor)))


def slice_panels(
    slices: Sequence[Slice], *, whole: float | None, most: int, label: str, figure: Figure | None = None
) -> Figure:
    """The picture of ``cce_by_slice`` from what is known of each slice.

    Raises:
        InvalidInputError: there are none.
    """
    if not slices:
        raise InvalidInputError("slices: there are none; give row numbers or a mask by the name of each slice")
    excess = np.array([found.excess for found in slices])
    shown = [slices[place] for place in np.argsort(-excess, kind="stable")[:most][::-1]]
    is_read = any(found.reading is not None for found in shown)
    panels = 3 if is_read else 1
    names = [f"{shorten(found.name, _SLICE_LETTERS)}  ({found.rows:,})" for found in shown]
    letters = max(len(name) for name in names)
    figure = figure_or_new(figure, 3.6 + 0.06 * letters + 2.3 * (panels - 1), 1.8 + 0.24 * len(shown))
    axes = figure.subplots(1, panels, squeeze=False)[0]
    dress(axes[0], "", "excess CCE over a true version's", "")
    axes[0].barh(np.arange(len(shown)), [found.excess for found in shown], color=BLUE, alpha=0.75, height=0.7)
    if whole is not None:
        axes[0].axvline(whole, color=INK, linewidth=1.2, linestyle="--")
        axes[0].set_title(f"dashed: whole split {whole:.3g}", fontsize=8.5, loc="left", color=INK)
    axes[0].set_xlim(left=0.0)
    axes[0].set_yticks(np.arange(len(shown)), names)
    if is_read:
        _interval_panel(axes[1], "shift, in predicted spreads", 0.0, shown)
        _interval_panel(axes[2], "targets' spread / predicted", 1.0, shown)
    for panel in axes:
        panel.set_ylim(-0.6, len(shown) - 0.4)
        panel.grid(visible=False, axis="y")
    kept = "By slice" if len(shown) == len(slices) else f"By slice, the {len(shown)} highest of {len(slices):,}"
    whole_title = f"{kept}: {label}" if label else kept
    figure.suptitle(whole_title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def _interval_panel(axes: Axes, label: str, right: float, slices: Sequence[Slice]) -> None:
    """Dots with 95 % intervals; grey where chance explains what is seen."""
    dress(axes, "", label, "")
    axes.axvline(right, color=MUTED, linewidth=1.0)
    read = [(place, part, part.reading) for place, part in enumerate(slices) if part.reading is not None]
    places = [place for place, _, _ in read]
    colours = [BLUE if part.q_value <= _LEVEL else MUTED for _, part, _ in read]
    shifts = right == 0.0
    low, high = np.array([found.shift_interval if shifts else found.factor_interval for _, _, found in read]).T
    axes.hlines(places, low, high, colors=colours, alpha=0.6, linewidth=2.5)
    values = [found.shift if shifts else found.factor for _, _, found in read]
    axes.scatter(values, places, c=colours, s=16, zorder=3)
    axes.set_yticks([])


@dataclass(frozen=True)
class Measured:
    """One number of a version.

    Attributes:
        value: the number.
        interval: its confidence interval, where there is one.
        band: where the number lies if the version is true, where that is known.
    """

    value: float
    interval: tuple[float, float] | None = None
    band: tuple[float, float] | None = None


def versions(
    panels: Mapping[str, Mapping[str, Measured]],
    *,
    names: Sequence[str] | None = None,
    logarithmic: Collection[str] = (),
    note: str = _READING,
    figure: Figure | None = None,
) -> Figure:
    """One panel per metric, one line per version, each with its interval and the band of a true version.

    Args:
        panels: by the metric's name, the number of each version that has one.
        names: the versions in the order of the lines; by default those of the panels.
        logarithmic: the metrics drawn on a logarithmic scale, where all numbers are positive.
        note: what stands below.
        figure: to draw on; by default a new one.

    Raises:
        InvalidInputError: no panel, or no version in any.
    """
    labels = list(dict.fromkeys(name for panel in panels.values() for name in panel) if names is None else names)
    if not panels or not labels:
        raise InvalidInputError("panels: there is no number of any version; give {metric: {version: Measured(...)}}")
    longest = max(min(len(label), LETTERS) for label in labels)
    figure = figure_or_new(figure, 0.8 + 0.07 * longest + 2.2 * len(panels), 1.6 + 0.32 * len(labels))
    drawn = figure.subplots(1, len(panels), squeeze=False)[0]
    for place, (axes, (metric, panel)) in enumerate(zip(drawn, panels.items(), strict=True)):
        dress(axes, metric)
        for row, label in enumerate(labels):
            if label in panel:
                _line(axes, row, panel[label])
        axes.set_yticks(np.arange(len(labels)), [shorten(label, LETTERS) for label in labels] if place == 0 else [])
        axes.set_ylim(len(labels) - 0.5, -0.5)
        if metric in logarithmic and all(measured.value > 0.0 for measured in panel.values()):
            axes.set_xscale("log")
        else:
            axes.locator_params(axis="x", nbins=4)
    figure.supxlabel(note, fontsize=8.5, color=MUTED, x=0.01, ha="left")
    return figure


def _line(axes: Axes, row: int, measured: Measured) -> None:
    height = [row, row]
    if measured.interval is not None:
        axes.plot(list(measured.interval), height, color=BLUE, alpha=0.5, linewidth=3, solid_capstyle="butt")
    axes.plot(measured.value, row, "o", color=BLUE, markersize=5)
    if measured.band is not None:
        axes.plot(list(measured.band), height, color=GREEN, alpha=0.35, linewidth=11, solid_capstyle="butt", zorder=0.5)


SHOWN_SHARE = 0.9
"""Of the rows, in ``risk_coverage``: the last few are noise."""


def inputs_histogram(
    result: Errors,
    threshold: float | None = None,
    *,
    bins: int = 40,
    title: str = "CCE of the inputs",
    axes: Axes | None = None,
) -> Axes:
    """Histograms of CCE and of the noise floor over unlabelled inputs, and the threshold above which to withhold them.

    Args:
        result: CCE at m inputs (``query``), or its table.
        threshold: above which inputs are withheld, if any.
        bins: of the histogram.
        title: of the picture.
        axes: to draw on; by default those of a new figure.

    Raises:
        InvalidInputError: neither a result nor a table with its columns.
    """
    cce, floor = errors_of(result)
    largest = max(float(np.max(cce)), float(np.max(floor)))
    edges = np.linspace(0.0, largest * 1.02 or 1.0, bins + 1).tolist()
    axes = dressed(axes, title, "CCE of an input, in the unit-free distance of the protocol", "number of inputs")
    axes.hist(cce, edges, color=BLUE, alpha=0.75, label="CCE")
    axes.hist(floor, edges, color=GREEN, histtype="step", linewidth=1.6, label=FLOOR_LABEL)
    if threshold is not None:
        axes.axvline(threshold, color=RED, linewidth=1.6, label=f"withhold above {threshold:.4g}")
    legend(axes)
    return axes


def rejection_panel(
    curve: RejectionCurve, loss: str = "mean loss", *, title: str = "", axes: Axes | None = None
) -> Axes:
    """Mean loss of the kept points against the share withheld, highest CCE first, and under random rejection.

    Args:
        curve: from ``rejection_curve(criterion, loss)``.
        loss: what the loss is called.
        title: of the picture.
        axes: to draw on; by default those of a new figure.
    """
    axes = dressed(axes, "", "", "", width=3.4, height=3.4)
    draw_withholding(axes, {BY_CCE: curve}, loss, title)
    legend(axes)
    return axes


def risk_coverage(curves: Mapping[str, Mapping[str, RejectionCurve]]) -> Figure:
    """Mean loss of the rows that stay against the share withheld, one panel a loss, one line a way of withholding.

    Args:
        curves: by loss, then by what is withheld first.
    """
    figure = figure_or_new(None, 3.4 * len(curves), 3.8)
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (loss, by_criterion) in zip(panels, curves.items(), strict=True):
        draw_withholding(axes, by_criterion, f"mean {loss}", most=SHOWN_SHARE)
        legend(axes)
    figure.suptitle("Withholding on the labelled split, each row judged without its own target", x=0.01, ha="left")
    return figure


_OF_VERSIONS = f"dot: value; bar: 95 % confidence interval; green: {BAND}; lower is better"


_NAME_LETTERS, _VALUE_LETTERS = 20, 28


def slices_figure(evaluation: Evaluation) -> Figure:
    """``cce_by_slice`` of the evaluation's slices, of which there are some: the highest."""
    table = evaluation.slices
    readings, q_values = slice_readings(evaluation)
    parts = []
    for (_, row), excess in zip(table.iterrows(), table["cce_excess"].tolist(), strict=True):
        column, value = str(row["slice"]), str(row["value"])
        name, key = f"{shorten(column, _NAME_LETTERS)} = {shorten(value, _VALUE_LETTERS)}", f"{column}\n{value}"
        parts.append(Slice(name, int(row["rows"]), excess, readings.get(key), q_values.get(key, 1.0)))
    whole = evaluation.metrics.get("cce_excess")
    return slice_panels(parts, whole=None if whole is None else whole.value, most=SLICES, label=evaluation.model.label)


def slice_readings(evaluation: Evaluation) -> tuple[dict[str, GroupReading], dict[str, float]]:
    """What PIT values say of each slice of 30 rows or more, by slice column and value in two lines, and q-values.

    Nothing of rows that depend on each other, for which intervals of independent rows are too short. Q-values of a
    version that all tests together do not contradict are 1, as its page names no fault of a part.
    """
    scores = evaluation.valid_scores
    if "pit" not in scores or evaluation.has_dependent_rows:
        return {}, {}
    groups: dict[str, Array] = {}
    for column in dict.fromkeys(evaluation.slices["slice"]):
        if column in scores:
            codes, values = slice_groups(scores[column])
            groups |= {f"{column}\n{value}": np.flatnonzero(codes == code) for code, value in enumerate(values)}
    large = {name: rows for name, rows in groups.items() if len(rows) >= FEWEST_ROWS}
    members = None if evaluation.predictive is None else evaluation.predictive.members
    readings, q_values = group_readings(scores["pit"].to_numpy(float), large, members=members)
    return readings, q_values if evaluation.verdict.is_wrong else dict.fromkeys(q_values, 1.0)


def versions_figure(metrics: Mapping[str, Mapping[str, MetricValue]]) -> Figure:
    """``versions`` of the metrics by name, by the label of the version (lower is better everywhere).

    Behind the mean CCE lies the band in which it would be if the version were true.
    """
    names = [name for name in shown("compared") if any(name in values for values in metrics.values())]
    panels: dict[str, dict[str, Measured]] = {}
    for name in names:
        if name != "rmse":  # which says what the mean absolute error says
            panels[metric_of(name).label] = panel = {}
            for label, values in metrics.items():
                if name in values:
                    band = values["cce_expected"].interval if name == "cce_mean" and "cce_expected" in values else None
                    panel[label] = Measured(values[name].value, values[name].interval, band)
    # A version that ignores its input is tens of times further from the truth than one that is true.
    return versions(panels, names=list(metrics), logarithmic=[metric_of("cce_mean").label], note=_OF_VERSIONS)
