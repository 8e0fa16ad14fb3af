"""What becomes of the looks that a watcher closed: people are told of a version that turned out wrong or changed."""

from __future__ import annotations

import math
from collections.abc import Mapping

from congruence.flows.scheduling.events import emit_verdict
from congruence.kernels.monitoring import Monitor
from congruence.tasks.mlflow import place_of
from congruence.tasks.mlflow.over_time import log_over_time
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.watching import Finding
from congruence.tasks.watching.notification import notify


def announce(looks: Mapping[tuple[str, str], Finding], settings: EvaluationSettings) -> None:
    """Draw the page of each model over time; send a notice and an event where a verdict changed.

    Args:
        looks: by the label of the version and the split.
        settings: with ``notify:``.
    """
    for name in sorted({label.rpartition("/")[0] for label, _ in looks}):
        monitor = settings.watch.monitor
        log_over_time(name, Monitor(monitor.level, monitor.average_run_length), settings.tracking)
    for (label, split), finding in looks.items():
        if finding.changed_the_verdict:
            link = place_of(finding.look.run_id, settings.tracking)
            notify(settings.notify, f"congruence: {label} on {split}: {finding.sentence}", _message(finding, link))
            emit_verdict(label, split, finding, link)


def _message(finding: Finding, link: str) -> str:
    monitor = finding.monitor
    return (
        f"Evidence that the version is wrong: {_size(float(monitor.evidence[-1]))}; it is called wrong from "
        f"{1.0 / monitor.level:.0f} on. Evidence of a change: {_size(float(monitor.detector[-1]))}, of "
        f"{monitor.average_run_length:.0f}. p of this look: {monitor.looks[-1].p_value:.2g}. {link}"
    )


def _size(logarithm: float) -> str:
    return f"{math.exp(logarithm):.3g}" if logarithm < 100.0 else f"10^{logarithm / math.log(10.0):.0f}"
