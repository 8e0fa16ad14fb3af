"""A version's metrics in the groups in which people look for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from congruence.tasks.scores.evaluation import MetricValue
from congruence.tasks.scores.meanings import MEANINGS, Meaning, meaning

GROUPS = {
    "Distance": ("cce",),
    "Score": ("nll", "crps", "mae", "rmse"),
    "Sharpness": ("sharpness", "width"),
    "Calibration": ("calibration", "look", "ece", "ert", "coverage", "pit", "skce", "quantile", "beyond"),
    "Totals and counts": ("actual", "deviance"),
}
OTHERS = "Others"


@dataclass(frozen=True)
class Row:
    """A metric as it was logged, and what it means."""

    name: str
    metric: MetricValue
    meaning: Meaning


def grouped(metrics: Mapping[str, MetricValue]) -> dict[str, list[Row]]:
    """Every metric in its group, in the order in which they are explained; no empty groups."""
    ordered = [name for name in MEANINGS if name in metrics]
    ordered += [name for name in metrics if name not in MEANINGS]
    found: dict[str, list[Row]] = {group: [] for group in (*GROUPS, OTHERS)}
    for name in ordered:
        group = next((group for group, starts in GROUPS.items() if name.startswith(starts)), OTHERS)
        found[group].append(Row(name, metrics[name], meaning(name)))
    return {group: rows for group, rows in found.items() if rows}
