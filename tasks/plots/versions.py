"""Versions side by side: every headline metric with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.plots.style import BLUE, GREEN, MUTED, dress, new_figure, shorten
from congruence.tasks.scores.evaluation import Metric
from congruence.tasks.scores.meanings import BAND, COMPARED, meaning

SHOWN = tuple(name for name in COMPARED if name != "rmse")  # which says what the mean absolute error says
_LABEL = 36
_READING = f"dot: value; bar: 95 % confidence interval; green: {BAND}; lower is better"


def versions_figure(metrics: Mapping[str, Mapping[str, Metric]], names: Sequence[str] = SHOWN) -> Figure:
    """One panel per metric, one line per version (lower is better everywhere).

    Behind the mean CCE lies the band in which it would be if the version were true.

    Args:
        metrics: metrics by name, by the label of the version.
        names: the metrics to show; those that no version has are left out.

    Raises:
        InvalidInputError: no version has any of them.
    """
    shown = [name for name in names if any(name in values for values in metrics.values())]
    if not shown:
        raise InvalidInputError(f"metrics: no version has any of {', '.join(names)}")
    labels = list(metrics)
    longest = max(min(len(label), _LABEL) for label in labels)
    figure = new_figure(0.8 + 0.07 * longest + 2.2 * len(shown), 1.6 + 0.32 * len(labels))
    for place, (axes, name) in enumerate(zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True)):
        dress(axes, meaning(name).label)
        _panel(axes, name, [metrics[label] for label in labels])
        axes.set_yticks(np.arange(len(labels)), [shorten(label, _LABEL) for label in labels] if place == 0 else [])
        axes.set_ylim(len(labels) - 0.5, -0.5)
        if name == "cce_mean" and all(metrics[label][name].value > 0.0 for label in labels if name in metrics[label]):
            # A version that ignores its input is tens of times further from the truth than one that is true.
            axes.set_xscale("log")
        else:
            axes.locator_params(axis="x", nbins=4)
    figure.supxlabel(_READING, fontsize=8.5, color=MUTED, x=0.01, ha="left")
    return figure


def _panel(axes: Axes, name: str, versions: Sequence[Mapping[str, Metric]]) -> None:
    for row, metrics in enumerate(versions):
        if name not in metrics:
            continue
        metric = metrics[name]
        if metric.low is not None and metric.high is not None:
            axes.plot([metric.low, metric.high], [row, row], color=BLUE, alpha=0.5, linewidth=3, solid_capstyle="butt")
        axes.plot(metric.value, row, "o", color=BLUE, markersize=5)
        expected = metrics.get("cce_expected")
        if name == "cce_mean" and expected is not None and expected.low is not None and expected.high is not None:
            axes.plot(
                [expected.low, expected.high],
                [row, row],
                color=GREEN,
                alpha=0.35,
                linewidth=11,
                solid_capstyle="butt",
                zorder=0.5,
            )
