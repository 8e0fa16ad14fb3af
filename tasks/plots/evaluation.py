"""The pictures of a version over all rows: reliability, PIT values, counts, CCE, and what withholding rows gains.

``evaluation_figures`` draws all that an evaluation has; maps of the embeddings are in its report, where rows can be
selected and opened on them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from congruence.kernels.arrays import Array, effective_rows, require_weights
from congruence.kernels.conditional_calibration.local_reading import LocalDistribution
from congruence.kernels.engine.results import ExpectedCongruence
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.marginal_calibration import CountFrequencies, calibration_error_of_pit, reliability_curve
from congruence.kernels.pit import require_pit
from congruence.kernels.pit_interpreter.interpretation import Interpretation, interpret_pit
from congruence.kernels.trust.judgement import RejectionCurve
from congruence.tasks.plots.comparison import slices_figure
from congruence.tasks.plots.maps import caption, image_strips, show_image
from congruence.tasks.plots.style import (
    BLUE,
    BY_CCE,
    FLOOR_LABEL,
    GREEN,
    IMAGES,
    INK,
    MUTED,
    ORANGE,
    RED,
    Errors,
    draw_withholding,
    dress,
    dressed,
    errors_of,
    extreme_points,
    figure_of,
    figure_or_new,
    legend,
)
from congruence.tasks.scores.evaluation import Evaluation
from congruence.tasks.scores.metrics.registry import column_labels
from congruence.tasks.scores.reading import FEWEST_INTERPRETED
from congruence.tasks.scores.summary import rejection_curves as curves_by_loss
from congruence.tasks.sentences.calibration import interpretation_sentence, p_value_in_words


def evaluation_figures(evaluation: Evaluation) -> Iterator[tuple[str, Figure]]:
    """Every plot that this evaluation has the data for, by its name, drawn one at a time."""
    if evaluation.wrong is not None and evaluation.wrong.curve is not None:
        yield "local_reliability", _local_reliability(evaluation)
    yield "cce_histogram", cce_histogram(evaluation)
    if evaluation.thumbnails is not None and evaluation.split.valid_rows >= 2:
        yield "extremes", _extremes(evaluation)
    if "pit" in evaluation.scores:
        yield from _calibration_figures(evaluation)
    label = evaluation.model.label
    if (fit := evaluation.count_fit) is not None:
        yield "rootogram", figure_of(rootogram(fit, title=f"Counts observed and predicted: {label}"))
    if curves := curves_by_loss(evaluation.valid_scores["cce"], evaluation.valid_scores):
        yield "rejection", rejection_panels(curves, f"CCE of {label}")
    if not evaluation.slices.empty:
        yield "cce_by_slice", slices_figure(evaluation)


def _calibration_figures(evaluation: Evaluation) -> Iterator[tuple[str, Figure]]:
    """The reliability diagram, and the PIT values as the interpreter or a histogram shows them."""
    pit, weights, label = evaluation.valid_scores["pit"].to_numpy(float), evaluation.weights, evaluation.model.label
    ece = evaluation.metrics.get("ece")
    line = "this version" + (f", ECE {ece}" if ece else "")
    title = f"Reliability of {label}"
    yield "reliability", figure_of(reliability_diagram(pit, weights=weights, label=line, title=title))
    # The interpreter draws a distribution of many values: a curve through counts would show what they cannot be. Its
    # test takes values as independent.
    is_count = evaluation.predictive is not None and evaluation.predictive.is_discrete
    is_interpreted = not is_count and not evaluation.has_dependent_rows
    if evaluation.split.valid_rows >= FEWEST_INTERPRETED and is_interpreted:
        yield "pit_interpretation", pit_interpretation(interpret_pit(pit))
    else:
        title = f"PIT histogram of {label}"
        yield "pit_histogram", figure_of(pit_histogram(pit, weights=weights, title=title))


def _local_reliability(evaluation: Evaluation) -> Figure:
    """``local_reliability`` at the medoid of the region that is most wrong, of an evaluation that has a curve."""
    wrong = evaluation.wrong
    assert wrong is not None
    assert wrong.curve is not None
    assert wrong.row is not None
    image = None if evaluation.thumbnails is None else evaluation.thumbnails([wrong.row])[0]
    title = f"Around one input of {wrong.region}: {evaluation.model.label}"
    return figure_of(local_reliability(wrong.curve, image=image, note=f"row {wrong.row}", title=title))


def cce_histogram(evaluation: Evaluation) -> Figure:
    """``congruence_histogram`` of the valid rows."""
    title = f"CCE of {evaluation.model.label} on {evaluation.split.name}"
    known, expected = evaluation.metrics.get("cce_expected"), None
    if known is not None and known.interval is not None:
        expected = ExpectedCongruence(known.value, *known.interval)
    return figure_of(congruence_histogram(evaluation.valid_scores, expected=expected, title=title))


def extreme_rows(evaluation: Evaluation, count: int) -> tuple[list[int], list[int]]:
    """Row numbers of the ``count`` highest CCE (worst first) and of the ``count`` lowest (best first)."""
    scores = evaluation.valid_scores
    rows = scores.index.to_numpy()
    worst, best = extreme_points(scores["cce"].to_numpy(float), count)
    return rows[worst].tolist(), rows[best].tolist()


def _extremes(evaluation: Evaluation) -> Figure:
    """Two strips of images: the highest CCE above, the lowest below, each with target and prediction."""
    thumbnails = evaluation.thumbnails
    assert thumbnails is not None

    def said(row: pd.Series[Any]) -> str:
        named = (row.get(name) for name in ("target", "mean", "std"))
        return caption(float(row["cce"]), *(float(each) if pd.notna(each) else None for each in named))

    worst, best = (
        (thumbnails(rows), [said(evaluation.scores.iloc[row]) for row in rows])
        for rows in extreme_rows(evaluation, IMAGES)
    )
    return image_strips(worst, best)


def rejection_panels(curves: Mapping[str, RejectionCurve], criterion: str) -> Figure:
    """``rejection_curves`` of curves by their loss columns, of which there are some."""
    labels = column_labels()
    return rejection_curves({f"mean {labels[name]}": curve for name, curve in curves.items()}, criterion=criterion)


_ASKED = "predicted probability of an outcome at most this high"
_TITLE_WIDTH = 105
_TITLE_LINES = 4


def pit_histogram(
    pit: Any, *, bins: int = 20, weights: Any | None = None, title: str = "PIT histogram", axes: Axes | None = None
) -> Axes:
    """Density of the PIT values, with the band that 95 % of bars stay in if the model is calibrated.

    Args:
        pit: PIT values (n,), as ``pit_values(y, predictive)`` gives them.
        bins: of the histogram.
        weights: what each row counts, (n,); the band is that of their effective number.
        title: of the picture.
        axes: to draw on; by default those of a new figure.

    Raises:
        InvalidInputError: values that are no probabilities, by row.
    """
    values = require_pit(pit)
    rows = len(values) if weights is None else effective_rows(require_weights(weights, len(values)))
    density, edges = np.histogram(values, bins=bins, range=(0.0, 1.0), density=True, weights=weights)
    error = 1.96 * np.sqrt((bins - 1.0) / rows)
    axes = dressed(axes, title, "PIT: predicted probability of the outcome or less", "density (1 if calibrated)")
    axes.stairs(density, edges, fill=True, color=BLUE, alpha=0.75)
    axes.vlines(edges[1:-1], 0.0, np.minimum(density[:-1], density[1:]), color="white", linewidth=1.0)
    axes.axhspan(max(0.0, 1.0 - error), 1.0 + error, color=MUTED, alpha=0.25, linewidth=0, label="95 % if calibrated")
    axes.axhline(1.0, color=INK, linewidth=1, linestyle="--")
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0.0)
    legend(axes)
    return axes


def reliability_diagram(
    pit: Any,
    *,
    levels: int = 50,
    weights: Any | None = None,
    label: str | None = None,
    title: str = "Reliability",
    axes: Axes | None = None,
) -> Axes:
    """Observed share of outcomes at or below each predicted quantile, with the 95 % band of a calibrated model.

    Args:
        pit: PIT values (n,), as ``pit_values(y, predictive)`` gives them.
        levels: of the curve, evenly spaced.
        weights: what each row counts, (n,); the band is that of their effective number.
        label: of the curve; by default it says the expected calibration error at these levels.
        title: of the picture.
        axes: to draw on; by default those of a new figure.

    Raises:
        InvalidInputError: values that are no probabilities, by row; or no levels.
    """
    values = require_pit(pit)
    expected, observed = reliability_curve(values, levels=levels, row_weights=weights)
    rows = len(values) if weights is None else effective_rows(np.asarray(weights, dtype=np.float64))
    band = 1.96 * np.sqrt(expected * (1.0 - expected) / rows)
    if label is None:
        label = f"this version, ECE {calibration_error_of_pit(values, levels=levels, row_weights=weights):.4g}"
    axes = dressed(axes, title, _ASKED, "share of outcomes that were", width=4.8, height=4.6)
    axes.fill_between(expected, expected - band, expected + band, color=MUTED, alpha=0.25, linewidth=0,
                      label="95 % band if calibrated")  # fmt: skip
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="--")
    axes.plot(expected, observed, color=BLUE, linewidth=2, label=label)
    _unit_square(axes)
    return axes


def local_reliability(
    curve: LocalDistribution,
    point: int = 0,
    *,
    image: Any | None = None,
    note: str = "",
    title: str = "Reliability around one input",
    axes: Axes | None = None,
) -> Axes:
    """The P-P plot around one input, with the 95 % band of a version that is right there.

    Args:
        curve: the smoothed distribution of the PIT values at m points (``local_distribution``).
        point: which of them.
        image: of the input, drawn into the corner: a PIL image or an array (h, w) or (h, w, 3).
        note: what stands in the corner where there is no image, such as the row's number.
        title: of the picture.
        axes: to draw on; by default those of a new figure.

    Raises:
        InvalidInputError: there is no such point.
    """
    if not 0 <= point < len(curve.shares):
        raise InvalidInputError(f"point: is {point}, expected one of 0 to {len(curve.shares) - 1}")
    axes = dressed(axes, title, _ASKED, "share of outcomes around it that were", width=4.8, height=4.6)
    axes.fill_between(curve.levels, curve.lower[point], curve.upper[point], color=MUTED, alpha=0.25, linewidth=0,
                      label="95 % band if right")  # fmt: skip
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="--")
    axes.plot(curve.levels, curve.rearranged()[point], color=BLUE, linewidth=2, label="this version")
    _unit_square(axes)
    if image is not None:
        inset = axes.inset_axes((0.72, 0.04, 0.25, 0.25))
        show_image(inset, image)
        inset.spines[:].set_color(RED)
    elif note:
        axes.annotate(note, (0.97, 0.04), xycoords="axes fraction", ha="right", fontsize=8.5, color=INK)
    return axes


def _unit_square(axes: Axes) -> None:
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    legend(axes, loc="upper left")


def rootogram(
    frequencies: CountFrequencies, *, title: str = "Counts observed and predicted", axes: Axes | None = None
) -> Axes:
    """Bars of the observed frequencies, a line of the expected ones, and the band of a version that is true.

    A square root has nearly the same spread whatever the frequency, so rare counts can be judged beside common ones.

    Args:
        frequencies: from ``count_frequencies(y, predictive)``.
        title: of the picture.
        axes: to draw on; by default those of a new figure.
    """
    found = frequencies
    axes = dressed(axes, title, "count", "square root of the number of rows")
    places = np.arange(len(found.starts))
    axes.bar(places, np.sqrt(found.observed), width=0.85, color=BLUE, alpha=0.6, label="observed")
    low = np.sqrt(np.maximum(found.expected - 1.96 * found.std, 0.0))
    high = np.sqrt(found.expected + 1.96 * found.std)
    axes.fill_between(places, low, high, color=GREEN, alpha=0.3, linewidth=0, label="95 % if the version is true")
    axes.plot(places, np.sqrt(found.expected), color=GREEN, linewidth=1.8, marker="o", markersize=3, label="expected")
    names = [f"{start:.0f}" for start in found.starts]
    names[-1] += "+"
    step = max(1, len(places) // 12)
    shown = sorted({*places[::step].tolist(), int(places[-1])})
    axes.set_xticks(shown, [names[place] for place in shown])
    axes.set_ylim(bottom=0.0)
    axes.tick_params(axis="x", colors=INK)
    legend(axes)
    return axes


def pit_interpretation(interpretation: Interpretation, *, figure: Figure | None = None) -> Figure:
    """The PIT histogram and what it says of the targets; the verdict is the title.

    Left: the PIT histogram with its reconstruction. Right: the estimated data-generating density with its resampling
    interval against the predictive one.

    Args:
        interpretation: of PIT values, from ``interpret_pit``.
        figure: to draw on; by default a new one.
    """
    figure = figure_or_new(figure, 10.0, 4.4)
    left, right = figure.subplots(1, 2)

    distance, sampling = interpretation.reconstruction_distance, interpretation.sampling_distance
    title = f"n = {interpretation.rows:,}; total variation {distance:.3f} (sampling alone {sampling:.3f})"
    dress(left, title, "PIT value", "density")
    edges = np.linspace(0.0, 1.0, len(interpretation.histogram) + 1)
    left.stairs(interpretation.histogram, edges, fill=True, color=BLUE, alpha=0.3, label="PIT histogram")
    left.stairs(interpretation.reconstruction, edges, color=ORANGE, linewidth=1.8, label="reconstruction")
    left.axhline(1.0, color=MUTED, linestyle=":", linewidth=1.0, label="calibrated")
    left.set(xlim=(0.0, 1.0), ylim=(0.0, None))
    legend(left)

    said = p_value_in_words(interpretation.uniformity.p_value)
    dress(right, f"uniformity: {said}", "predictive standard deviations", "density")
    support = interpretation.support
    predictive = np.exp(-0.5 * support**2) / np.sqrt(2.0 * np.pi)
    low, high = interpretation.density_low, interpretation.density_high
    right.fill_between(support, low, high, color=ORANGE, alpha=0.25, linewidth=0)
    right.plot(support, interpretation.density, color=ORANGE, linewidth=1.8, label="data-generating")
    right.plot(support, predictive, color=BLUE, linestyle="--", label="predictive")
    right.set(xlim=(-4.0, 4.0), ylim=(0.0, None))
    legend(right)

    sentence = interpretation_sentence(interpretation)
    lines = textwrap.wrap(sentence, _TITLE_WIDTH, max_lines=_TITLE_LINES, placeholder=" ...")
    figure.suptitle("\n".join(lines), fontsize=11, color=INK)
    return figure


def congruence_histogram(
    result: Errors,
    *,
    expected: ExpectedCongruence | None = None,
    bins: int = 50,
    title: str = "CCE",
    axes: Axes | None = None,
) -> Axes:
    """Histogram of CCE over the points, its mean, and the band in which the mean of a true version would lie.

    The noise floor of a point is the root mean square of what a true version would score there, so a true version's CCE
    is spread around it.

    Args:
        result: CCE at m points, or its table.
        expected: of the mean if the version were true, as ``CongruenceResult.band`` has it.
        bins: of the histogram.
        title: of the picture.
        axes: to draw on; by default those of a new figure.

    Raises:
        InvalidInputError: neither a result nor a table with its columns.
    """
    cce, floor = errors_of(result)
    edges = np.linspace(0.0, max(float(np.quantile(cce, 0.999)), float(floor.max())) * 1.02 or 1.0, bins + 1)
    axes = dressed(axes, title, "CCE at a point, in the unit-free distance of the protocol", "share of points")
    axes.stairs(_shares(cce, edges), edges, fill=True, color=BLUE, alpha=0.75, label="this version")
    axes.stairs(_shares(floor, edges), edges, color=GREEN, linewidth=1.6, label=FLOOR_LABEL)
    axes.axvline(float(cce.mean()), color=INK, linewidth=1.2, label=f"mean CCE {cce.mean():.4g}")
    if expected is not None:
        label = f"mean of a true version {expected.mean:.3g} [{expected.low:.3g}, {expected.high:.3g}]"
        axes.axvspan(expected.low, expected.high, color=GREEN, alpha=0.25, label=label)
    axes.set_xlim(0.0, edges[-1])
    legend(axes)
    return axes


def _shares(values: Array, edges: Array) -> Array:
    """The share of the values in each bin; those beyond the last edge are in the last bin."""
    return np.asarray(np.histogram(np.minimum(values, edges[-1]), edges)[0] / len(values))


def rejection_curves(
    curves: Mapping[str, RejectionCurve], *, criterion: str = "CCE", figure: Figure | None = None
) -> Figure:
    """One ``rejection_panel`` a curve, side by side.

    Args:
        curves: by what each loss is called, such as "mean CRPS".
        criterion: what the points are withheld by, for the title.
        figure: to draw on; by default a new one.

    Raises:
        InvalidInputError: there are none.
    """
    if not curves:
        raise InvalidInputError("curves: there are none; give a rejection_curve(cce, loss) by the name of its loss")
    figure = figure_or_new(figure, 3.4 * len(curves), 3.4)
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (loss, curve) in zip(panels, curves.items(), strict=True):
        draw_withholding(axes, {BY_CCE: curve}, loss)
    legend(panels[0])
    figure.suptitle(f"Withholding by {criterion}", x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure
