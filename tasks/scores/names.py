"""The metrics that an evaluation can compute, by the names of the evaluation file's `metrics:`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

MetricName = Literal[
    "cce",
    "congruence_test",
    "calibration",
    "recalibration",
    "nll",
    "crps",
    "mae",
    "rmse",
    "ece",
    "pit",
    "skce",
    "coverage",
    "sharpness",
    "actual_over_expected",
    "deviance",
]

MEANS = {"nll_mean": "nll", "crps_mean": "crps", "mae": "absolute_error"}
"""The metrics that are the mean of a column of the scores, and that column."""

SHARES_OF_QUANTILES = {"quantile_crossing_share": "quantile_crossing", "beyond_quantiles_share": "beyond_quantiles"}
"""The metrics of versions that predict quantiles, and the column of the scores that they are the mean of."""

EFFECTS = {
    f"calibration_effect_{order}": f"calibration_influence_{order}" for order in ("bias", "spread", "skew", "tails")
}
"""The effects of calibration given the input, and the column of what each row contributes to them."""

REGION = "calibration_region"
"""A column of the scores: the region of the inputs that each row lies in."""

SCORES = (
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
    "nll",
    "crps",
    "absolute_error",
    "squared_error",
    "pit",
    *SHARES_OF_QUANTILES.values(),
)
"""Columns of an evaluation's scores that are explained; beside them stand slices, and more of CCE and calibration."""

ROW_WEIGHT, ROW_GROUP, ROW_TIME = "row_weight", "row_group", "row_time"
"""What each row counts in means, codes of its group and its time as a number, where the split names them."""

ROW_COLUMNS = ("key", "valid", "reason", "target", ROW_WEIGHT, ROW_GROUP, ROW_TIME)

METRICS: tuple[MetricName, ...] = get_args(MetricName)


def requested_metrics(names: Sequence[MetricName] | None) -> tuple[str, ...]:
    """The metrics that an evaluation computes: ``names``, or all of them. CCE is always among them."""
    return METRICS if names is None else tuple(dict.fromkeys(("cce", *names)))


def is_of_the_version(column: str) -> bool:
    """Whether a version's predictions make this column of the scores; the others are of the split's rows."""
    return (column in SCORES and column not in ROW_COLUMNS) or column.startswith(("cce_", "calibration_"))


def is_taken(column: str) -> bool:
    """Whether the scores have a column of this name, so that no slice may have it."""
    return column in ROW_COLUMNS or is_of_the_version(column)
