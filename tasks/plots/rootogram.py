"""How often each count was observed and predicted, on the scale of square roots (Kleiber and Zeileis 2016)."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from congruence.tasks.plots.style import BLUE, GREEN, INK, figure_of, legend, new_axes
from congruence.tasks.scores.counts import CountFit


def rootogram(fit: CountFit, label: str) -> Figure:
    """Bars of the observed frequencies, a line of the expected ones, and the band of a version that is true.

    A square root has nearly the same spread whatever the frequency, so rare counts can be judged beside common ones.
    """
    axes = new_axes(f"Counts observed and predicted: {label}", "count", "square root of the number of rows")
    places = np.arange(len(fit.starts))
    axes.bar(places, np.sqrt(fit.observed), width=0.85, color=BLUE, alpha=0.6, label="observed")
    low = np.sqrt(np.maximum(fit.expected - 1.96 * fit.std, 0.0))
    high = np.sqrt(fit.expected + 1.96 * fit.std)
    axes.fill_between(places, low, high, color=GREEN, alpha=0.3, linewidth=0, label="95 % if the version is true")
    axes.plot(places, np.sqrt(fit.expected), color=GREEN, linewidth=1.8, marker="o", markersize=3, label="expected")
    names = [f"{start:.0f}" for start in fit.starts]
    names[-1] += "+"
    step = max(1, len(places) // 12)
    shown = sorted({*places[::step].tolist(), int(places[-1])})
    axes.set_xticks(shown, [names[place] for place in shown])
    axes.set_ylim(bottom=0.0)
    axes.tick_params(axis="x", colors=INK)
    legend(axes)
    return figure_of(axes)
