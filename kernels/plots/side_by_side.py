"""Versions side by side: metrics with their intervals."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from congruence.kernels.errors import InvalidInputError
from congruence.kernels.plots.style import BLUE, GREEN, MUTED, dress, figure_or_new, shorten

LETTERS = 36
_READING = "dot: value; bar: 95 % confidence interval; green: what 95 % of true versions have"


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
