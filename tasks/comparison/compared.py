"""What a comparison reads of one evaluation, fresh or logged."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from congruence.kernels.arrays import Array
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.scores.evaluation import Evaluation, Metric, SplitSummary


@dataclass(frozen=True)
class ComparedVersion:
    """What a comparison reads of an evaluation, fresh or logged: see ``Evaluation`` for the fields.

    ``slices`` are the names of its slice columns.
    """

    model: ModelVersion
    split: SplitSummary
    protocol_name: str
    protocol_digest: str
    metrics: dict[str, Metric]
    scores: pd.DataFrame = field(repr=False)
    run_id: str | None = None
    settings_digest: str = ""
    influence: pd.DataFrame | None = field(default=None, repr=False)
    influence_noise: Array | None = field(default=None, repr=False)
    slices: tuple[str, ...] = ()

    @classmethod
    def of(cls, evaluation: Evaluation, run_id: str | None = None) -> ComparedVersion:
        """An evaluation that was just made."""
        return cls(
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
        )

    @property
    def label(self) -> str:
        """``name/version``."""
        return self.model.label
