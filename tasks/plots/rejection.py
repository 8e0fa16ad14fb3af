"""What an evaluation's users gain by withholding the points of highest CCE."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from congruence.kernels import plots
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.rejection import RejectionCurve, rejection_curve
from congruence.tasks.scores.evaluation import Evaluation

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
