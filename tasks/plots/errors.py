"""How CCE is spread over the points and along an input, and what withholding the points of highest CCE gains.

And what pictures read of a result or of its table.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from congruence.kernels.arrays import Array, require_matrix, require_targets
from congruence.kernels.conditional_calibration.local_reading import LocalReading
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.results import CongruenceResult, ExpectedCongruence
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import ORDERS
from congruence.kernels.trust.judgement import RejectionCurve
from congruence.tasks.plots.style import (
    BLUE,
    FLOOR_LABEL,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    RED,
    dress,
    dressed,
    figure_or_new,
    legend,
    spread,
)

if TYPE_CHECKING:
    import pandas as pd

POINTS = 5_000
IMAGES = 8
"""Of the points of highest CCE, and of those of lowest."""

SHOWN_SHARE = 0.9
"""Of the rows, in ``risk_coverage``: the last few are noise."""

_LINES = (BLUE, ORANGE, GREEN)
_BY_CCE = "highest CCE first"

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


def congruence_histogram(
    result: Errors,
    *,
    expected: ExpectedCongruence | None = None,
    bins: int = 50,
    title: str = "CCE",
    axes: Axes | None = None,
) -> Axes:
    """Histogram of CCE over the points, its mean, and the band in which the mean of a true version would lie.

    The noise floor of a point is the root mean square of what a true version would score there, so a true version's CCE
    is spread around it.

    Args:
        result: CCE at m points, or its table.
        expected: of the mean if the version were true, as ``CongruenceResult.band`` has it.
        bins: of the histogram.
        title: of the picture.
        axes: to draw on; by default those of a new figure.

    Raises:
        InvalidInputError: neither a result nor a table with its columns.
    """
    cce, floor = errors_of(result)
    edges = np.linspace(0.0, max(float(np.quantile(cce, 0.999)), float(floor.max())) * 1.02 or 1.0, bins + 1)
    axes = dressed(axes, title, "CCE at a point, in the unit-free distance of the protocol", "share of points")
    axes.stairs(_shares(cce, edges), edges, fill=True, color=BLUE, alpha=0.75, label="this version")
    axes.stairs(_shares(floor, edges), edges, color=GREEN, linewidth=1.6, label=FLOOR_LABEL)
    axes.axvline(float(cce.mean()), color=INK, linewidth=1.2, label=f"mean CCE {cce.mean():.4g}")
    if expected is not None:
        label = f"mean of a true version {expected.mean:.3g} [{expected.low:.3g}, {expected.high:.3g}]"
        axes.axvspan(expected.low, expected.high, color=GREEN, alpha=0.25, label=label)
    axes.set_xlim(0.0, edges[-1])
    legend(axes)
    return axes


def inputs_histogram(
    result: Errors,
    threshold: float | None = None,
    *,
    bins: int = 40,
    title: str = "CCE of the inputs",
    axes: Axes | None = None,
) -> Axes:
    """Histograms of CCE and of the noise floor over unlabelled inputs, and the threshold above which to withhold them.

    Args:
        result: CCE at m inputs (``query``), or its table.
        threshold: above which inputs are withheld, if any.
        bins: of the histogram.
        title: of the picture.
        axes: to draw on; by default those of a new figure.

    Raises:
        InvalidInputError: neither a result nor a table with its columns.
    """
    cce, floor = errors_of(result)
    largest = max(float(np.max(cce)), float(np.max(floor)))
    edges = np.linspace(0.0, largest * 1.02 or 1.0, bins + 1).tolist()
    axes = dressed(axes, title, "CCE of an input, in the unit-free distance of the protocol", "number of inputs")
    axes.hist(cce, edges, color=BLUE, alpha=0.75, label="CCE")
    axes.hist(floor, edges, color=GREEN, histtype="step", linewidth=1.6, label=FLOOR_LABEL)
    if threshold is not None:
        axes.axvline(threshold, color=RED, linewidth=1.6, label=f"withhold above {threshold:.4g}")
    legend(axes)
    return axes


def _shares(values: Array, edges: Array) -> Array:
    """The share of the values in each bin; those beyond the last edge are in the last bin."""
    return np.asarray(np.histogram(np.minimum(values, edges[-1]), edges)[0] / len(values))


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
        raise InvalidInputError(f"predictive: {len(predictive)} rows for {len(targets)} targets; give one a row")
    order = np.argsort(values, kind="stable")
    asked = np.tile([0.5 - level / 2.0, 0.5, 0.5 + level / 2.0], (len(targets), 1))
    low, middle, high = np.asarray(predictive.quantile(asked))[order].T
    title = f"Targets, and {100.0 * level:g} % of the predicted distribution" if title is None else title
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


def extreme_points(cce: Array, count: int = IMAGES) -> tuple[list[int], list[int]]:
    """The ``count`` points of highest CCE (worst first) and those of lowest (best first), which do not overlap."""
    order = np.argsort(cce, kind="stable")
    count = min(count, len(order) // 2)
    return order[::-1][:count].tolist(), order[:count].tolist()


def rejection_curves(
    curves: Mapping[str, RejectionCurve], *, criterion: str = "CCE", figure: Figure | None = None
) -> Figure:
    """One ``rejection_panel`` a curve, side by side.

    Args:
        curves: by what each loss is called, such as "mean CRPS".
        criterion: what the points are withheld by, for the title.
        figure: to draw on; by default a new one.

    Raises:
        InvalidInputError: there are none.
    """
    if not curves:
        raise InvalidInputError("curves: there are none; give a rejection_curve(cce, loss) by the name of its loss")
    figure = figure_or_new(figure, 3.4 * len(curves), 3.4)
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (loss, curve) in zip(panels, curves.items(), strict=True):
        _draw(axes, {_BY_CCE: curve}, loss)
    legend(panels[0])
    figure.suptitle(f"Withholding by {criterion}", x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def rejection_panel(
    curve: RejectionCurve, loss: str = "mean loss", *, title: str = "", axes: Axes | None = None
) -> Axes:
    """Mean loss of the kept points against the share withheld, highest CCE first, and under random rejection.

    Args:
        curve: from ``rejection_curve(criterion, loss)``.
        loss: what the loss is called.
        title: of the picture.
        axes: to draw on; by default those of a new figure.
    """
    axes = dressed(axes, "", "", "", width=3.4, height=3.4)
    _draw(axes, {_BY_CCE: curve}, loss, title)
    legend(axes)
    return axes


def risk_coverage(curves: Mapping[str, Mapping[str, RejectionCurve]]) -> Figure:
    """Mean loss of the rows that stay against the share withheld, one panel a loss, one line a way of withholding.

    Args:
        curves: by loss, then by what is withheld first.
    """
    figure = figure_or_new(None, 3.4 * len(curves), 3.8)
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (loss, by_criterion) in zip(panels, curves.items(), strict=True):
        _draw(axes, by_criterion, f"mean {loss}", most=SHOWN_SHARE)
        legend(axes)
    figure.suptitle("Withholding on the labelled split, each row judged without its own target", x=0.01, ha="left")
    return figure


def _draw(axes: Axes, curves: Mapping[str, RejectionCurve], loss: str, title: str = "", *, most: float = 1.0) -> None:
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
