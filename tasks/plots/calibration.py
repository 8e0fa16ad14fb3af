"""Calibration: predicted quantiles and what falls below them, PIT values, counts, and the interpreter's reading."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from congruence.kernels.arrays import effective_rows, require_weights
from congruence.kernels.conditional_calibration.local_reading import LocalDistribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.marginal_calibration import CountFrequencies, calibration_error_of_pit, reliability_curve
from congruence.kernels.pit import require_pit
from congruence.kernels.pit_interpreter.interpretation import Interpretation
from congruence.tasks.plots.maps import show_image
from congruence.tasks.plots.style import BLUE, GREEN, INK, MUTED, ORANGE, RED, dress, dressed, figure_or_new, legend
from congruence.tasks.sentences.calibration import interpretation_sentence

_ASKED = "predicted probability of an outcome at most this high"
_TITLE_WIDTH = 105
_TITLE_LINES = 4
_LEAST_P = 0.001


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


def pit_interpretation(interpretation: Interpretation, *, figure: Figure | None = None) -> Figure:
    """The PIT histogram and what it says of the targets; the verdict is the title.

    Left: the PIT histogram with its reconstruction. Right: the estimated data-generating density with its resampling
    interval against the predictive one.

    Args:
        interpretation: of PIT values, from ``interpret_pit``.
        figure: to draw on; by default a new one.
    """
    figure = figure_or_new(figure, 10.0, 4.4)
    left, right = figure.subplots(1, 2)

    distance, sampling = interpretation.reconstruction_distance, interpretation.sampling_distance
    title = f"n = {interpretation.rows:,}; total variation {distance:.3f} (sampling alone {sampling:.3f})"
    dress(left, title, "PIT value", "density")
    edges = np.linspace(0.0, 1.0, len(interpretation.histogram) + 1)
    left.stairs(interpretation.histogram, edges, fill=True, color=BLUE, alpha=0.3, label="PIT histogram")
    left.stairs(interpretation.reconstruction, edges, color=ORANGE, linewidth=1.8, label="reconstruction")
    left.axhline(1.0, color=MUTED, linestyle=":", linewidth=1.0, label="calibrated")
    left.set(xlim=(0.0, 1.0), ylim=(0.0, None))
    legend(left)

    p_value = interpretation.uniformity.p_value
    said = f"p = {p_value:.2g}" if p_value >= _LEAST_P else f"p < {_LEAST_P:g}"
    dress(right, f"uniformity: {said}", "predictive standard deviations", "density")
    support = interpretation.support
    predictive = np.exp(-0.5 * support**2) / np.sqrt(2.0 * np.pi)
    low, high = interpretation.density_low, interpretation.density_high
    right.fill_between(support, low, high, color=ORANGE, alpha=0.25, linewidth=0)
    right.plot(support, interpretation.density, color=ORANGE, linewidth=1.8, label="data-generating")
    right.plot(support, predictive, color=BLUE, linestyle="--", label="predictive")
    right.set(xlim=(-4.0, 4.0), ylim=(0.0, None))
    legend(right)

    sentence = interpretation_sentence(interpretation)
    lines = textwrap.wrap(sentence, _TITLE_WIDTH, max_lines=_TITLE_LINES, placeholder=" ...")
    figure.suptitle("\n".join(lines), fontsize=11, color=INK)
    return figure
