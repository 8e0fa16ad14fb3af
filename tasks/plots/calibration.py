"""An evaluation's calibration: on average over the split, and what is wrong where."""

from __future__ import annotations

from matplotlib.figure import Figure

from congruence.kernels import plots
from congruence.kernels.arrays import Array
from congruence.kernels.plots.style import figure_of
from congruence.tasks.scores.evaluation import Evaluation


def pit_of(evaluation: Evaluation) -> Array:
    """The PIT values of the valid rows, (v,), of an evaluation that has them."""
    return evaluation.valid_scores["pit"].to_numpy(float)


def reliability_diagram(evaluation: Evaluation) -> Figure:
    """``plots.reliability_diagram`` of the valid rows."""
    ece = evaluation.metrics.get("ece")
    label, title = "this version" + (f", ECE {ece}" if ece else ""), f"Reliability of {evaluation.model.label}"
    return figure_of(
        plots.reliability_diagram(pit_of(evaluation), weights=evaluation.weights, label=label, title=title)
    )


def pit_histogram(evaluation: Evaluation) -> Figure:
    """``plots.pit_histogram`` of the valid rows."""
    title = f"PIT histogram of {evaluation.model.label}"
    return figure_of(plots.pit_histogram(pit_of(evaluation), weights=evaluation.weights, title=title))


def local_reliability(evaluation: Evaluation) -> Figure:
    """``plots.local_reliability`` at the medoid of the region that is most wrong, of an evaluation that has a curve."""
    wrong = evaluation.wrong
    assert wrong is not None
    assert wrong.curve is not None
    assert wrong.row is not None
    image = None if evaluation.thumbnails is None else evaluation.thumbnails([wrong.row])[0]
    title = f"Around one input of {wrong.region}: {evaluation.model.label}"
    return figure_of(plots.local_reliability(wrong.curve, image=image, note=f"row {wrong.row}", title=title))
