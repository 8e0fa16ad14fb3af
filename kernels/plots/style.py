"""One look for every plot, on figures of their own: nothing here touches pyplot's global state, so threads may draw."""

from __future__ import annotations

import io
import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from congruence.kernels.arrays import Array

INK = "#1f2937"
MUTED = "#6b7280"
GRID = "#e5e7eb"
BLUE = "#2563eb"
ORANGE = "#ea580c"
GREEN = "#059669"
RED = "#dc2626"
CYCLE = (BLUE, ORANGE, GREEN, "#7c3aed", RED, "#0891b2", "#ca8a04", "#be185d", "#4d7c0f", "#475569")
SEQUENTIAL = "viridis"
DPI = 110
FLOOR_LABEL = "root expected square of a true version"
_TITLE_LETTERS = 9.5  # per inch


def new_figure(width: float = 6.4, height: float = 4.0) -> Figure:
    """An empty figure that fits its contents."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def figure_or_new(figure: Figure | None, width: float, height: float) -> Figure:
    """``figure``, or an empty one where there is none."""
    return new_figure(width, height) if figure is None else figure


def dressed(
    axes: Axes | None, title: str, x_label: str, y_label: str, *, width: float = 6.4, height: float = 4.0
) -> Axes:
    """``axes`` in our dress, or a pair of axes on a figure of its own where there is none (``axes.figure``)."""
    if axes is None:
        axes = new_figure(width, height).add_subplot()
    dress(axes, title, x_label, y_label)
    return axes


def dress(axes: Axes, title: str = "", x_label: str = "", y_label: str = "") -> None:
    """Titles (wrapped to the width of the axes), labels, light grid, no box."""
    place = axes.get_subplotspec()
    share = 1 if place is None else place.get_gridspec().ncols
    width = max(12, int(_TITLE_LETTERS * figure_of(axes).get_figwidth() / share))
    lines = textwrap.wrap(title, width, max_lines=3, placeholder=" …")
    axes.set_title("\n".join(lines), loc="left", fontsize=11, color=INK, fontweight="bold")
    axes.set_xlabel(x_label, fontsize=9.5, color=INK)
    axes.set_ylabel(y_label, fontsize=9.5, color=INK)
    axes.tick_params(labelsize=8.5, colors=MUTED, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)
    axes.grid(visible=True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def legend(axes: Axes, **options: object) -> None:
    """A small legend without a frame."""
    axes.legend(**{"fontsize": 8.5, "frameon": False, "labelcolor": INK, **options})


def figure_of(axes: Axes) -> Figure:
    """The whole figure that ``axes`` lie on."""
    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    return figure


def shorten(text: str, letters: int) -> str:
    """``text`` with its middle left out where it is longer: names of versions differ at their ends."""
    if len(text) <= letters:
        return text
    tail = letters // 2
    return f"{text[: letters - tail - 1]}…{text[-tail:]}"


def png(figure: Figure) -> bytes:
    """The figure as PNG bytes.

    Laid out and drawn once: ``savefig`` draws every figure twice, the first time for the layout alone.
    """
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    buffer = io.BytesIO()
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    Image.fromarray(pixels[..., :3]).save(buffer, format="png", dpi=(DPI, DPI))
    return buffer.getvalue()


def spread(rows: Array, limit: int) -> Array:
    """At most ``limit`` of ``rows``, evenly spaced, the same ones every time."""
    if len(rows) <= limit:
        return rows
    return np.asarray(rows[np.unique(np.linspace(0, len(rows) - 1, limit).astype(int))])
