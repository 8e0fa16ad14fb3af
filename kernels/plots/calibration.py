"""How often outcomes fall below each predicted quantile, on average and around one input; how PIT values are spread."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from congruence.kernels.calibration.pit import require_pit
from congruence.kernels.calibration.regression import calibration_error_of_pit, reliability_curve
from congruence.kernels.conditional_calibration.local_distribution import LocalDistribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.plots.images import show_image
from congruence.kernels.plots.style import BLUE, INK, MUTED, RED, dressed, legend
from congruence.kernels.weights import effective_rows, require_weights

_ASKED = "predicted probability of an outcome at most this high"


def pit_histogram(
    pit: Any,
    *,
    bins: int = 20,
    weights: Any | None = None,
    title: str = "PIT histogram",
    axes: Axes | None = None,
) -> Axes:
    """Density of the PIT values, with the band that 95 % of bars stay in if the model is calibrated.

    Args:
        pit: PIT values (n,), as ``pit_values(y, predictive)`` gives them.
        bins: of the histogram.
        weights: what each row counts, (n,); the band is that of their effective number.
        title: of the picture.
        axes: to draw on; by default those of a new figure.

    Raises:
        InvalidInputError: values that are no probabilities, by row.
    """
    values = require_pit(pit)
    rows = len(values) if weights is None else effective_rows(require_weights(weights, len(values)))
    density, edges = np.histogram(values, bins=bins, range=(0.0, 1.0), density=True, weights=weights)
    error = 1.96 * np.sqrt((bins - 1.0) / rows)
    axes = dressed(axes, title, "PIT: predicted probability of the outcome or less", "density (1 if calibrated)")
    axes.stairs(density, edges, fill=True, color=BLUE, alpha=0.75)
    axes.vlines(edges[1:-1], 0.0, np.minimum(density[:-1], density[1:]), color="white", linewidth=1.0)
    axes.axhspan(max(0.0, 1.0 - error), 1.0 + error, color=MUTED, alpha=0.25, linewidth=0, label="95 % if calibrated")
    axes.axhline(1.0, color=INK, linewidth=1, linestyle="--")
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0.0)
    legend(axes)
    return axes


def reliability_diagram(
    pit: Any,
    *,
    levels: int = 50,
    weights: Any | None = None,
    label: str | None = None,
    title: str = "Reliability",
    axes: Axes | None = None,
) -> Axes:
    """Observed share of outcomes at or below each predicted quantile, with the 95 % band of a calibrated model.

    Args:
        pit: PIT values (n,), as ``pit_values(y, predictive)`` gives them.
        levels: of the curve, evenly spaced.
        weights: what each row counts, (n,); the band is that of their effective number.
        label: of the curve; by default it says the expected calibration error at these levels.
        title: of the picture.
        axes: to draw on; by default those of a new figure.

    Raises:
        InvalidInputError: values that are no probabilities, by row; or no levels.
    """
    values = require_pit(pit)
    expected, observed = reliability_curve(values, levels=levels, row_weights=weights)
    rows = len(values) if weights is None else effective_rows(np.asarray(weights, dtype=np.float64))
    band = 1.96 * np.sqrt(expected * (1.0 - expected) / rows)
    if label is None:
        label = f"this version, ECE {calibration_error_of_pit(values, levels=levels, row_weights=weights):.4g}"
    axes = dressed(axes, title, _ASKED, "share of outcomes that were", width=4.8, height=4.6)
    axes.fill_between(expected, expected - band, expected + band, color=MUTED, alpha=0.25, linewidth=0,
                      label="95 % band if calibrated")  # fmt: skip
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="--")
    axes.plot(expected, observed, color=BLUE, linewidth=2, label=label)
    _unit_square(axes)
    return axes


def local_reliability(
    curve: LocalDistribution,
    point: int = 0,
    *,
    image: Any | None = None,
    note: str = "",
    title: str = "Reliability around one input",
    axes: Axes | None = None,
) -> Axes:
    """The P-P plot around one input, with the 95 % band of a version that is right there.

    Args:
        curve: the smoothed distribution of the PIT values at m points (``local_distribution``).
        point: which of them.
        image: of the input, drawn into the corner: a PIL image or an array (h, w) or (h, w, 3).
        note: what stands in the corner where there is no image, such as the row's number.
        title: of the picture.
        axes: to draw on; by default those of a new figure.

    Raises:
        InvalidInputError: there is no such point.
    """
    if not 0 <= point < len(curve.shares):
        raise InvalidInputError(f"point: is {point}, expected one of 0 to {len(curve.shares) - 1}")
    axes = dressed(axes, title, _ASKED, "share of outcomes around it that were", width=4.8, height=4.6)
    axes.fill_between(curve.levels, curve.lower[point], curve.upper[point], color=MUTED, alpha=0.25, linewidth=0,
                      label="95 % band if right")  # fmt: skip
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="--")
    axes.plot(curve.levels, curve.rearranged()[point], color=BLUE, linewidth=2, label="this version")
    _unit_square(axes)
    if image is not None:
        inset = axes.inset_axes((0.72, 0.04, 0.25, 0.25))
        show_image(inset, image)
        inset.spines[:].set_color(RED)
    elif note:
        axes.annotate(note, (0.97, 0.04), xycoords="axes fraction", ha="right", fontsize=8.5, color=INK)
    return axes


def _unit_square(axes: Axes) -> None:
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    legend(axes, loc="upper left")
