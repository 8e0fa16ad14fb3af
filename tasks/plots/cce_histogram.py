"""How CCE is spread over the points, beside what a perfect model would score there."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from congruence.kernels.arrays import Array
from congruence.tasks.plots.style import BLUE, FLOOR_LABEL, GREEN, INK, figure_of, legend, new_axes
from congruence.tasks.scores.evaluation import Evaluation


def cce_histogram(evaluation: Evaluation, *, bins: int = 50) -> Figure:
    """Histogram of CCE over the valid rows, its mean, and the band in which the mean of a true version would lie.

    The noise floor of a point is the root mean square of what a true version would score there, so a true version's CCE
    is spread around it.
    """
    scores = evaluation.valid_scores
    cce, floor = scores["cce"].to_numpy(float), scores["cce_noise_floor"].to_numpy(float)
    edges = np.linspace(0.0, max(float(np.quantile(cce, 0.999)), float(floor.max())) * 1.02 or 1.0, bins + 1)
    title = f"CCE of {evaluation.model.label} on {evaluation.split.name}"
    axes = new_axes(title, "CCE at a point, in the unit-free distance of the protocol", "share of points")
    axes.stairs(_shares(cce, edges), edges, fill=True, color=BLUE, alpha=0.75, label="this version")
    axes.stairs(_shares(floor, edges), edges, color=GREEN, linewidth=1.6, label=FLOOR_LABEL)
    axes.axvline(float(cce.mean()), color=INK, linewidth=1.2, label=f"mean CCE {cce.mean():.4g}")
    expected = evaluation.metrics.get("cce_expected")
    if expected is not None and expected.low is not None and expected.high is not None:
        label = f"mean of a true version {expected.value:.3g} [{expected.low:.3g}, {expected.high:.3g}]"
        axes.axvspan(expected.low, expected.high, color=GREEN, alpha=0.25, label=label)
    axes.set_xlim(0.0, edges[-1])
    legend(axes)
    return figure_of(axes)


def _shares(values: Array, edges: Array) -> Array:
    """The share of the values in each bin; those beyond the last edge are in the last bin."""
    return np.asarray(np.histogram(np.minimum(values, edges[-1]), edges)[0] / len(values))
