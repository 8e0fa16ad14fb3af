"""Evaluations as a comparison reads them, without a round through MLflow."""

from __future__ import annotations

from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.scores.evaluation import Evaluation


def as_compared(evaluation: Evaluation, run_id: str | None = None) -> ComparedVersion:
    return ComparedVersion(
        model=evaluation.model,
        split=evaluation.split,
        protocol_name=evaluation.protocol.name,
        protocol_digest=evaluation.protocol.digest,
        metrics=evaluation.metrics,
        scores=evaluation.scores,
        run_id=run_id,
        settings_digest=evaluation.settings_digest,
        influence=evaluation.influence,
        influence_noise=evaluation.influence_noise,
        slices=evaluation.slice_names,
        said=str(evaluation.verdict),
        wrong_places=None if evaluation.wrong is None else evaluation.wrong.named(),
    )
