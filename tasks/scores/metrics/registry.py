"""The metrics by name and the columns of scores: what all that makes, logs, compares, shows or explains them reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from congruence.kernels.pit import ORDERS
from congruence.tasks.scores.metrics.definitions import DEFINITIONS
from congruence.tasks.scores.metrics.metric import Metric, Place

METRICS: dict[str, Metric] = {}
"""Every metric by its name, in order; ``register`` adds to it."""

_NO_NUMBER = "recalibration"
"""What an evaluation may be asked for and is no number: the preview of a correction."""


def register(metric: Metric) -> None:
    """Add a metric after all others: it is computed, logged, compared, shown and explained like them.

    Processes that do not import the code that registers it do not know it.

    Raises:
        ValueError: there is one of this name.
    """
    if metric.name in METRICS:
        raise ValueError(f"metric {metric.name!r} is there already; give it another name")
    METRICS[metric.name] = metric


for _metric in DEFINITIONS:
    register(_metric)


def metric_of(name: str) -> Metric:
    """The metric ``name``; one that nobody described is called what it is logged as."""
    return METRICS.get(name) or Metric(name, name)


def shown(place: Place) -> tuple[str, ...]:
    """The names of the metrics that are shown in a place, in their order there."""
    numbers = {name: metric.shown[place] for name, metric in METRICS.items() if place in metric.shown}
    return tuple(sorted(numbers, key=lambda name: numbers[name]))


SECTIONS = ("headline", "scores", "calibration", "coverage", "intervals", "others")
"""The sections that MLflow groups an evaluation's metrics into, in the order in which they are read."""


def logged_name(name: str, bound: str = "") -> str:
    """What the metric ``name`` is called in MLflow, or the end of its interval: ``bound`` is "low" or "high"."""
    return f"intervals/{name}_{bound}" if bound else f"{metric_of(name).section}/{name}"


def metric_names() -> tuple[str, ...]:
    """The names that the evaluation file's ``metrics:`` may have."""
    return (*dict.fromkeys(metric.asked for metric in METRICS.values() if metric.asked), _NO_NUMBER)


def requested_metrics(names: Sequence[str] | None) -> tuple[str, ...]:
    """What an evaluation computes, by names of ``metrics:``: ``names``, or all. CCE is always among them."""
    return metric_names() if names is None else tuple(dict.fromkeys(("cce", *names)))


def asked_for(requested: Sequence[str]) -> Iterator[Metric]:
    """The metrics that are asked for by ``requested``, and those that are always there."""
    return (metric for metric in METRICS.values() if not metric.asked or metric.asked in requested)


def mean_columns() -> dict[str, str]:
    """The metrics that are means of a column of the scores, and that column."""
    return {name: metric.column for name, metric in METRICS.items() if metric.is_mean_of_column}


RECALIBRATED = {"crps": "crps_recalibrated", "nll": "nll_recalibrated"}
"""By the column of a score, that of the same of each row's prediction when it is recalibrated, of some rows."""

REGION = "calibration_region"
"""A column of the scores: the region of the inputs that each row lies in."""

ROW_WEIGHT, ROW_GROUP, ROW_TIME = "row_weight", "row_group", "row_time"
"""What each row counts in means, codes of its group and its time as a number, where the split names them."""

ROW_COLUMNS = ("key", "valid", "reason", "target", ROW_WEIGHT, ROW_GROUP, ROW_TIME)
"""The rows' own."""

_EXPLAINED = (
    "key",
    "valid",
    "reason",
    "cce",
    "cce_noise_floor",
    "target",
    "mean",
    "std",
    "cce_p_value",
    "calibration_q_value",
    "calibration_fault",
)
_OTHERS = (
    "cce_excess",
    "cce_q_value",
    *(f"calibration_{each}" for each in (*ORDERS, "shift", "factor")),
    REGION,
)
_LABELS = {
    "cce": "CCE",
    "cce_excess": "excess CCE",
    "cce_noise_floor": "CCE if right",
    "target": "target",
    "mean": "prediction",
    "std": "predicted spread",
    "pit": "PIT",
}


def explained_columns() -> tuple[str, ...]:
    """The columns of an evaluation's scores that are explained; beside them stand slices, more of CCE, calibration."""
    return tuple(dict.fromkeys((*_EXPLAINED, *(metric.column for metric in METRICS.values() if metric.column))))


def column_labels() -> dict[str, str]:
    """What the columns of the scores are called on pages and pictures that show them."""
    return _LABELS | {metric.column: metric.column_label for metric in METRICS.values() if metric.column_label}


def version_columns() -> frozenset[str]:
    """The columns that a version's predictions make; the others are of the split's rows."""
    influences = {metric.influence for metric in METRICS.values() if metric.influence}
    return frozenset((*explained_columns(), *_OTHERS, *influences)) - set(ROW_COLUMNS)


def is_taken(column: str) -> bool:
    """Whether the scores have a column of this name, so that no slice may have it."""
    return column in ROW_COLUMNS or column in version_columns()
