"""Where in the space of inputs a version fails: CCE over a 2-D map of the embeddings."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.plots.style import INK, MUTED, RED, SEQUENTIAL, dress, new_figure, spread
from congruence.tasks.scores.evaluation import Evaluation

POINTS = 20_000


def embedding_map(evaluation: Evaluation, *, points: int = POINTS) -> Figure:
    """Scatter of the 2-D map coloured by CCE, the worst points drawn last; at most ``points`` points.

    Raises:
        InvalidInputError: the evaluation carries no map.
    """
    if evaluation.embedding_map is None:
        raise InvalidInputError("embedding_map: this evaluation has no 2-D map of its embeddings")
    scores = evaluation.valid_scores
    place = np.asarray(evaluation.embedding_map)[scores.index.to_numpy()]
    cce = scores["cce"].to_numpy(float)
    shown = spread(np.arange(len(cce)), points)
    shown = shown[np.argsort(cce[shown], kind="stable")]
    figure = new_figure(6.4, 5.2)
    axes = figure.add_subplot()
    dress(
        axes,
        f"CCE over the embeddings: {evaluation.model.label}",
        "first principal component of the embeddings",
        "second principal component",
    )
    size = float(np.clip(6000.0 / max(len(shown), 1), 2.0, 20.0))
    low, high = np.quantile(cce, [0.01, 0.99])
    dots = axes.scatter(
        place[shown, 0], place[shown, 1], c=cce[shown], s=size, cmap=SEQUENTIAL, vmin=low, vmax=high, linewidths=0
    )
    bar = figure.colorbar(dots, ax=axes, extend="both")
    expected = evaluation.metrics.get("cce_expected")
    line = float(scores["cce_noise_floor"].mean()) if expected is None else expected.value
    bar.set_label("CCE; the line is what a true version has on average", fontsize=9.5, color=INK)
    if low < line < high:
        bar.ax.axhline(line, color=RED, linewidth=2)
    bar.ax.tick_params(labelsize=8.5)
    axes.set_xticklabels([])
    axes.set_yticklabels([])
    if len(shown) < len(cce):
        axes.annotate(f"{len(shown):,} of {len(cce):,} points", (0, -0.02), xycoords="axes fraction", color=MUTED,
                      fontsize=8, va="top")  # fmt: skip
    return figure
