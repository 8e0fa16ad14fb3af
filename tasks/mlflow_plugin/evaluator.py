"""MLflow's own evaluation with our numbers: ``mlflow.models.evaluate(..., evaluators="congruence")``.

    mlflow.models.evaluate(
        "models:/digit-angle/2", data, targets="target", model_type="regressor", evaluators="congruence",
        evaluator_config={"input": "image", "encoder": {"kind": "open_clip", "model": "compact"}, "protocol": "exact"},
    )

``evaluator_config`` (all optional but ``input`` or ``embeddings``):

- ``input``: one column of images, texts or arrays, or a list of numeric columns; ``input_kind``: what they are.
- ``encoder``, ``protocol``, ``predictions``, ``key``, ``metrics``, ``seed``: as in the evaluation file.
- ``embeddings``: an array (n, d) in place of ``input`` and ``encoder``.

The data are a table whose rows are the reference split; the metrics are those of the evaluation flow, computed by the
same code, and the scores of all rows are logged as ``congruence_scores.parquet``.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlflow
import numpy as np
import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.models.evaluation import EvaluationResult, ModelEvaluator
from mlflow.models.evaluation.artifacts import ParquetEvaluationArtifact

from congruence.kernels.arrays import Array, require_matrix, require_targets
from congruence.kernels.errors import InvalidInputError

if TYPE_CHECKING:
    from congruence.kernels.distributions import Distribution
    from congruence.tasks.mlflow_plugin.table_evaluation import TableEvaluationSettings

# MLflow imports this module wherever it evaluates anything: what is heavy is imported when it is our turn.

SCORES = "congruence_scores.parquet"


class CongruenceEvaluator(ModelEvaluator):
    """The evaluator that MLflow finds under the name ``congruence``.

    ``evaluator_config`` holds the keys of ``TableEvaluationSettings`` and, optionally, ``embeddings``: an array (n, d)
    that stands for the encoder's output.
    """

    @classmethod
    def can_evaluate(cls, *, model_type: str | None, evaluator_config: dict[str, Any], **_: Any) -> bool:  # noqa: ARG003
        """Any regressor; MLflow asks for ``model_type="regressor"`` where no extra metrics are given."""
        return model_type in (None, "regressor")

    def evaluate(
        self,
        *,
        model_type: str | None,  # noqa: ARG002
        dataset: Any,
        run_id: str,
        evaluator_config: dict[str, Any],
        model: Any = None,
        extra_metrics: Any = None,
        custom_artifacts: Any = None,
        predictions: str | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> EvaluationResult:
        """Evaluate ``model``, or, without one, the predictions that are columns of the data.

        Raises:
            InvalidInputError, ContractError: the data, the configuration or the model's output cannot be evaluated.
        """
        from congruence.tasks.mlflow_plugin.table_evaluation import TableEvaluationSettings, evaluate_table

        if extra_metrics or custom_artifacts:
            raise InvalidInputError(
                "evaluator 'congruence' computes its own metrics: give extra_metrics and custom_artifacts to another, "
                'as in evaluators=["congruence", "default"]'
            )
        config = dict(evaluator_config or {})
        embeddings = config.pop("embeddings", None)
        settings = TableEvaluationSettings.model_validate(config)
        frame = _frame(dataset)
        targets = _targets(dataset, len(frame))
        predictive = _predict(model, frame, settings)
        x = None if embeddings is None else require_matrix(np.asarray(embeddings), "evaluator_config.embeddings")
        metrics, scores = evaluate_table(frame, targets, predictive, settings, embeddings=x)
        # MLflow itself logs an evaluator's metrics where the call names the LoggedModel, as models:/name/3 does not.
        if kwargs.get("model_id") is None:
            _log_metrics(metrics, run_id, dataset, getattr(model, "model_id", None))
        return EvaluationResult(metrics, {SCORES: _log_scores(scores, run_id)}, run_id)  # type: ignore[no-untyped-call]


def _frame(dataset: Any) -> pd.DataFrame:
    features = dataset.features_data
    frame = features if isinstance(features, pd.DataFrame) else pd.DataFrame(np.asarray(features))
    return frame.reset_index(drop=True)


def _targets(dataset: Any, rows: int) -> Array:
    if dataset.labels_data is None:
        raise InvalidInputError("targets: not given; name the target column, as in mlflow.models.evaluate(targets='y')")
    return require_targets(np.asarray(dataset.labels_data), "targets", rows)


def _predict(model: Any, frame: pd.DataFrame, settings: TableEvaluationSettings) -> Distribution:
    from congruence.kernels.distributions import Distribution
    from congruence.tasks.contract import read_distribution
    from congruence.tasks.contract.model import PredictiveModel
    from congruence.tasks.contract.resolved import settings_in
    from congruence.tasks.models.version import ModelVersion

    if isinstance(model, mlflow.pyfunc.PyFuncModel):
        name = str(model.model_id or model.metadata.model_uuid)
        identity = ModelVersion(name, "", f"models:/{name}", model.model_id)
        read_by = settings.predictions or settings_in(model.metadata.metadata, identity.label)
        return PredictiveModel(identity, read_by, model).predict(frame)
    output = frame if model is None else model.predict(frame)
    if isinstance(output, Distribution):
        return output
    if settings.predictions is None:
        raise InvalidInputError(
            "evaluator_config.predictions: missing; say how to read the predictions, for example "
            "{'family': 'normal', 'columns': {'loc': 'mu', 'scale': 'sigma'}}"
        )
    return read_distribution(output, settings.predictions, len(frame))


def _log_metrics(metrics: dict[str, float], run_id: str, dataset: Any, model_id: str | None) -> None:
    now = int(1000 * time.time())
    name, digest = dataset.name, dataset.digest
    entries = [Metric(key, value, now, 0, model_id, name, digest, run_id) for key, value in metrics.items()]
    MlflowClient().log_batch(run_id, metrics=entries)


def _log_scores(scores: pd.DataFrame, run_id: str) -> ParquetEvaluationArtifact:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / SCORES
        scores.to_parquet(path, index=False)
        mlflow.log_artifact(str(path), run_id=run_id)
    return ParquetEvaluationArtifact(mlflow.get_artifact_uri(SCORES), scores)  # type: ignore[no-untyped-call]
