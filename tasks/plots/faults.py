"""What is wrong where: the fault of each point over the map of the embeddings, and a local P-P plot at the worst."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.wording import short_name
from congruence.kernels.errors import InvalidInputError
from congruence.tasks.plots.style import (
    BLUE,
    CYCLE,
    GRID,
    INK,
    MUTED,
    RED,
    dress,
    figure_of,
    legend,
    new_axes,
    new_figure,
    spread,
)
from congruence.tasks.scores.evaluation import Evaluation

POINTS = 20_000
SMALL_POINTS = 4_000
FARTHEST = 5.0
DIVERGING = "coolwarm"
_SIDES = {(order, sign): short_name(order, sign) for order in ORDERS for sign in (1.0, -1.0)}


def fault_map(evaluation: Evaluation, *, points: int = POINTS) -> Figure:
    """Scatter of the 2-D map coloured by the dominant fault where one is significant; at most ``points`` points.

    Raises:
        InvalidInputError: the evaluation has no map, or no local reading.
    """
    scores = evaluation.valid_scores
    if evaluation.embedding_map is None or "calibration_fault" not in scores:
        raise InvalidInputError("fault_map: this evaluation has no 2-D map or no local reading of its calibration")
    place = np.asarray(evaluation.embedding_map)[scores.index.to_numpy()]
    fault = scores["calibration_fault"].to_numpy(str)
    # The side of a fault is that of its own smoothed score.
    sign = np.zeros(len(fault))
    for order in ORDERS:
        sign = np.where(fault == order, np.sign(scores[f"calibration_{order}"].to_numpy(float)), sign)
    shown = spread(np.arange(len(fault)), points)
    title = f"What is wrong around each input: {evaluation.model.label}"
    axes = new_axes(title, "first principal component of the embeddings", "second", height=4.6)
    size = float(np.clip(6000.0 / max(len(shown), 1), 2.0, 20.0))
    right = shown[fault[shown] == ""]
    axes.scatter(place[right, 0], place[right, 1], s=size, color=GRID, linewidths=0, label=_counted("no fault", right))
    for (order, side), colour in zip(_SIDES, CYCLE, strict=False):
        found = shown[(fault[shown] == order) & (sign[shown] == side)]
        if len(found):
            label = _counted(_SIDES[order, side], found)
            axes.scatter(place[found, 0], place[found, 1], s=size, color=colour, linewidths=0, label=label)
    axes.set_xticklabels([])
    axes.set_yticklabels([])
    legend(axes, loc="upper left", bbox_to_anchor=(1.0, 1.0), markerscale=2.0)
    return figure_of(axes)


def order_maps(evaluation: Evaluation, *, points: int = SMALL_POINTS) -> Figure:
    """Four small maps: the smoothed scores of each order in their standard deviations under the truth.

    Red: targets above the predictions, spread too small, skewed to the right, heavier tails; blue the other side.

    Raises:
        InvalidInputError: the evaluation has no map, or no local reading.
    """
    scores = evaluation.valid_scores
    if evaluation.embedding_map is None or "calibration_bias" not in scores:
        raise InvalidInputError("order_maps: this evaluation has no 2-D map or no local reading of its calibration")
    place = np.asarray(evaluation.embedding_map)[scores.index.to_numpy()]
    shown = spread(np.arange(len(place)), points)
    figure = new_figure(6.4, 5.2)
    size = float(np.clip(2500.0 / max(len(shown), 1), 1.5, 10.0))
    dots = None
    for order, axes in zip(ORDERS, figure.subplots(2, 2).ravel(), strict=True):
        values = scores[f"calibration_{order}"].to_numpy(float)[shown]
        drawn = shown[np.argsort(np.abs(values), kind="stable")]
        values = scores[f"calibration_{order}"].to_numpy(float)[drawn]
        dots = axes.scatter(place[drawn, 0], place[drawn, 1], c=values, s=size, cmap=DIVERGING, vmin=-FARTHEST,
                            vmax=FARTHEST, linewidths=0)  # fmt: skip
        dress(axes, f"{order}: red is {_SIDES[order, 1.0]}")
        axes.set_xticks([])
        axes.set_yticks([])
    assert dots is not None
    bar = figure.colorbar(dots, ax=figure.axes, extend="both", shrink=0.8)
    bar.set_label("standard deviations of a version that is right", fontsize=9.5, color=INK)
    bar.ax.tick_params(labelsize=8.5)
    return figure


def local_reliability(evaluation: Evaluation) -> Figure:
    """The P-P plot at the medoid of the region that is most wrong, with the 95 % band of a version that is right there.

    Raises:
        InvalidInputError: the evaluation has no local reading.
    """
    wrong = evaluation.wrong
    if wrong is None or wrong.curve is None or wrong.row is None:
        raise InvalidInputError("local_reliability: this evaluation has no local reading of its calibration")
    curve = wrong.curve
    axes = new_axes(
        f"Around one input of {wrong.region}: {evaluation.model.label}",
        "predicted probability of an outcome at most this high",
        "share of outcomes around it that were",
        width=4.8,
        height=4.6,
    )
    axes.fill_between(curve.levels, curve.lower[0], curve.upper[0], color=MUTED, alpha=0.25, linewidth=0,
                      label="95 % band if right")  # fmt: skip
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="--")
    axes.plot(curve.levels, curve.rearranged()[0], color=BLUE, linewidth=2, label="this version")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    legend(axes, loc="upper left")
    if evaluation.thumbnails is not None:
        (picture,) = evaluation.thumbnails([wrong.row])
        inset = axes.inset_axes((0.72, 0.04, 0.25, 0.25))
        inset.imshow(np.asarray(picture), cmap="gray" if picture.mode in ("L", "1", "I", "F") else None)
        inset.set_xticks([])
        inset.set_yticks([])
        inset.spines[:].set_color(RED)
    else:
        axes.annotate(f"row {wrong.row}", (0.97, 0.04), xycoords="axes fraction", ha="right", fontsize=8.5, color=INK)
    return figure_of(axes)


def _counted(name: str, rows: Array) -> str:
    return f"{name}: {len(rows):,}"
