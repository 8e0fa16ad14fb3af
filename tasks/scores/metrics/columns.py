"""The columns of the table of scores: what is each row's own, and what a version's predictions make of it."""

from __future__ import annotations

from congruence.kernels.calibration.pit_scores import ORDERS
from congruence.tasks.scores.metrics.registry import METRICS

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
