"""Where a version fails: over a map of the inputs, along one of them, and on which images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.conditional_calibration.local_reading import LocalReading
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.results import ExpectedCongruence
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import ORDERS
from congruence.tasks.plots.style import (
    BLUE,
    CYCLE,
    GREEN,
    GRID,
    IMAGES,
    INK,
    MUTED,
    RED,
    SEQUENTIAL,
    Errors,
    Readings,
    dress,
    dressed,
    errors_of,
    extreme_points,
    faults_of,
    figure_of,
    figure_or_new,
    legend,
    place_of,
    require_rows,
    spread,
    vector,
)
from congruence.tasks.sentences.calibration import short_name

POINTS = 20_000
SMALL_POINTS = 4_000
FARTHEST = 5.0
DIVERGING = "coolwarm"
_COMPONENTS = ("first principal component of the embeddings", "second principal component")
_SIDES = {(order, sign): short_name(order, sign) for order in ORDERS for sign in (1.0, -1.0)}


def embedding_map(
    place: Any,
    result: Errors,
    *,
    expected: ExpectedCongruence | None = None,
    points: int = POINTS,
    labels: tuple[str, str] | None = None,
    title: str = "CCE over the inputs",
    axes: Axes | None = None,
) -> Axes:
    """Scatter of a 2-D map coloured by CCE, the worst points drawn last; at most ``points`` points.

    Args:
        place: where each point lies, (m, 2): two features, or principal components.
        result: CCE at the m points, or its table.
        expected: of the mean if the version were true, a line in the colour bar; by default the mean noise floor.
        points: that are drawn, evenly spread over the rows.
        labels: names of two features; by default the axes are principal components, without numbers.
        title: of the picture.
        axes: to draw on; by default those of a new figure.

    Raises:
        InvalidInputError: a place that is no (m, 2) or not finite, or no result.
    """
    cce, floor = errors_of(result)
    place = place_of(place, len(cce))
    shown = spread(np.arange(len(cce)), points)
    shown = shown[np.argsort(cce[shown], kind="stable")]
    axes = dressed(axes, title, *(labels or _COMPONENTS), height=5.2)
    low, high = np.quantile(cce, [0.01, 0.99])
    dots = axes.scatter(place[shown, 0], place[shown, 1], c=cce[shown], s=_size(shown), cmap=SEQUENTIAL, vmin=low,
                        vmax=high, linewidths=0)  # fmt: skip
    bar = figure_of(axes).colorbar(dots, ax=axes, extend="both")
    line = float(floor.mean()) if expected is None else expected.mean
    _name_bar(bar, "CCE; the line is what a true version has on average")
    if low < line < high:
        bar.ax.axhline(line, color=RED, linewidth=2)
    if labels is None:
        _without_numbers(axes)
    if len(shown) < len(cce):
        axes.annotate(f"{len(shown):,} of {len(cce):,} points", (0, -0.02), xycoords="axes fraction", color=MUTED,
                      fontsize=8, va="top")  # fmt: skip
    return axes


def fault_map(
    place: Any,
    reading: Readings,
    *,
    points: int = POINTS,
    labels: tuple[str, str] | None = None,
    title: str = "What is wrong around each input",
    axes: Axes | None = None,
) -> Axes:
    """Scatter of a 2-D map coloured by the dominant fault where one is significant; at most ``points`` points.

    Args:
        place: where each point lies, (m, 2): two features, or principal components.
        reading: what is wrong around the m points, or its table.
        points: that are drawn, evenly spread over the rows.
        labels: names of two features; by default the axes are principal components, without numbers.
        title: of the picture.
        axes: to draw on; by default those of a new figure.

    Raises:
        InvalidInputError: a place that is no (m, 2) or not finite, or no reading.
    """
    fault, scores = faults_of(reading)
    place = place_of(place, len(fault))
    # The side of a fault is that of its own smoothed score.
    sign = np.zeros(len(fault))
    for order, column in zip(ORDERS, scores.T, strict=True):
        sign = np.where(fault == order, np.sign(column), sign)
    shown = spread(np.arange(len(fault)), points)
    axes = dressed(axes, title, *(labels or (_COMPONENTS[0], "second")), height=4.6)
    size = _size(shown)
    right = shown[fault[shown] == ""]
    axes.scatter(place[right, 0], place[right, 1], s=size, color=GRID, linewidths=0, label=_counted("no fault", right))
    for (order, side), colour in zip(_SIDES, CYCLE, strict=False):
        found = shown[(fault[shown] == order) & (sign[shown] == side)]
        if len(found):
            label = _counted(_SIDES[order, side], found)
            axes.scatter(place[found, 0], place[found, 1], s=size, color=colour, linewidths=0, label=label)
    if labels is None:
        _without_numbers(axes)
    legend(axes, loc="upper left", bbox_to_anchor=(1.0, 1.0), markerscale=2.0)
    return axes


def order_maps(place: Any, reading: Readings, *, points: int = SMALL_POINTS, figure: Figure | None = None) -> Figure:
    """Four small maps: the smoothed scores of each order in their standard deviations under the truth.

    Red: targets above the predictions, spread too small, skewed to the right, heavier tails; blue the other side.

    Args:
        place: where each point lies, (m, 2): two features, or principal components.
        reading: what is wrong around the m points, or its table.
        points: that are drawn, evenly spread over the rows.
        figure: to draw on; by default a new one.

    Raises:
        InvalidInputError: a place that is no (m, 2) or not finite, or no reading.
    """
    _, scores = faults_of(reading)
    place = place_of(place, len(scores))
    shown = spread(np.arange(len(place)), points)
    figure = figure_or_new(figure, 6.4, 5.2)
    size = float(np.clip(2500.0 / max(len(shown), 1), 1.5, 10.0))
    dots: PathCollection | None = None
    grid = figure.add_gridspec(2, 3, width_ratios=(1.0, 1.0, 0.05))
    for number, (order, column) in enumerate(zip(ORDERS, scores.T, strict=True)):
        axes = figure.add_subplot(grid[divmod(number, 2)])
        drawn = shown[np.argsort(np.abs(column[shown]), kind="stable")]
        dots = axes.scatter(place[drawn, 0], place[drawn, 1], c=column[drawn], s=size, cmap=DIVERGING, vmin=-FARTHEST,
                            vmax=FARTHEST, linewidths=0)  # fmt: skip
        dress(axes, f"{order}: red is {_SIDES[order, 1.0]}")
        axes.set_xticks([])
        axes.set_yticks([])
    assert dots is not None
    bar = figure.colorbar(dots, cax=figure.add_subplot(grid[:, 2]), extend="both")
    _name_bar(bar, "standard deviations of a version that is right")
    return figure


def _size(shown: Array) -> float:
    return float(np.clip(6000.0 / max(len(shown), 1), 2.0, 20.0))


def _name_bar(bar: Colorbar, label: str) -> None:
    bar.set_label(label, fontsize=9.5, color=INK)
    bar.ax.tick_params(labelsize=8.5)


def _without_numbers(axes: Axes) -> None:
    """Components have no unit."""
    axes.tick_params(labelbottom=False, labelleft=False)


def _counted(name: str, rows: Array) -> str:
    return f"{name}: {len(rows):,}"


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


DOTS = 5_000


def congruence_along(
    feature: Any,
    result: Errors,
    *,
    reading: Readings | None = None,
    neighbours: int | None = None,
    x_label: str = "input",
    title: str = "CCE along one input",
    axes: Axes | None = None,
) -> Axes:
    """CCE against one feature of the inputs: a dot a point, and the root mean square of points next to each other.

    The dashed line is the same of the noise floor, whose square is the expected square of a true version's CCE: the two
    lines compare, whatever the points' other features are.

    Args:
        feature: values of one feature at the m points.
        result: CCE at these points, or its table.
        reading: what is wrong around them, or its table; the points found wrong are drawn in red.
        neighbours: how many points a value of the lines is taken over; by default a twentieth of them. 1 draws the
            lines through every point, which suits inputs of one feature.
        x_label: name of the feature.
        title: of the picture.
        axes: to draw on; by default those of a new figure.

    Raises:
        InvalidInputError: lengths that differ, values not finite, or a number of neighbours that there are not.
    """
    cce, floor = errors_of(result)
    values = vector(feature, "feature", len(cce))
    width = max(1, len(cce) // 20) if neighbours is None else neighbours
    if not 1 <= width <= len(cce):
        raise InvalidInputError(f"neighbours: is {width}, expected a number from 1 to that of the points, {len(cce)}")
    order = np.argsort(values, kind="stable")
    place = _running_mean(values[order], width)
    axes = dressed(axes, title, x_label, "CCE")
    if width > 1:
        shown = spread(order, DOTS)
        axes.scatter(values[shown], cce[shown], s=4, color=BLUE, alpha=0.35, linewidths=0)
    expected = np.sqrt(_running_mean(floor[order] ** 2, width))
    axes.plot(place, expected, color=MUTED, linewidth=1.2, linestyle="--", label="of a true version")
    label = "CCE" if width == 1 else f"CCE, over {width:,} neighbours"
    axes.plot(place, np.sqrt(_running_mean(cce[order] ** 2, width)), color=BLUE, linewidth=1.5, label=label)
    if reading is not None:
        wrong = reading.significant() if isinstance(reading, LocalReading) else faults_of(reading)[0] != ""
        found = np.flatnonzero(require_rows(wrong, "reading", len(cce)))
        axes.scatter(values[found], cce[found], s=6, color=RED, linewidths=0, label="found wrong", zorder=3)
    axes.set_ylim(bottom=0.0)
    legend(axes)
    return axes


def predictions_along(
    feature: Any,
    y: Any,
    predictive: Distribution,
    *,
    level: float = 0.9,
    x_label: str = "input",
    y_label: str = "target",
    title: str | None = None,
    axes: Axes | None = None,
) -> Axes:
    """The targets against one feature, with the median and the central interval of the predictions.

    Args:
        feature: values of one feature, (n,). Where others matter, too, the interval is ragged.
        y: targets, (n,).
        predictive: n scalar distributions.
        level: probability of the interval.
        x_label: name of the feature.
        y_label: name of the targets.
        title: of the picture; by default it says what the interval is.
        axes: to draw on; by default those of a new figure.

    Raises:
        InvalidInputError: lengths that differ, values not finite, or a level outside (0, 1).
    """
    if not 0.0 < level < 1.0:
        raise InvalidInputError(f"level: is {level}, expected a probability inside (0, 1)")
    targets = vector(require_targets(y, "y"), "y")
    values = vector(feature, "feature", len(targets))
    if len(predictive) != len(targets):
        raise InvalidInputError(f"predictive: {len(predictive)} rows for {len(targets)} targets; give one a row")
    order = np.argsort(values, kind="stable")
    asked = np.tile([0.5 - level / 2.0, 0.5, 0.5 + level / 2.0], (len(targets), 1))
    low, middle, high = np.asarray(predictive.quantile(asked))[order].T
    title = f"Targets, and {100.0 * level:g} % of the predicted distribution" if title is None else title
    axes = dressed(axes, title, x_label, y_label)
    shown = spread(order, DOTS)
    axes.scatter(values[shown], targets[shown], s=4, color=MUTED, linewidths=0, alpha=0.6)
    axes.fill_between(values[order], low, high, color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(values[order], middle, color=BLUE, linewidth=1.5)
    return axes


def _running_mean(values: Array, width: int) -> Array:
    """Means of ``width`` values next to each other, (n - width + 1,)."""
    return values if width == 1 else np.asarray(np.convolve(values, np.full(width, 1.0 / width), mode="valid"))
