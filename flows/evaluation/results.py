"""What became of a version: the value that the flow returns, and that tables, gate and watcher read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from congruence.tasks.comparison.gate import GateDecision
    from congruence.tasks.scores.evaluation import MetricValue


@dataclass(frozen=True)
class VersionOutcome:
    """What became of one version on one split: ``evaluated`` now, ``found`` finished earlier, or ``failed``.

    Or ``left out``: a version that has seen the targets of the split.

    ``protocol`` is its name and digest, with the encoder and the reference split: numbers compare under equal ones.
    ``wrong`` says what is wrong with the version, in sentences, where calibration given the input was measured.
    """

    label: str
    split: str
    status: str
    run_id: str | None = None
    metrics: dict[str, MetricValue] = field(default_factory=dict)
    protocol: str = ""
    wrong: tuple[str, ...] = ()
    error: str | None = None


def outcome_json(outcome: VersionOutcome) -> dict[str, Any]:
    """An outcome as JSON: as it stands, each metric with its interval where it has one."""
    metrics: dict[str, dict[str, float | None]] = {}
    for name, metric in outcome.metrics.items():
        metrics[name] = {"value": metric.value}
        if metric.low is not None or metric.high is not None:
            metrics[name] |= {"low": metric.low, "high": metric.high}
    return asdict(replace(outcome, metrics={})) | {"metrics": metrics}


def decision_json(decision: GateDecision) -> dict[str, Any]:
    """A gate's decision as JSON: on which version, what, why and where it is logged."""
    return {
        "label": decision.candidate.label,
        "outcome": decision.outcome,
        "reasons": list(decision.reasons),
        "notes": list(decision.notes),
        "place": decision.place,
    }
