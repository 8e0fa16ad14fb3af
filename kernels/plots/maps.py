"""Where in the space of inputs a version fails, over a 2-D map of them: CCE, the fault, the scores of each order."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.wording import short_name
from congruence.kernels.congruence.expected import ExpectedCongruence
from congruence.kernels.plots.columns import Errors, Readings, errors_of, faults_of, place_of
from congruence.kernels.plots.style import (
    CYCLE,
    GRID,
    INK,
    MUTED,
    RED,
    SEQUENTIAL,
    dress,
    dressed,
    figure_of,
    figure_or_new,
    legend,
    spread,
)

POINTS = 20_000
SMALL_POINTS = 4_000
FARTHEST = 5.0
DIVERGING = "coolwarm"
_COMPONENTS = ("first principal component of the embeddings", "second principal component")
_SIDES = {(order, sign): short_name(order, sign) for order in ORDERS for sign in (1.0, -1.0)}


def embedding_map(
    place: Any,
    result: Errors,
    *,
    expected: ExpectedCongruence | None = None,
    points: int = POINTS,
    labels: tuple[str, str] | None = None,
    title: str = "CCE over the inputs",
    axes: Axes | None = None,
) -> Axes:
    """Scatter of a 2-D map coloured by CCE, the worst points drawn last; at most ``points`` points.

    Args:
        place: where each point lies, (m, 2): two features, or principal components.
        result: CCE at the m points, or its table.
        expected: of the mean if the version were true, a line in the colour bar; by default the mean noise floor.
        points: that are drawn, evenly spread over the rows.
        labels: names of two features; by default the axes are principal components, without numbers.
        title: of the picture.
        axes: to draw on; by default those of a new figure.

    Raises:
        InvalidInputError: a place that is no (m, 2) or not finite, or no result.
    """
    cce, floor = errors_of(result)
    place = place_of(place, len(cce))
    shown = spread(np.arange(len(cce)), points)
    shown = shown[np.argsort(cce[shown], kind="stable")]
    axes = dressed(axes, title, *(labels or _COMPONENTS), height=5.2)
    low, high = np.quantile(cce, [0.01, 0.99])
    dots = axes.scatter(
        place[shown, 0],
        place[shown, 1],
        c=cce[shown],
        s=_size(shown),
        cmap=SEQUENTIAL,
        vmin=low,
        vmax=high,
        linewidths=0,
    )
    bar = figure_of(axes).colorbar(dots, ax=axes, extend="both")
    line = float(floor.mean()) if expected is None else expected.mean
    _name_bar(bar, "CCE; the line is what a true version has on average")
    if low < line < high:
        bar.ax.axhline(line, color=RED, linewidth=2)
    if labels is None:
        _without_numbers(axes)
    if len(shown) < len(cce):
        axes.annotate(f"{len(shown):,} of {len(cce):,} points", (0, -0.02), xycoords="axes fraction", color=MUTED,
                      fontsize=8, va="top")  # fmt: skip
    return axes


def fault_map(
    place: Any,
    reading: Readings,
    *,
    points: int = POINTS,
    labels: tuple[str, str] | None = None,
    title: str = "What is wrong around each input",
    axes: Axes | None = None,
) -> Axes:
    """Scatter of a 2-D map coloured by the dominant fault where one is significant; at most ``points`` points.

    Args:
        place: where each point lies, (m, 2): two features, or principal components.
        reading: what is wrong around the m points, or its table.
        points: that are drawn, evenly spread over the rows.
        labels: names of two features; by default the axes are principal components, without numbers.
        title: of the picture.
        axes: to draw on; by default those of a new figure.

    Raises:
        InvalidInputError: a place that is no (m, 2) or not finite, or no reading.
    """
    fault, scores = faults_of(reading)
    place = place_of(place, len(fault))
    # The side of a fault is that of its own smoothed score.
    sign = np.zeros(len(fault))
    for order, column in zip(ORDERS, scores.T, strict=True):
        sign = np.where(fault == order, np.sign(column), sign)
    shown = spread(np.arange(len(fault)), points)
    axes = dressed(axes, title, *(labels or (_COMPONENTS[0], "second")), height=4.6)
    size = _size(shown)
    right = shown[fault[shown] == ""]
    axes.scatter(place[right, 0], place[right, 1], s=size, color=GRID, linewidths=0, label=_counted("no fault", right))
    for (order, side), colour in zip(_SIDES, CYCLE, strict=False):
        found = shown[(fault[shown] == order) & (sign[shown] == side)]
        if len(found):
            label = _counted(_SIDES[order, side], found)
            axes.scatter(place[found, 0], place[found, 1], s=size, color=colour, linewidths=0, label=label)
    if labels is None:
        _without_numbers(axes)
    legend(axes, loc="upper left", bbox_to_anchor=(1.0, 1.0), markerscale=2.0)
    return axes


def order_maps(place: Any, reading: Readings, *, points: int = SMALL_POINTS, figure: Figure | None = None) -> Figure:
    """Four small maps: the smoothed scores of each order in their standard deviations under the truth.

    Red: targets above the predictions, spread too small, skewed to the right, heavier tails; blue the other side.

    Args:
        place: where each point lies, (m, 2): two features, or principal components.
        reading: what is wrong around the m points, or its table.
        points: that are drawn, evenly spread over the rows.
        figure: to draw on; by default a new one.

    Raises:
        InvalidInputError: a place that is no (m, 2) or not finite, or no reading.
    """
    _, scores = faults_of(reading)
    place = place_of(place, len(scores))
    shown = spread(np.arange(len(place)), points)
    figure = figure_or_new(figure, 6.4, 5.2)
    size = float(np.clip(2500.0 / max(len(shown), 1), 1.5, 10.0))
    dots: PathCollection | None = None
    grid = figure.add_gridspec(2, 3, width_ratios=(1.0, 1.0, 0.05))
    for number, (order, column) in enumerate(zip(ORDERS, scores.T, strict=True)):
        axes = figure.add_subplot(grid[divmod(number, 2)])
        drawn = shown[np.argsort(np.abs(column[shown]), kind="stable")]
        dots = axes.scatter(place[drawn, 0], place[drawn, 1], c=column[drawn], s=size, cmap=DIVERGING, vmin=-FARTHEST,
                            vmax=FARTHEST, linewidths=0)  # fmt: skip
        dress(axes, f"{order}: red is {_SIDES[order, 1.0]}")
        axes.set_xticks([])
        axes.set_yticks([])
    assert dots is not None
    bar = figure.colorbar(dots, cax=figure.add_subplot(grid[:, 2]), extend="both")
    _name_bar(bar, "standard deviations of a version that is right")
    return figure


def _size(shown: Array) -> float:
    return float(np.clip(6000.0 / max(len(shown), 1), 2.0, 20.0))


def _name_bar(bar: Colorbar, label: str) -> None:
    bar.set_label(label, fontsize=9.5, color=INK)
    bar.ax.tick_params(labelsize=8.5)


def _without_numbers(axes: Axes) -> None:
    """Components have no unit."""
    axes.tick_params(labelbottom=False, labelleft=False)


def _counted(name: str, rows: Array) -> str:
    return f"{name}: {len(rows):,}"
