"""The PIT histogram and its interpretation side by side (Podsztavek et al., 2024, figures 1 and 2)."""

from __future__ import annotations

import textwrap

import numpy as np
from matplotlib.figure import Figure

from congruence.kernels.pit_interpreter import Interpretation
from congruence.kernels.plots.style import BLUE, INK, MUTED, ORANGE, dress, figure_or_new, legend

_TITLE_WIDTH = 105
_TITLE_LINES = 4
_LEAST_P = 0.001


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

    lines = textwrap.wrap(interpretation.verdict.text, _TITLE_WIDTH, max_lines=_TITLE_LINES, placeholder=" ...")
    figure.suptitle("\n".join(lines), fontsize=11, color=INK)
    return figure
