"""What an evaluation's users gain by withholding the points of highest CCE."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from congruence.kernels import plots
from congruence.kernels.plots.style import BLUE, GREEN, MUTED, ORANGE, dressed, figure_or_new, legend
from congruence.kernels.rejection import RejectionCurve, rejection_curve
from congruence.tasks.scores.evaluation import Evaluation
from congruence.tasks.scores.meanings import COLUMN_LABELS

_LINES = (BLUE, ORANGE, GREEN)
SHOWN_SHARE = 0.9
"""Of the rows: the last few are noise and would set the scale."""

LOSSES = {name: f"mean {COLUMN_LABELS[name]}" for name in ("absolute_error", "nll", "crps")}


def rejection_curves(evaluation: Evaluation) -> dict[str, RejectionCurve]:
    """A curve per loss column that the scores have, if it is finite: an infinite NLL has no mean to follow."""
    scores = evaluation.valid_scores
    present = [name for name in LOSSES if name in scores and np.isfinite(scores[name]).all()]
    return {name: rejection_curve(scores["cce"], scores[name]) for name in present}


def rejection_panels(curves: Mapping[str, RejectionCurve], criterion: str) -> Figure:
    """``plots.rejection_curves`` of curves by their loss columns, of which there are some."""
    return plots.rejection_curves({LOSSES[name]: curve for name, curve in curves.items()}, criterion=criterion)


def risk_coverage(curves: Mapping[str, Mapping[str, RejectionCurve]]) -> Figure:
    """Mean loss of the rows that stay against the share withheld, one panel a loss, one line a way of withholding.

    Args:
        curves: by loss, then by what is withheld first.
    """
    figure = figure_or_new(None, 3.4 * len(curves), 3.8)
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (loss, by_criterion) in zip(panels, curves.items(), strict=True):
        axes = dressed(axes, "", "share of rows withheld", f"mean {loss} of the rest", width=3.4, height=3.4)
        for number, (name, curve) in enumerate(by_criterion.items()):
            shown = curve.withheld <= SHOWN_SHARE
            if number == 0:
                low, high = curve.random_low[shown], curve.random_high[shown]
                axes.fill_between(curve.withheld[shown], low, high, color=MUTED, alpha=0.2, linewidth=0)
                axes.axhline(
                    curve.random_loss, color=MUTED, linewidth=1.2, linestyle="--", label="at random (95 % band)"
                )
            axes.plot(curve.withheld[shown], curve.kept_loss[shown], color=_LINES[number % 3], linewidth=2, label=name)
        axes.set_xlim(0, SHOWN_SHARE)
        legend(axes)
    figure.suptitle("Withholding on the labelled split, each row judged without its own target", x=0.01, ha="left")
    return figure
