"""Running a flow from the command line."""

from __future__ import annotations

from congruence.flows.evaluate import evaluate
from congruence.flows.outcomes import VersionOutcome
from congruence.flows.progress import console
from congruence.tasks.settings.evaluation import EvaluationSettings


def run_evaluation(settings: EvaluationSettings, *, again: bool = False) -> list[VersionOutcome]:
    """Run the evaluation flow on the Prefect server that the environment names, or on an ephemeral one."""
    console.print(f"home: {settings.home_folder}")
    return evaluate(settings, ", ".join(settings.models) or "registry versions", again)
