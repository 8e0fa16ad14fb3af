"""An evaluation's CCE at its points: how it is spread, and on which images it is high."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from congruence.kernels import plots
from congruence.kernels.congruence.expected import ExpectedCongruence
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.plots.images import IMAGES, caption, extreme_points, image_strips
from congruence.kernels.plots.style import figure_of
from congruence.tasks.scores.evaluation import Evaluation


def cce_histogram(evaluation: Evaluation, *, bins: int = 50) -> Figure:
    """``plots.congruence_histogram`` of the valid rows."""
    title = f"CCE of {evaluation.model.label} on {evaluation.split.name}"
    expected = _expected(evaluation)
    return figure_of(plots.congruence_histogram(evaluation.valid_scores, expected=expected, bins=bins, title=title))


def extreme_rows(evaluation: Evaluation, count: int) -> tuple[list[int], list[int]]:
    """Row numbers of the ``count`` highest CCE (worst first) and of the ``count`` lowest (best first)."""
    scores = evaluation.valid_scores
    rows = scores.index.to_numpy()
    worst, best = extreme_points(scores["cce"].to_numpy(float), count)
    return rows[worst].tolist(), rows[best].tolist()


def extremes(evaluation: Evaluation, *, images: int = IMAGES) -> Figure:
    """Two strips of images: the highest CCE above, the lowest below, each with target and prediction.

    Raises:
        InvalidInputError: the evaluation's inputs are not images.
    """
    thumbnails = evaluation.thumbnails
    if thumbnails is None:
        raise InvalidInputError("thumbnails: this evaluation has no images; see the table of worst and best points")
    worst, best = (
        (thumbnails(rows), [_caption(evaluation.scores.iloc[row]) for row in rows])
        for rows in extreme_rows(evaluation, images)
    )
    return image_strips(worst, best)


def _caption(row: pd.Series) -> str:
    numbers = (float(row[name]) if name in row and pd.notna(row[name]) else None for name in ("target", "mean", "std"))
    return caption(float(row["cce"]), *numbers)


def _expected(evaluation: Evaluation) -> ExpectedCongruence | None:
    known = evaluation.metrics.get("cce_expected")
    if known is None or known.low is None or known.high is None:
        return None
    return ExpectedCongruence(known.value, known.low, known.high)
