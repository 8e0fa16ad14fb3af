"""Along one input: the targets with the predictions, and the CCE with what a true version would have there."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.conditional_calibration.local_reading import LocalReading
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.plots.columns import Errors, Readings, errors_of, faults_of, require_rows, vector
from congruence.kernels.plots.style import BLUE, MUTED, RED, dressed, legend, spread

POINTS = 5_000


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
        shown = spread(order, POINTS)
        axes.scatter(values[shown], cce[shown], s=4, color=BLUE, alpha=0.35, linewidths=0)
    expected = np.sqrt(_running_mean(floor[order] ** 2, width))
    axes.plot(place, expected, color=MUTED, linewidth=1.2, linestyle="--", label="of a true version")
    label = "CCE" if width == 1 else f"CCE, over {width:,} neighbours"
    axes.plot(place, np.sqrt(_running_mean(cce[order] ** 2, width)), color=BLUE, linewidth=1.5, label=label)
    if reading is not None:
        found = np.flatnonzero(_is_wrong(reading, len(cce)))
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
        raise InvalidInputError(f"predictive: {len(predictive)} rows for {len(targets)} targets; give one law per row")
    order = np.argsort(values, kind="stable")
    asked = np.tile([0.5 - level / 2.0, 0.5, 0.5 + level / 2.0], (len(targets), 1))
    low, middle, high = np.asarray(predictive.quantile(asked))[order].T
    title = f"Targets, and {100.0 * level:g} % of the version's law" if title is None else title
    axes = dressed(axes, title, x_label, y_label)
    shown = spread(order, POINTS)
    axes.scatter(values[shown], targets[shown], s=4, color=MUTED, linewidths=0, alpha=0.6)
    axes.fill_between(values[order], low, high, color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(values[order], middle, color=BLUE, linewidth=1.5)
    return axes


def _running_mean(values: Array, width: int) -> Array:
    """Means of ``width`` values next to each other, (n - width + 1,)."""
    return values if width == 1 else np.asarray(np.convolve(values, np.full(width, 1.0 / width), mode="valid"))


def _is_wrong(reading: Readings, points: int) -> Array:
    found = reading.significant() if isinstance(reading, LocalReading) else faults_of(reading)[0] != ""
    return require_rows(found, "reading", points)
