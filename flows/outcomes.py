"""What became of a version on a split: what flows return, tables print and gates judge."""

from __future__ import annotations

from dataclasses import dataclass, field

from congruence.tasks.scores.evaluation import Metric


@dataclass(frozen=True)
class VersionOutcome:
    """What became of one version on one split: ``evaluated`` now, ``found`` finished earlier, or ``failed``.

    ``protocol`` is its name and digest, with the encoder and the reference split: numbers compare under equal ones.
    """

    label: str
    split: str
    status: str
    run_id: str | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)
    error: str | None = None
    protocol: str = ""
