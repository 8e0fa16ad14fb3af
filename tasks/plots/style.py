"""One look for every plot, on figures of their own, and what plots read of a result or of its table.

Nothing here touches pyplot's global state, so threads may draw.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import TightLayoutEngine

from congruence.kernels.arrays import Array, require_matrix, require_targets
from congruence.kernels.conditional_calibration.local_reading import LocalReading
from congruence.kernels.engine.results import CongruenceResult
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import ORDERS
from congruence.kernels.trust.judgement import RejectionCurve

if TYPE_CHECKING:
    import pandas as pd

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
    place, share = axes.get_subplotspec(), 1.0
    if place is not None:  # of the figure's width, what the columns of these axes in its grid take
        grid = place.get_gridspec()
        widths = np.ones(grid.ncols) if grid.get_width_ratios() is None else np.asarray(grid.get_width_ratios(), float)
        share = float(widths[place.colspan.start : place.colspan.stop].sum() / widths.sum())
    width = max(12, int(_TITLE_LETTERS * figure_of(axes).get_figwidth() * share))
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


IMAGES = 8
"""Of the points of highest CCE, and of those of lowest."""

Errors: TypeAlias = "CongruenceResult | pd.DataFrame | Mapping[str, Any]"
"""CCE at m points: a result, or columns ``cce`` and ``cce_noise_floor``."""

Readings: TypeAlias = "LocalReading | pd.DataFrame | Mapping[str, Any]"
"""What is wrong around m points: a reading, or its columns: ``calibration_fault``, ``calibration_bias``, ..."""


def errors_of(result: Errors) -> tuple[Array, Array]:
    """CCE and noise floor, (m,) each."""
    if isinstance(result, CongruenceResult):
        return result.values, result.noise_floor_values
    cce = vector(column(result, "cce", "a CongruenceResult or its table"), "cce")
    return cce, vector(
        column(result, "cce_noise_floor", "a CongruenceResult or its table"), "cce_noise_floor", len(cce)
    )


def faults_of(reading: Readings) -> tuple[Array, Array]:
    """The fault of each point, "" where none is significant, and the scores of all orders, (m, 4)."""
    table = reading.columns() if isinstance(reading, LocalReading) else reading
    asked = "a LocalReading or its table"
    fault = np.asarray(column(table, "calibration_fault", asked)).astype(str)
    scores = [np.asarray(column(table, f"calibration_{order}", asked), dtype=np.float64) for order in ORDERS]
    return fault, np.column_stack(scores)


def column(table: Any, name: str, expected: str) -> Any:
    """One column of a table.

    Raises:
        InvalidInputError: it has none of that name, or is no table.
    """
    if not hasattr(table, "__getitem__") or not hasattr(table, "keys"):
        raise InvalidInputError(f"{name}: got {type(table).__name__}, expected {expected}")
    if name not in table:
        raise InvalidInputError(f"{name}: no such column among {', '.join(map(str, table.keys()))}; give {expected}")
    return table[name]


def vector(values: Any, name: str, rows: int | None = None) -> Array:
    """``values`` as finite numbers (n,), as many as the points where ``rows`` says how many these are.

    Raises:
        InvalidInputError: another shape or length, no numbers, or not finite, by row.
    """
    array = require_targets(values, name)
    if array.ndim != 1:
        raise InvalidInputError(f"{name}: expected shape (n,), got {array.shape}")
    return require_rows(array, name, rows)


def place_of(values: Any, rows: int) -> Array:
    """``values`` as a map of the points, (m, 2).

    Raises:
        InvalidInputError: another shape, or not finite, by row.
    """
    place = np.asarray(require_matrix(values, "place"))
    if place.shape[1] != 2:
        raise InvalidInputError(
            f"place: {place.shape[1]} columns, expected 2: two features, or the first two principal components"
        )
    return require_rows(place, "place", rows)


def require_rows(array: Array, name: str, rows: int | None) -> Array:
    """``array``, if it has ``rows`` rows.

    Raises:
        InvalidInputError: it has another number of rows.
    """
    if rows is not None and len(array) != rows:
        raise InvalidInputError(f"{name}: {len(array)} rows for {rows} points; they must match point by point")
    return array


def extreme_points(cce: Array, count: int = IMAGES) -> tuple[list[int], list[int]]:
    """The ``count`` points of highest CCE (worst first) and those of lowest (best first), which do not overlap."""
    order = np.argsort(cce, kind="stable")
    count = min(count, len(order) // 2)
    return order[::-1][:count].tolist(), order[:count].tolist()


_LINES = (BLUE, ORANGE, GREEN)
BY_CCE = "highest CCE first"


def draw_withholding(
    axes: Axes, curves: Mapping[str, RejectionCurve], loss: str, title: str = "", *, most: float = 1.0
) -> None:
    """Curves of one loss by what is withheld first, up to the share ``most``, and the band of withholding at random."""
    dress(axes, title, "share of rows withheld", f"{loss} of the rest")
    first = next(iter(curves.values()))
    shown = first.withheld <= most
    low, high = first.random_low[shown], first.random_high[shown]
    axes.fill_between(first.withheld[shown], low, high, color=MUTED, alpha=0.2, linewidth=0)
    axes.axhline(first.random_loss, color=MUTED, linewidth=1.2, linestyle="--", label="at random (95 % band)")
    for (name, curve), colour in zip(curves.items(), cycle(_LINES)):
        axes.plot(curve.withheld[shown], curve.kept_loss[shown], color=colour, linewidth=2, label=name)
    axes.set_xlim(0, most)
    middle = shown & (first.withheld <= 0.95)  # the last few rows are noise and would set the scale
    drawn = np.stack([first.random_low, first.random_high, *(curve.kept_loss for curve in curves.values())])[:, middle]
    margin = 0.05 * (float(np.ptp(drawn)) or 1.0)
    axes.set_ylim(float(drawn.min()) - margin, float(drawn.max()) + margin)
