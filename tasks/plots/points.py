"""An evaluation's CCE at its points: how it is spread, and on which images it is high."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from congruence.kernels import plots
from congruence.kernels.congruence.expected import ExpectedCongruence
from congruence.kernels.plots.images import IMAGES, caption, extreme_points, image_strips
from congruence.kernels.plots.style import figure_of
from congruence.tasks.scores.evaluation import Evaluation


def cce_histogram(evaluation: Evaluation) -> Figure:
    """``plots.congruence_histogram`` of the valid rows."""
    title = f"CCE of {evaluation.model.label} on {evaluation.split.name}"
    known, expected = evaluation.metrics.get("cce_expected"), None
    if known is not None and known.low is not None and known.high is not None:
        expected = ExpectedCongruence(known.value, known.low, known.high)
    return figure_of(plots.congruence_histogram(evaluation.valid_scores, expected=expected, title=title))


def extreme_rows(evaluation: Evaluation, count: int) -> tuple[list[int], list[int]]:
    """Row numbers of the ``count`` highest CCE (worst first) and of the ``count`` lowest (best first)."""
    scores = evaluation.valid_scores
    rows = scores.index.to_numpy()
    worst, best = extreme_points(scores["cce"].to_numpy(float), count)
    return rows[worst].tolist(), rows[best].tolist()


def extremes(evaluation: Evaluation) -> Figure:
    """Two strips of images: the highest CCE above, the lowest below, each with target and prediction."""
    thumbnails = evaluation.thumbnails
    assert thumbnails is not None
    worst, best = (
        (thumbnails(rows), [_caption(evaluation.scores.iloc[row]) for row in rows])
        for rows in extreme_rows(evaluation, IMAGES)
    )
    return image_strips(worst, best)


def _caption(row: pd.Series) -> str:
    numbers = (float(row[name]) if name in row and pd.notna(row[name]) else None for name in ("target", "mean", "std"))
    return caption(float(row["cce"]), *numbers)
