"""What is gained by withholding the points of highest CCE, beside withholding at random."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from congruence.kernels.errors import InvalidInputError
from congruence.kernels.rejection import RejectionCurve, rejection_curve
from congruence.tasks.plots.style import BLUE, MUTED, dress, legend, new_figure
from congruence.tasks.scores.evaluation import Evaluation

LOSSES = {"absolute_error": "mean absolute error", "nll": "mean NLL", "crps": "mean CRPS"}


def rejection_curves(evaluation: Evaluation) -> dict[str, RejectionCurve]:
    """A curve per loss column that the scores have, if it is finite: an infinite NLL has no mean to follow."""
    scores = evaluation.valid_scores
    present = [name for name in LOSSES if name in scores and np.isfinite(scores[name]).all()]
    return {name: rejection_curve(scores["cce"], scores[name]) for name in present}


def rejection_figure(evaluation: Evaluation) -> Figure:
    """One panel per loss: its mean over the kept points against the share withheld, and under random rejection.

    Raises:
        InvalidInputError: the scores have no loss column.
    """
    return rejection_panels(rejection_curves(evaluation), f"CCE of {evaluation.model.label}")


def rejection_panels(curves: dict[str, RejectionCurve], criterion: str) -> Figure:
    """One panel per curve, named by its loss column."""
    if not curves:
        raise InvalidInputError(f"scores: none of the columns {', '.join(LOSSES)}; a rejection curve needs a loss")
    figure = new_figure(3.4 * len(curves), 3.4)
    for axes, (name, curve) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True):
        _panel(axes, LOSSES.get(name, name), curve)
    figure.suptitle(f"Withholding by {criterion}", x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def _panel(axes: Axes, loss: str, curve: RejectionCurve) -> None:
    dress(axes, "", "share of points withheld", f"{loss} of the rest")
    axes.fill_between(curve.withheld, curve.random_low, curve.random_high, color=MUTED, alpha=0.2, linewidth=0)
    axes.axhline(curve.random_loss, color=MUTED, linewidth=1.2, linestyle="--", label="at random (95 % band)")
    axes.plot(curve.withheld, curve.kept_loss, color=BLUE, linewidth=2, label="highest CCE first")
    axes.set_xlim(0, 1)
    middle = curve.withheld <= 0.95  # the last few rows are noise and would set the scale
    low = min(float(curve.kept_loss[middle].min()), float(curve.random_low[middle].min()))
    high = max(float(curve.kept_loss[middle].max()), float(curve.random_high[middle].max()))
    margin = 0.05 * (high - low or 1.0)
    axes.set_ylim(low - margin, high + margin)
    legend(axes)
