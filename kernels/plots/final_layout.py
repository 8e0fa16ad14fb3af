"""A figure laid out for the last time: where its texts lie is measured once, and drawing does not measure again.

Matplotlib looks at the labels of all ticks six times for a picture: for the layout and for what is drawn, and each time
again for the label of the axis and for the title of the axes, which give way to them. Half of that is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import ScaledTranslation

from congruence.kernels.arrays import Array

_TITLES: tuple[Literal["left", "center", "right"], ...] = ("left", "center", "right")


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
