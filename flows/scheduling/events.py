"""The Prefect event of a version that looks over time called wrong or changed: automations listen to it."""

from __future__ import annotations

import logging

from prefect.settings import PREFECT_API_URL

from congruence.flows.receiver import post_event
from congruence.tasks.watching.account import Finding

log = logging.getLogger(__name__)
VERDICT_EVENT = "congruence.version.verdict"


def emit_verdict(label: str, split: str, finding: Finding, link: str) -> None:
    """Emit the event of a changed verdict, where this process has a Prefect server; what goes wrong is logged."""
    if not PREFECT_API_URL.value():
        return  # Prefect would start a server for it, which nobody listens to
    name, _, version = label.rpartition("/")
    monitor = finding.monitor
    try:
        post_event(
            VERDICT_EVENT,
            name,
            version,
            {
                "model": f"models:/{label}",
                "split": split,
                "verdict": monitor.verdict,
                "sentence": finding.sentence,
                "log_evidence": float(monitor.evidence[-1]),
                "log_change": float(monitor.detector[-1]),
                "p_value": monitor.looks[-1].p_value,
                "link": link,
            },
        )
    except Exception as error:  # whatever Prefect raises: the notice was sent, and the account has the verdict
        log.warning("no Prefect event for %s: %s", label, error)
