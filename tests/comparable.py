"""Evaluations as a comparison reads them, without a round through MLflow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from congruence.kernels.distributions import Normal
from congruence.kernels.score_parts import recalibration_gains
from congruence.tasks.comparison.differences import ComparedVersion
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
        wrong=() if evaluation.wrong is None else evaluation.wrong.sentences,
        wrong_places=None if evaluation.wrong is None else evaluation.wrong.named(),
    )


def if_honest(version: ComparedVersion) -> ComparedVersion:
    """The version with the scores that it would have if its levels were read anew."""
    scores, valid = version.scores, version.scores["valid"]
    law = Normal(scores.loc[valid, "mean"].to_numpy(), scores.loc[valid, "std"].to_numpy())
    gains = recalibration_gains(scores.loc[valid, "target"].to_numpy(), law)
    for name, gain in zip(("crps", "nll"), gains, strict=True):
        column = np.full(len(scores), np.nan)
        column[valid] = scores.loc[valid, name] - gain
        scores = scores.assign(**{f"{name}_recalibrated": column})
    return replace(version, scores=scores)
