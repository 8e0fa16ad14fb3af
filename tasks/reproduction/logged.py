"""Runs of the papers' experiments in MLflow: the experiment ``reproduce``, a run per experiment and time."""

from __future__ import annotations

import mlflow

from congruence.tasks.mlflow.connection import connect, experiment_id
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.reproduction.record import Recorded

EXPERIMENT = "reproduce"


def log_reproduction(outcome: Recorded) -> str:
    """Log verdicts as tags, their numbers as metrics, and the folder's files; the run's id."""
    tracking = TrackingSettings()
    place = experiment_id(connect(tracking), EXPERIMENT, tracking)
    with mlflow.start_run(experiment_id=place, run_name=outcome.name) as run:
        mlflow.log_params({"experiment": outcome.name, "quick": outcome.quick, "seed": outcome.seed})
        metrics = {"claims_hold": len(outcome.claims) - outcome.differing, "claims_differ": outcome.differing}
        numbers = {name: value for claim in outcome.claims for name, value in claim.values.items()}
        mlflow.log_metrics(
            {**numbers, **metrics, "seconds": outcome.seconds, "processor_seconds": outcome.processor_seconds}
        )
        mlflow.set_tags({f"claim_{place}": claim.verdict for place, claim in enumerate(outcome.claims, start=1)})
        description = "\n".join(
            f"- **{claim.verdict}**: {claim.claim} ({claim.source})\n  {claim.found}" for claim in outcome.claims
        )
        mlflow.set_tag("mlflow.note.content", description)
        mlflow.log_artifacts(str(outcome.folder))
        return str(run.info.run_id)
