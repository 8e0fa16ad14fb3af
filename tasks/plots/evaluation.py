"""The pictures of an evaluation, and of versions compared: ``evaluation_figures`` draws all that an evaluation has.

Maps of the embeddings are in the report, where rows can be selected and opened on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.reading import GroupReading, group_readings
from congruence.kernels.engine.results import ExpectedCongruence
from congruence.kernels.pit_interpreter.interpretation import interpret_pit
from congruence.kernels.trust.judgement import RejectionCurve
from congruence.tasks import plots
from congruence.tasks.plots.comparison import FEWEST_ROWS, SLICES, Measured, Slice, slice_panels
from congruence.tasks.plots.maps import caption, image_strips
from congruence.tasks.plots.style import IMAGES, extreme_points, figure_of, shorten
from congruence.tasks.scores.evaluation import Evaluation, MetricValue
from congruence.tasks.scores.metrics.definitions import BAND
from congruence.tasks.scores.metrics.registry import column_labels, metric_of, shown
from congruence.tasks.scores.reading import FEWEST_INTERPRETED
from congruence.tasks.scores.summary import rejection_curves, slice_groups

_READING = f"dot: value; bar: 95 % confidence interval; green: {BAND}; lower is better"
_NAME_LETTERS, _VALUE_LETTERS = 20, 28


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
        yield "rootogram", figure_of(plots.rootogram(fit, title=f"Counts observed and predicted: {label}"))
    if curves := rejection_curves(evaluation.valid_scores["cce"], evaluation.valid_scores):
        yield "rejection", rejection_panels(curves, f"CCE of {label}")
    if not evaluation.slices.empty:
        yield "cce_by_slice", _cce_by_slice(evaluation)


def _calibration_figures(evaluation: Evaluation) -> Iterator[tuple[str, Figure]]:
    """The reliability diagram, and the PIT values as the interpreter or a histogram shows them."""
    pit, weights, label = evaluation.valid_scores["pit"].to_numpy(float), evaluation.weights, evaluation.model.label
    ece = evaluation.metrics.get("ece")
    line = "this version" + (f", ECE {ece}" if ece else "")
    title = f"Reliability of {label}"
    yield "reliability", figure_of(plots.reliability_diagram(pit, weights=weights, label=line, title=title))
    # The interpreter draws a distribution of many values: a curve through counts would show what they cannot be. Its
    # test takes values as independent.
    is_count = evaluation.predictive is not None and evaluation.predictive.is_discrete
    is_interpreted = not is_count and not _are_dependent(evaluation)
    if evaluation.split.valid_rows >= FEWEST_INTERPRETED and is_interpreted:
        yield "pit_interpretation", plots.pit_interpretation(interpret_pit(pit))
    else:
        title = f"PIT histogram of {label}"
        yield "pit_histogram", figure_of(plots.pit_histogram(pit, weights=weights, title=title))


def _are_dependent(evaluation: Evaluation) -> bool:
    return not {DEPENDENT_BLOCKS, ROW_CORRELATION}.isdisjoint(evaluation.metrics)


def _local_reliability(evaluation: Evaluation) -> Figure:
    """``plots.local_reliability`` at the medoid of the region that is most wrong, of an evaluation that has a curve."""
    wrong = evaluation.wrong
    assert wrong is not None
    assert wrong.curve is not None
    assert wrong.row is not None
    image = None if evaluation.thumbnails is None else evaluation.thumbnails([wrong.row])[0]
    title = f"Around one input of {wrong.region}: {evaluation.model.label}"
    return figure_of(plots.local_reliability(wrong.curve, image=image, note=f"row {wrong.row}", title=title))


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


def _extremes(evaluation: Evaluation) -> Figure:
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


def rejection_panels(curves: Mapping[str, RejectionCurve], criterion: str) -> Figure:
    """``plots.rejection_curves`` of curves by their loss columns, of which there are some."""
    labels = column_labels()
    return plots.rejection_curves(
        {f"mean {labels[name]}": curve for name, curve in curves.items()}, criterion=criterion
    )


def _cce_by_slice(evaluation: Evaluation) -> Figure:
    """``plots.cce_by_slice`` of the evaluation's slices, of which there are some: the highest."""
    table = evaluation.slices
    readings, q_values = slice_readings(evaluation)
    parts = []
    for (_, row), excess in zip(table.iterrows(), table["cce_excess"].tolist(), strict=True):
        column, value = str(row["slice"]), str(row["value"])
        name, key = f"{shorten(column, _NAME_LETTERS)} = {shorten(value, _VALUE_LETTERS)}", f"{column}\n{value}"
        parts.append(Slice(name, int(row["rows"]), excess, readings.get(key), q_values.get(key, 1.0)))
    whole = evaluation.metrics.get("cce_excess")
    return slice_panels(parts, whole=None if whole is None else whole.value, most=SLICES, label=evaluation.model.label)


def slice_readings(evaluation: Evaluation) -> tuple[dict[str, GroupReading], dict[str, float]]:
    """What PIT values say of each slice of 30 rows or more, by slice column and value in two lines, and q-values.

    Nothing of rows that depend on each other, for which intervals of independent rows are too short. Q-values of a
    version that all tests together do not contradict are 1, as its page names no fault of a part.
    """
    scores = evaluation.valid_scores
    if "pit" not in scores or _are_dependent(evaluation):
        return {}, {}
    groups: dict[str, Array] = {}
    for column in dict.fromkeys(evaluation.slices["slice"]):
        if column in scores:
            codes, values = slice_groups(scores[column])
            groups |= {f"{column}\n{value}": np.flatnonzero(codes == code) for code, value in enumerate(values)}
    large = {name: rows for name, rows in groups.items() if len(rows) >= FEWEST_ROWS}
    members = None if evaluation.predictive is None else evaluation.predictive.members
    readings, q_values = group_readings(scores["pit"].to_numpy(float), large, members=members)
    return readings, q_values if evaluation.verdict.is_wrong else dict.fromkeys(q_values, 1.0)


def versions_figure(metrics: Mapping[str, Mapping[str, MetricValue]]) -> Figure:
    """``plots.versions`` of the metrics by name, by the label of the version (lower is better everywhere).

    Behind the mean CCE lies the band in which it would be if the version were true.
    """
    names = [name for name in shown("compared") if any(name in values for values in metrics.values())]
    panels = {
        metric_of(name).label: {label: _measured(name, values) for label, values in metrics.items() if name in values}
        for name in names
        if name != "rmse"  # which says what the mean absolute error says
    }
    # A version that ignores its input is tens of times further from the truth than one that is true.
    return plots.versions(panels, names=list(metrics), logarithmic=[metric_of("cce_mean").label], note=_READING)


def _measured(name: str, values: Mapping[str, MetricValue]) -> Measured:
    band = _interval(values.get("cce_expected")) if name == "cce_mean" else None
    return Measured(values[name].value, _interval(values[name]), band)


def _interval(metric: MetricValue | None) -> tuple[float, float] | None:
    if metric is None or metric.low is None or metric.high is None:
        return None
    return metric.low, metric.high
