"""A figure that is laid out for the last time looks as one that is measured again at every drawing."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from congruence.tasks.plots.style import dress, new_figure, png


def drawn(scale: float, panels: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels by ``png`` and by Matplotlib alone, of the same figure made twice; the second panel has its axis above."""
    found = []
    for _ in range(2):
        figure = new_figure(3.4 * panels, 3.0)
        for number, axes in enumerate(figure.subplots(1, panels, squeeze=False)[0]):
            dress(axes, f"Title {number}", "label below", "label at the side")
            axes.plot([0.0, 1.0, 2.0], [1.3 * scale, 0.2 * scale, 2.0 * scale])
            if number == 1:
                axes.xaxis.tick_top()
        found.append(figure)
    canvas = FigureCanvasAgg(found[1])
    canvas.draw()
    return np.asarray(Image.open(io.BytesIO(png(found[0])))), np.asarray(canvas.buffer_rgba())[..., :3]


@pytest.mark.parametrize(("scale", "panels"), [(1.0, 1), (1e-7, 1), (1e7, 2)], ids=["plain", "small", "ticks above"])
def test_a_figure_laid_out_once_has_the_same_pixels(scale: float, panels: int) -> None:
    """Also where a power of ten above the axis pushes the title up."""
    once, measured = drawn(scale, panels)
    np.testing.assert_array_equal(once, measured)
