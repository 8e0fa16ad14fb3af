"""Versions side by side: every headline metric with its interval."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from congruence.kernels import plots
from congruence.kernels.plots import Measured
from congruence.tasks.scores.evaluation import Metric
from congruence.tasks.scores.meanings import BAND, COMPARED, meaning

SHOWN = tuple(name for name in COMPARED if name != "rmse")  # which says what the mean absolute error says
_READING = f"dot: value; bar: 95 % confidence interval; green: {BAND}; lower is better"


def versions_figure(metrics: Mapping[str, Mapping[str, Metric]]) -> Figure:
    """``plots.versions`` of the metrics by name, by the label of the version (lower is better everywhere).

    Behind the mean CCE lies the band in which it would be if the version were true.
    """
    shown = [name for name in SHOWN if any(name in values for values in metrics.values())]
    panels = {
        meaning(name).label: {label: _measured(name, values) for label, values in metrics.items() if name in values}
        for name in shown
    }
    # A version that ignores its input is tens of times further from the truth than one that is true.
    return plots.versions(panels, names=list(metrics), logarithmic=[meaning("cce_mean").label], note=_READING)


def _measured(name: str, values: Mapping[str, Metric]) -> Measured:
    band = _interval(values.get("cce_expected")) if name == "cce_mean" else None
    return Measured(values[name].value, _interval(values[name]), band)


def _interval(metric: Metric | None) -> tuple[float, float] | None:
    if metric is None or metric.low is None or metric.high is None:
        return None
    return metric.low, metric.high
