"""What becomes of the looks that a watcher closed: people are told of a version that turned out wrong or changed."""

from __future__ import annotations

import math
from collections.abc import Mapping

from congruence.flows.scheduling.events import emit_verdict
from congruence.kernels.monitoring import Monitor
from congruence.tasks.mlflow.over_time import log_over_time
from congruence.tasks.mlflow.pages import place_of
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.watching.account import Finding
from congruence.tasks.watching.notification import send


def announce(looks: Mapping[tuple[str, str], Finding], settings: EvaluationSettings) -> list[str]:
    """Draw the page of each model over time; send a notice and an event where a verdict changed.

    Args:
        looks: by the label of the version and the split.
        settings: with ``notify:``.

    Returns:
        A sentence for each look, with its numbers and a link where the verdict changed.
    """
    said = []
    for name in sorted({label.rpartition("/")[0] for label, _ in looks}):
        monitor = settings.watch.monitor
        log_over_time(name, Monitor(monitor.level, monitor.average_run_length), settings.tracking)
    for (label, split), finding in looks.items():
        sentence = f"{label} on {split}: {finding.sentence}"
        if finding.changed_the_verdict:
            link = place_of(finding.look.run_id, settings.tracking)
            numbers = f"{_numbers(finding)} Its look: {link}"
            send(settings.notify, f"congruence: {sentence}", numbers)
            emit_verdict(label, split, finding, link)
            sentence = f"{sentence}. {numbers}"
        said.append(sentence)
    return said


def _numbers(finding: Finding) -> str:
    monitor = finding.monitor
    return (
        f"Evidence that it is wrong: {_size(float(monitor.evidence[-1]))} ({1.0 / monitor.level:,.0f} is enough). "
        f"Evidence that it changed: {_size(float(monitor.detector[-1]))} ({monitor.average_run_length:,.0f} is "
        f"enough). p of this look: {monitor.looks[-1].p_value:.2g}."
    )


def _size(logarithm: float) -> str:
    if logarithm < math.log(10.0):
        return f"{math.exp(logarithm):.2g}"
    return f"{math.exp(logarithm):,.0f}" if logarithm < math.log(1e9) else f"10^{logarithm / math.log(10.0):.0f}"
