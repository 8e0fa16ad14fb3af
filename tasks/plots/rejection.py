"""What an evaluation's users gain by withholding the points of highest CCE."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from congruence.kernels import plots
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.plots.style import BLUE, GREEN, MUTED, ORANGE, dressed, figure_or_new, legend
from congruence.kernels.rejection import RejectionCurve, rejection_curve
from congruence.tasks.scores.evaluation import Evaluation

_LINES = (BLUE, ORANGE, GREEN)
_SHOWN_SHARE = 0.9  # the last few rows are noise and would set the scale
LOSSES = {"absolute_error": "mean absolute error", "nll": "mean NLL", "crps": "mean CRPS"}


def rejection_curves(evaluation: Evaluation) -> dict[str, RejectionCurve]:
    """A curve per loss column that the scores have, if it is finite: an infinite NLL has no mean to follow."""
    scores = evaluation.valid_scores
    present = [name for name in LOSSES if name in scores and np.isfinite(scores[name]).all()]
    return {name: rejection_curve(scores["cce"], scores[name]) for name in present}


def rejection_panels(curves: Mapping[str, RejectionCurve], criterion: str) -> Figure:
    """``plots.rejection_curves`` of curves by their loss columns.

    Raises:
        InvalidInputError: there are none.
    """
    if not curves:
        raise InvalidInputError(f"scores: none of the columns {', '.join(LOSSES)}; a rejection curve needs a loss")
    return plots.rejection_curves({LOSSES.get(name, name): curves[name] for name in curves}, criterion=criterion)


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
            shown = curve.withheld <= _SHOWN_SHARE
            if number == 0:
                low, high = curve.random_low[shown], curve.random_high[shown]
                axes.fill_between(curve.withheld[shown], low, high, color=MUTED, alpha=0.2, linewidth=0)
                axes.axhline(
                    curve.random_loss, color=MUTED, linewidth=1.2, linestyle="--", label="at random (95 % band)"
                )
            axes.plot(curve.withheld[shown], curve.kept_loss[shown], color=_LINES[number % 3], linewidth=2, label=name)
        axes.set_xlim(0, _SHOWN_SHARE)
        legend(axes)
    figure.suptitle("Withholding on the labelled split, each row judged without its own target", x=0.01, ha="left")
    return figure
