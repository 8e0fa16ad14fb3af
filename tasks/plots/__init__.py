"""The pictures of an evaluation, by ``congruence.kernels.plots``; ``evaluation_figures`` draws all that it has.

Maps of the embeddings are in the report, where rows can be selected and opened on them.
"""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from congruence.kernels import plots
from congruence.kernels.collector import collector_paused
from congruence.kernels.pit_interpreter import interpret_pit
from congruence.kernels.plots.style import figure_of, png
from congruence.tasks.plots.calibration import local_reliability, pit_histogram, pit_of, reliability_diagram
from congruence.tasks.plots.points import cce_histogram, extremes
from congruence.tasks.plots.rejection import rejection_curves, rejection_panels
from congruence.tasks.plots.slices import cce_by_slice
from congruence.tasks.scores.counts import CountFit, count_fit
from congruence.tasks.scores.evaluation import Evaluation
from congruence.tasks.scores.reading_pit import FEWEST_INTERPRETED


def evaluation_figures(evaluation: Evaluation, *, counts: CountFit | None = None) -> Iterator[tuple[str, Figure]]:
    """Every plot that this evaluation has the data for, by its name, drawn one at a time.

    ``counts`` is its ``count_fit``, where that is known already.
    """
    if evaluation.wrong is not None and evaluation.wrong.curve is not None:
        yield "local_reliability", local_reliability(evaluation)
    yield "cce_histogram", cce_histogram(evaluation)
    if evaluation.thumbnails is not None and evaluation.split.valid_rows >= 2:
        yield "extremes", extremes(evaluation)
    if "pit" in evaluation.scores:
        yield "reliability", reliability_diagram(evaluation)
        # The interpreter draws a law of many values: a curve through counts would show what they cannot be.
        is_count = evaluation.predictive is not None and evaluation.predictive.is_discrete
        if evaluation.split.valid_rows >= FEWEST_INTERPRETED and not is_count:
            yield "pit_interpretation", plots.pit_interpretation(interpret_pit(pit_of(evaluation)))
        else:
            yield "pit_histogram", pit_histogram(evaluation)
    if (fit := counts or count_fit(evaluation)) is not None:
        yield (
            "rootogram",
            figure_of(plots.rootogram(fit, title=f"Counts observed and predicted: {evaluation.model.label}")),
        )
    if curves := rejection_curves(evaluation):
        yield "rejection", rejection_panels(curves, f"CCE of {evaluation.model.label}")
    if not evaluation.slices.empty:
        yield "cce_by_slice", cce_by_slice(evaluation)


def evaluation_pictures(evaluation: Evaluation, *, counts: CountFit | None = None) -> dict[str, bytes]:
    """``evaluation_figures`` as PNG bytes by name, each forgotten when it is drawn.

    A figure is a knot of thousands of objects that refer to each other. One that lives to be old ends by a collection
    of everything that the process holds, modules included: an eighth of the time that pictures take.
    """
    pictures: dict[str, bytes] = {}
    figures = evaluation_figures(evaluation, counts=counts)
    while True:
        with collector_paused(young=True):
            name, picture = _next_picture(figures)
        if not name:
            return pictures
        pictures[name] = picture


def _next_picture(figures: Iterator[tuple[str, Figure]]) -> tuple[str, bytes]:
    """The next figure drawn, and nothing left of it; no name where there is none."""
    for name, figure in figures:
        return name, png(figure)
    return "", b""
