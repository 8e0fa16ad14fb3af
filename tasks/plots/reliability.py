"""Marginal calibration: how often outcomes fall below each predicted quantile, and how PIT values are spread."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.regression import reliability_curve
from congruence.kernels.errors import InvalidInputError
from congruence.tasks.plots.style import BLUE, INK, MUTED, figure_of, legend, new_axes
from congruence.tasks.scores.evaluation import Evaluation


def pit_of(evaluation: Evaluation) -> Array:
    """The PIT values of the valid rows, (v,).

    Raises:
        InvalidInputError: the scores have no ``pit`` column.
    """
    if "pit" not in evaluation.scores:
        raise InvalidInputError("scores: no column pit; this evaluation has no probability integral transform")
    return evaluation.valid_scores["pit"].to_numpy(float)


def reliability_diagram(evaluation: Evaluation, *, levels: int = 50) -> Figure:
    """Observed share of outcomes at or below each predicted quantile, with the 95 % band of a calibrated model."""
    pit = pit_of(evaluation)
    expected, observed = reliability_curve(pit, levels=levels)
    band = 1.96 * np.sqrt(expected * (1.0 - expected) / len(pit))
    title, asked = f"Reliability of {evaluation.model.label}", "predicted probability of an outcome at most this high"
    axes = new_axes(title, asked, "share of outcomes that were", width=4.8, height=4.6)
    axes.fill_between(expected, expected - band, expected + band, color=MUTED, alpha=0.25, linewidth=0,
                      label="95 % band if calibrated")  # fmt: skip
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="--")
    ece = evaluation.metrics.get("ece")
    axes.plot(expected, observed, color=BLUE, linewidth=2, label="this version" + (f", ECE {ece}" if ece else ""))
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    legend(axes, loc="upper left")
    return figure_of(axes)


def pit_histogram(evaluation: Evaluation, *, bins: int = 20) -> Figure:
    """Density of the PIT values, with the band that 95 % of bars stay in if the model is calibrated."""
    pit = pit_of(evaluation)
    density, edges = np.histogram(pit, bins=bins, range=(0.0, 1.0), density=True)
    error = 1.96 * np.sqrt((bins - 1.0) / len(pit))
    axes = new_axes(
        f"PIT histogram of {evaluation.model.label}",
        "PIT: predicted probability of the outcome or less",
        "density (1 if calibrated)",
    )
    axes.stairs(density, edges, fill=True, color=BLUE, alpha=0.75)
    axes.vlines(edges[1:-1], 0.0, np.minimum(density[:-1], density[1:]), color="white", linewidth=1.0)
    axes.axhspan(max(0.0, 1.0 - error), 1.0 + error, color=MUTED, alpha=0.25, linewidth=0, label="95 % if calibrated")
    axes.axhline(1.0, color=INK, linewidth=1, linestyle="--")
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0.0)
    legend(axes)
    return figure_of(axes)
