"""The CCE of new inputs, with the threshold above which they are better withheld."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from congruence.kernels.arrays import Array
from congruence.tasks.plots.style import BLUE, FLOOR_LABEL, GREEN, RED, figure_of, legend, new_axes


def inputs_figure(cce: Array, floor: Array, threshold: float | None, title: str, *, bins: int = 40) -> Figure:
    """Histograms of CCE and of the noise floor over the inputs, and the threshold where there is one."""
    largest = max(float(np.max(cce)), float(np.max(floor)))
    edges = np.linspace(0.0, largest * 1.02 or 1.0, bins + 1).tolist()
    axes = new_axes(title, "CCE of an input, in the unit-free distance of the protocol", "number of inputs")
    axes.hist(cce, edges, color=BLUE, alpha=0.75, label="CCE")
    axes.hist(floor, edges, color=GREEN, histtype="step", linewidth=1.6, label=FLOOR_LABEL)
    if threshold is not None:
        axes.axvline(threshold, color=RED, linewidth=1.6, label=f"withhold above {threshold:.4g}")
    legend(axes)
    return figure_of(axes)
