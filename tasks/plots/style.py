"""One look for every plot, on figures of their own: nothing here touches pyplot's global state, so threads may draw."""

from __future__ import annotations

import io
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import TightLayoutEngine

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
_PADDING = 0.45  # of the font's size, around the figure and between its axes
_COMPRESSION = 2  # of PNG: a third less time than at 6 for files 4 % larger


class Shown:
    """What shows itself in a notebook, and can be saved: a figure, or axes on a figure of their own."""

    def _repr_png_(self) -> bytes:
        return png(figure_of(self))

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the picture to a file, whose ending says in which format, and return its path.

        Args:
            path: such as ``cce.png`` or ``cce.svg``.
            options: of Matplotlib's ``savefig``, such as ``dpi``.
        """
        figure_of(self).savefig(path, **options)
        return Path(path)


class ShownFigure(Shown, Figure):
    """A figure of ours."""


class ShownAxes(Shown, Axes):
    """Axes on a figure of their own."""


def new_figure(width: float = 6.4, height: float = 4.0) -> ShownFigure:
    """An empty figure that fits its contents.

    By the tight layout, which measures every text once: the constrained one does so twice, for half of the time that a
    picture takes.
    """
    # A rectangle, even the whole figure's, has everything measured again.
    layout = TightLayoutEngine(pad=_PADDING, rect=None)  # type: ignore[arg-type]
    figure = ShownFigure(figsize=(width, height), dpi=DPI, layout=layout, facecolor="white")
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
        axes = new_figure(width, height).add_subplot(axes_class=ShownAxes)
    dress(axes, title, x_label, y_label)
    return axes


def dress(axes: Axes, title: str = "", x_label: str = "", y_label: str = "") -> None:
    """Titles (wrapped to the width of the axes), labels, light grid, no box."""
    width = max(12, int(_TITLE_LETTERS * figure_of(axes).get_figwidth() * _share_of_width(axes)))
    lines = textwrap.wrap(title, width, max_lines=3, placeholder=" …")
    axes.set_title("\n".join(lines), loc="left", fontsize=11, color=INK, fontweight="bold")
    axes.set_xlabel(x_label, fontsize=9.5, color=INK)
    axes.set_ylabel(y_label, fontsize=9.5, color=INK)
    axes.tick_params(labelsize=8.5, colors=MUTED, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)
    axes.grid(visible=True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def _share_of_width(axes: Axes) -> float:
    """Of the figure's width, what the columns of ``axes`` in its grid take."""
    place = axes.get_subplotspec()
    if place is None:
        return 1.0
    grid = place.get_gridspec()
    widths = np.ones(grid.ncols) if grid.get_width_ratios() is None else np.asarray(grid.get_width_ratios(), float)
    return float(widths[place.colspan.start : place.colspan.stop].sum() / widths.sum())


def legend(axes: Axes, **options: object) -> None:
    """A small legend without a frame."""
    axes.legend(**{"fontsize": 8.5, "frameon": False, "labelcolor": INK, **options})


def figure_of(picture: Any) -> Figure:
    """The whole figure that axes lie on, or that a figure is."""
    figure = picture.get_figure(root=True)
    assert isinstance(figure, Figure)
    return figure


def shorten(text: str, letters: int) -> str:
    """``text`` with its middle left out where it is longer: names of versions differ at their ends."""
    if len(text) <= letters:
        return text
    tail = letters // 2
    return f"{text[: letters - tail - 1]}…{text[-tail:]}"


def png(figure: Figure) -> bytes:
    """The figure as PNG bytes."""
    buffer, canvas, layout = io.BytesIO(), FigureCanvasAgg(figure), figure.get_layout_engine()
    if layout is not None:  # here alone: for its sake ``savefig`` draws everything twice
        layout.execute(figure)
        figure.set_layout_engine("none")
    canvas.print_png(buffer, pil_kwargs={"compress_level": _COMPRESSION})  # type: ignore[no-untyped-call]
    if layout is not None:
        figure.set_layout_engine(layout)
    return buffer.getvalue()


def spread(rows: Array, limit: int) -> Array:
    """At most ``limit`` of ``rows``, evenly spaced, the same ones every time."""
    if len(rows) <= limit:
        return rows
    return np.asarray(rows[np.unique(np.linspace(0, len(rows) - 1, limit).astype(int))])
