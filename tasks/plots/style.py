"""One look for every plot, on figures of their own: nothing here touches pyplot's global state, so threads may draw."""

from __future__ import annotations

import io
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import TightLayoutEngine
from matplotlib.text import Text
from matplotlib.transforms import ScaledTranslation
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
_PADDING = 0.45  # of the font's size, around the figure and between its axes
_COMPRESSION = 2  # of PNG: a third less time than at 6 for files 4 % larger
_TITLES: tuple[Literal["left", "center", "right"], ...] = ("left", "center", "right")


class Shown(ABC):
    """What shows itself in a notebook, and can be saved."""

    @abstractmethod
    def _whole(self) -> Figure:
        """The figure that it is, or is in."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self._whole().savefig(buffer, format="png")
        return buffer.getvalue()

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the picture to a file, whose ending says in which format, and return its path.

        Args:
            path: such as ``cce.png`` or ``cce.svg``.
            options: of Matplotlib's ``savefig``, such as ``dpi``.
        """
        self._whole().savefig(path, **options)
        return Path(path)


class ShownFigure(Shown, Figure):
    """A figure of ours."""

    def _whole(self) -> Figure:
        return self


class ShownAxes(Shown, Axes):
    """Axes on a figure of their own."""

    def _whole(self) -> Figure:
        return figure_of(self)


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
    """The figure as PNG bytes, and the last of the figure: its layout is held from here on.

    Laid out and drawn once: ``savefig`` draws every figure twice, the first time for the layout alone.
    """
    canvas = FigureCanvasAgg(figure)
    lay_out(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    buffer = io.BytesIO()
    size = (int(canvas.get_renderer().width), int(canvas.get_renderer().height))  # type: ignore[no-untyped-call]
    pixels = Image.frombuffer("RGBA", size, canvas.buffer_rgba(), "raw", "RGBA", 0, 1)  # type: ignore[no-untyped-call]
    pixels.convert("RGB").save(buffer, format="png", dpi=(DPI, DPI), compress_level=_COMPRESSION)
    return buffer.getvalue()


def spread(rows: Array, limit: int) -> Array:
    """At most ``limit`` of ``rows``, evenly spaced, the same ones every time."""
    if len(rows) <= limit:
        return rows
    return np.asarray(rows[np.unique(np.linspace(0, len(rows) - 1, limit).astype(int))])


@dataclass(frozen=True)
class _Side:
    """An axis with its ticks and the pixel from which the distance of its label counts, as they are measured."""

    axes: Axes
    axis: Axis
    ticks: Array
    edge: float

    @classmethod
    def of(cls, axes: Axes, axis: Axis) -> _Side:
        box = axes.bbox
        return cls(axes, axis, axis.get_majorticklocs(), box.y0 if isinstance(axis, XAxis) else box.x0)

    def hold_label(self, dpi: float) -> None:
        """Keep the label's distance from the axes, unless these have other ticks by now, or it lies on the far side."""
        is_horizontal = isinstance(self.axis, XAxis)
        if self.axis.get_label_position() != ("bottom" if is_horizontal else "left"):
            return
        if not self.axis.label.get_text() or not np.array_equal(self.ticks, self.axis.get_majorticklocs()):
            return
        x, y = self.axis.label.get_position()
        away = ((y if is_horizontal else x) - self.edge) / dpi
        moved = ScaledTranslation(*((0.0, away) if is_horizontal else (away, 0.0)), self.axes.figure.dpi_scale_trans)
        place = (x, 0.0) if is_horizontal else (0.0, y)
        self.axis.set_label_coords(*place, transform=self.axes.transAxes + moved)


def lay_out(figure: Figure) -> None:
    """Lay ``figure`` out by its layout engine, which it loses: it is drawn once more, as it is now."""
    engine = figure.get_layout_engine()
    if engine is None:
        return
    sides = list(_sides(figure))
    for axes in {side.axes: None for side in sides}:
        _hold_titles(axes)
    engine.execute(figure)
    figure.set_layout_engine("none")
    for side in sides:
        side.hold_label(figure.dpi)


def _sides(figure: Figure) -> Iterator[_Side]:
    """Both sides of all axes whose place is that of a grid: colour bars follow others."""
    for axes in figure.axes:
        if axes.get_visible() and axes.get_axes_locator() is None:
            axes.apply_aspect()
            yield from (_Side.of(axes, axis) for axis in (axes.xaxis, axes.yaxis))


def _hold_titles(axes: Axes) -> None:
    """Keep the titles on top of the axes, where no ticks and no power of ten stand that they would give way to."""
    if axes.xaxis.get_ticks_position() in ("top", "unknown") or axes.xaxis.get_label_position() == "top":
        return
    formatter = axes.yaxis.get_major_formatter()
    formatter.format_ticks(axes.yaxis.get_majorticklocs().tolist())
    if formatter.get_offset():
        return
    texts = [text for text in axes.get_children() if isinstance(text, Text)]
    for side in _TITLES:
        said = axes.get_title(loc=side)
        if said:
            title = next(text for text in texts if text.get_text() == said)
            style = {"fontsize": title.get_fontsize(), "fontweight": title.get_fontweight(), "color": title.get_color()}
            axes.set_title(said, style, loc=side, y=1.0)
