"""How often each count was observed and predicted, on the scale of square roots (Kleiber and Zeileis 2016)."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from congruence.kernels.calibration.frequencies import CountFrequencies
from congruence.kernels.plots.style import BLUE, GREEN, INK, dressed, legend


def rootogram(
    frequencies: CountFrequencies, *, title: str = "Counts observed and predicted", axes: Axes | None = None
) -> Axes:
    """Bars of the observed frequencies, a line of the expected ones, and the band of a version that is true.

    A square root has nearly the same spread whatever the frequency, so rare counts can be judged beside common ones.

    Args:
        frequencies: from ``count_frequencies(y, predictive)``.
        title: of the picture.
        axes: to draw on; by default those of a new figure.
    """
    found = frequencies
    axes = dressed(axes, title, "count", "square root of the number of rows")
    places = np.arange(len(found.starts))
    axes.bar(places, np.sqrt(found.observed), width=0.85, color=BLUE, alpha=0.6, label="observed")
    low = np.sqrt(np.maximum(found.expected - 1.96 * found.std, 0.0))
    high = np.sqrt(found.expected + 1.96 * found.std)
    axes.fill_between(places, low, high, color=GREEN, alpha=0.3, linewidth=0, label="95 % if the version is true")
    axes.plot(places, np.sqrt(found.expected), color=GREEN, linewidth=1.8, marker="o", markersize=3, label="expected")
    names = [f"{start:.0f}" for start in found.starts]
    names[-1] += "+"
    step = max(1, len(places) // 12)
    shown = sorted({*places[::step].tolist(), int(places[-1])})
    axes.set_xticks(shown, [names[place] for place in shown])
    axes.set_ylim(bottom=0.0)
    axes.tick_params(axis="x", colors=INK)
    legend(axes)
    return axes
