"""The inputs with the highest and the lowest CCE, side by side."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.plots.style import GREEN, INK, RED, new_figure
from congruence.tasks.scores.evaluation import Evaluation

IMAGES = 8


def extreme_rows(evaluation: Evaluation, count: int) -> tuple[list[int], list[int]]:
    """Row numbers of the ``count`` highest CCE (worst first) and of the ``count`` lowest (best first)."""
    cce = evaluation.valid_scores["cce"].sort_values(kind="stable")
    count = min(count, len(cce) // 2)
    return [int(row) for row in cce.index[::-1][:count]], [int(row) for row in cce.index[:count]]


def extremes(evaluation: Evaluation, *, images: int = IMAGES) -> Figure:
    """Two strips of images: the highest CCE above, the lowest below, each with target and prediction.

    Raises:
        InvalidInputError: the evaluation's inputs are not images.
    """
    if evaluation.thumbnails is None:
        raise InvalidInputError("thumbnails: this evaluation has no images; see the table of worst and best points")
    worst, best = extreme_rows(evaluation, images)
    figure = new_figure(max(1.25 * len(worst), 3.0), 3.9)
    strips = figure.subplots(2, max(len(worst), 1), squeeze=False)
    for strip, rows, colour, name in zip(strips, (worst, best), (RED, GREEN), ("highest", "lowest"), strict=True):
        pictures = evaluation.thumbnails(rows)
        for axes, row, picture in zip(strip, rows, pictures, strict=True):
            grey = picture.mode in ("L", "1", "I", "F")
            axes.imshow(np.asarray(picture), cmap="gray" if grey else None, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_color(colour)
            axes.spines[:].set_linewidth(1.5)
            axes.set_xlabel(_caption(evaluation.scores.iloc[row]), fontsize=7.5, color=INK)
        strip[0].set_title(f"{name} CCE", fontsize=9.5, color=colour, fontweight="bold", loc="left")
    return figure


def _caption(row: pd.Series) -> str:
    lines = [f"CCE {row['cce']:.3f}"]
    if "target" in row and pd.notna(row["target"]):
        lines.append(f"y = {row['target']:.4g}")
    if "mean" in row and pd.notna(row["mean"]):
        spread = f" ± {row['std']:.3g}" if "std" in row and pd.notna(row["std"]) else ""
        lines.append(f"f: {row['mean']:.4g}{spread}")
    return "\n".join(lines)
