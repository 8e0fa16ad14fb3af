"""An evaluation's calibration: on average over the split, and what is wrong where."""

from __future__ import annotations

from matplotlib.figure import Figure

from congruence.kernels import plots
from congruence.kernels.arrays import Array
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.plots.style import figure_of
from congruence.tasks.scores.evaluation import ROW_WEIGHT, Evaluation


def pit_of(evaluation: Evaluation) -> Array:
    """The PIT values of the valid rows, (v,).

    Raises:
        InvalidInputError: the scores have no ``pit`` column.
    """
    if "pit" not in evaluation.scores:
        raise InvalidInputError("scores: no column pit; this evaluation has no probability integral transform")
    return evaluation.valid_scores["pit"].to_numpy(float)


def weights_of(evaluation: Evaluation) -> Array | None:
    """What each valid row counts in means, (v,); None where all count alike."""
    scores = evaluation.valid_scores
    return scores[ROW_WEIGHT].to_numpy(float) if ROW_WEIGHT in scores else None


def reliability_diagram(evaluation: Evaluation, *, levels: int = 50) -> Figure:
    """``plots.reliability_diagram`` of the valid rows."""
    ece = evaluation.metrics.get("ece")
    label, title = "this version" + (f", ECE {ece}" if ece else ""), f"Reliability of {evaluation.model.label}"
    pit, weights = pit_of(evaluation), weights_of(evaluation)
    return figure_of(plots.reliability_diagram(pit, levels=levels, weights=weights, label=label, title=title))


def pit_histogram(evaluation: Evaluation, *, bins: int = 20) -> Figure:
    """``plots.pit_histogram`` of the valid rows."""
    title = f"PIT histogram of {evaluation.model.label}"
    return figure_of(plots.pit_histogram(pit_of(evaluation), bins=bins, weights=weights_of(evaluation), title=title))


def local_reliability(evaluation: Evaluation) -> Figure:
    """``plots.local_reliability`` at the medoid of the region that is most wrong.

    Raises:
        InvalidInputError: the evaluation has no local reading.
    """
    wrong = evaluation.wrong
    if wrong is None or wrong.curve is None or wrong.row is None:
        raise InvalidInputError("local_reliability: this evaluation has no local reading of its calibration")
    image = None if evaluation.thumbnails is None else evaluation.thumbnails([wrong.row])[0]
    title = f"Around one input of {wrong.region}: {evaluation.model.label}"
    return figure_of(plots.local_reliability(wrong.curve, image=image, note=f"row {wrong.row}", title=title))
