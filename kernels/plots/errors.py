"""How CCE is spread over the points, beside what a perfect model would score there."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from congruence.kernels.arrays import Array
from congruence.kernels.congruence.expected import ExpectedCongruence
from congruence.kernels.plots.columns import Errors, errors_of
from congruence.kernels.plots.style import BLUE, FLOOR_LABEL, GREEN, INK, RED, dressed, legend


def congruence_histogram(
    result: Errors,
    *,
    expected: ExpectedCongruence | None = None,
    bins: int = 50,
    title: str = "CCE",
    axes: Axes | None = None,
) -> Axes:
    """Histogram of CCE over the points, its mean, and the band in which the mean of a true version would lie.

    The noise floor of a point is the root mean square of what a true version would score there, so a true version's CCE
    is spread around it.

    Args:
        result: CCE at m points, or its table.
        expected: of the mean if the version were true, as ``PreparedCongruence.expected_congruence`` has it.
        bins: of the histogram.
        title: of the picture.
        axes: to draw on; by default those of a new figure.

    Raises:
        InvalidInputError: neither a result nor a table with its columns.
    """
    cce, floor = errors_of(result)
    edges = np.linspace(0.0, max(float(np.quantile(cce, 0.999)), float(floor.max())) * 1.02 or 1.0, bins + 1)
    axes = dressed(axes, title, "CCE at a point, in the unit-free distance of the protocol", "share of points")
    axes.stairs(_shares(cce, edges), edges, fill=True, color=BLUE, alpha=0.75, label="this version")
    axes.stairs(_shares(floor, edges), edges, color=GREEN, linewidth=1.6, label=FLOOR_LABEL)
    axes.axvline(float(cce.mean()), color=INK, linewidth=1.2, label=f"mean CCE {cce.mean():.4g}")
    if expected is not None:
        label = f"mean of a true version {expected.mean:.3g} [{expected.low:.3g}, {expected.high:.3g}]"
        axes.axvspan(expected.low, expected.high, color=GREEN, alpha=0.25, label=label)
    axes.set_xlim(0.0, edges[-1])
    legend(axes)
    return axes


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


def _shares(values: Array, edges: Array) -> Array:
    """The share of the values in each bin; those beyond the last edge are in the last bin."""
    return np.asarray(np.histogram(np.minimum(values, edges[-1]), edges)[0] / len(values))
