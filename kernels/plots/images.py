"""The inputs with the highest and the lowest CCE, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.plots.columns import Errors, errors_of
from congruence.kernels.plots.style import GREEN, INK, RED, figure_or_new

IMAGES = 8


def extremes(
    result: Errors,
    images: Any,
    *,
    y: Any | None = None,
    predictive: Distribution | None = None,
    count: int = IMAGES,
    figure: Figure | None = None,
) -> Figure:
    """Two strips of images: the highest CCE above, the lowest below, each with target and prediction.

    Args:
        result: CCE at m points, or its table.
        images: of the points, in their order: an array (m, h, w) or (m, h, w, 3), or a list of arrays or of PIL images.
        y: targets of the points, (m,), for the captions.
        predictive: m scalar distributions, for the captions.
        count: images of a strip.
        figure: to draw on; by default a new one.

    Raises:
        InvalidInputError: fewer than two points, or another number of images, targets or predictions.
    """
    cce, _ = errors_of(result)
    for name, given in (("images", images), ("y", y), ("predictive", predictive)):
        if given is not None and len(given) != len(cce):
            raise InvalidInputError(f"{name}: {len(given)} for {len(cce)} points; they must match point by point")
    worst, best = extreme_points(cce, count)
    targets = None if y is None else require_targets(y, "y")

    def captions(points: Sequence[int]) -> list[str]:
        laws = None if predictive is None else predictive[np.asarray(points)]
        return [
            caption(
                cce[point],
                None if targets is None else targets[point],
                None if laws is None else np.asarray(laws.mean())[place],
                None if laws is None else np.asarray(laws.std())[place],
            )
            for place, point in enumerate(points)
        ]

    strips = [([images[point] for point in points], captions(points)) for points in (worst, best)]
    return image_strips(strips[0], strips[1], figure=figure)


def extreme_points(cce: Array, count: int = IMAGES) -> tuple[list[int], list[int]]:
    """The ``count`` points of highest CCE (worst first) and those of lowest (best first), which do not overlap."""
    order = np.argsort(cce, kind="stable")
    count = min(count, len(order) // 2)
    return order[::-1][:count].tolist(), order[:count].tolist()


Strip = tuple[Sequence[Any], Sequence[str]]


def image_strips(worst: Strip, best: Strip, *, figure: Figure | None = None) -> Figure:
    """Images with captions of the points of highest CCE and, below, of lowest.

    Raises:
        InvalidInputError: there are none.
    """
    columns = len(worst[0])
    if columns == 0:
        raise InvalidInputError("images: there are none to show; give at least two points")
    figure = figure_or_new(figure, max(1.25 * columns, 3.0), 3.9)
    panels = figure.subplots(2, columns, squeeze=False)
    for strip, (images, captions), colour, name in zip(
        panels, (worst, best), (RED, GREEN), ("highest", "lowest"), strict=True
    ):
        for axes, image, said in zip(strip, images, captions, strict=True):
            show_image(axes, image, interpolation="nearest")
            axes.spines[:].set_color(colour)
            axes.spines[:].set_linewidth(1.5)
            axes.set_xlabel(said, fontsize=7.5, color=INK)
        strip[0].set_title(f"{name} CCE", fontsize=9.5, color=colour, fontweight="bold", loc="left")
    return figure


def show_image(axes: Axes, image: Any, **options: Any) -> None:
    """An image (PIL, or an array) without ticks; of one channel, in grey."""
    pixels = np.asarray(image)
    axes.imshow(pixels, cmap="gray" if pixels.ndim == 2 else None, **options)
    axes.set_xticks([])
    axes.set_yticks([])


def caption(cce: float, target: float | None = None, mean: float | None = None, std: float | None = None) -> str:
    """What stands under an image."""
    lines = [f"CCE {cce:.3f}"]
    if target is not None:
        lines.append(f"y = {target:.4g}")
    if mean is not None:
        lines.append(f"f: {mean:.4g}" + ("" if std is None else f" ± {std:.3g}"))
    return "\n".join(lines)
