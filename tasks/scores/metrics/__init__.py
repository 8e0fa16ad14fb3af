"""The metrics of a version, each defined once: what it is, how it is made of rows, and where it is shown.

Here are the names that ``metrics:`` takes; the list itself, with what computes it, is loaded when one is looked up.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

METRICS_ASKED = "names of metrics, to narrow them; all that apply by default"
"""What the evaluation file's ``metrics:`` means."""


def _known(name: str) -> str:
    from congruence.tasks.scores.metrics.registry import metric_names

    if name not in metric_names():
        raise ValueError(f"'{name}' is no metric; choose from {', '.join(metric_names())}")
    return name


MetricName = Annotated[str, AfterValidator(_known)]
"""A name in the evaluation file's ``metrics:``."""
