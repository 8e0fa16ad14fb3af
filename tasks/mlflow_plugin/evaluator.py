"""MLflow's own evaluation with our numbers: ``mlflow.models.evaluate(..., evaluators="congruence")``.

    mlflow.models.evaluate(
        "models:/digit-angle/2", data, targets="target", model_type="regressor", evaluators="congruence",
        evaluator_config={"input": "image", "encoder": {"kind": "statistics"}, "protocol": "exact"},
    )

``evaluator_config``, all of it optional:

- ``input``: the numeric columns that say which rows are near, by default all that the model is given; or one column of
  images, texts or vectors. ``encoder``: of images or texts.
- ``embeddings``: an array (n, d) in place of both.
- ``groups``, ``time``, ``weights``, ``key``: names of columns of the data. ``slices``: a list of them.
- ``missing``, ``protocol``, ``metrics``, ``seed``, ``predictions``: as in the evaluation file.

The rows of the data are evaluated by the code of ``congruence.evaluate``; the scores of all rows are logged as
``congruence_scores.parquet``, and the report as ``congruence_report.html``.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import mlflow
import numpy as np
import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.models.evaluation import EvaluationResult, ModelEvaluator
from mlflow.models.evaluation.artifacts import ParquetEvaluationArtifact
from pydantic import Field

from congruence.kernels.arrays import Array, require_matrix
from congruence.kernels.errors import InvalidInputError
from congruence.tasks.scores.metrics import METRICS_ASKED, MetricName
from congruence.tasks.settings.parts import ProtocolSettings, Strict, checked
from congruence.tasks.settings.sections import EncoderSettings, PredictionSettings

if TYPE_CHECKING:
    from congruence.kernels.distributions import Distribution

# MLflow imports this module wherever it evaluates anything: what is heavy is imported when it is our turn.

SCORES, REPORT = "congruence_scores.parquet", "congruence_report.html"


class EvaluatorConfig(Strict):
    """How the rows of a table are evaluated, see the module."""

    input: str | list[str] | None = None
    encoder: EncoderSettings | None = None
    groups: str | None = None
    time: str | None = None
    weights: str | None = None
    key: str | None = None
    slices: list[str] | None = None
    missing: Literal["leave_out", "mean", "indicator"] = "leave_out"
    protocol: ProtocolSettings = ProtocolSettings()
    predictions: PredictionSettings | None = Field(default=None, description="where the model's metadata do not say")
    metrics: list[MetricName] | None = Field(default=None, description=METRICS_ASKED)
    seed: int = 0


class CongruenceEvaluator(ModelEvaluator):
    """The evaluator that MLflow finds under the name ``congruence``.

    ``evaluator_config`` holds the keys of ``EvaluatorConfig`` and, optionally, ``embeddings``: an array (n, d).
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
        from congruence.tasks.notebook.door import evaluated
        from congruence.tasks.notebook.table import Given

        if extra_metrics or custom_artifacts:
            raise InvalidInputError(
                "evaluator 'congruence' computes its own metrics: give extra_metrics and custom_artifacts to another, "
                'as in evaluators=["congruence", "default"]'
            )
        config = dict(evaluator_config or {})
        embeddings = config.pop("embeddings", None)
        settings = checked(EvaluatorConfig, config, "evaluator_config")
        frame, targets = _frame(dataset), _targets(dataset)
        if settings.input is None and model is None and embeddings is None:
            raise InvalidInputError(
                "evaluator_config.input: not given; name the columns that say which rows are near, as in "
                "evaluator_config={'input': ['age', 'income']}: the data hold the predictions, too"
            )
        inputs = settings.input if isinstance(settings.input, list) else None
        if embeddings is not None:
            x = require_matrix(np.asarray(embeddings), "evaluator_config.embeddings")
        else:
            x = _embedded(frame, settings) if isinstance(settings.input, str) else None
        design = settings.model_dump(include={"groups", "time", "weights", "slices", "missing", "key"})
        given = Given(frame, targets, inputs=inputs, embeddings=x, name=str(dataset.name), **design)
        law = _predict(model, frame, settings)
        (found,) = evaluated(
            given,
            {"model": law},
            protocol=settings.protocol,
            metrics=settings.metrics,
            seed=settings.seed,
            progress=False,
        ).values()
        metrics = {name: metric.value for name, metric in found.metrics.items()}
        # MLflow itself logs an evaluator's metrics where the call names the LoggedModel, as models:/name/3 does not.
        if kwargs.get("model_id") is None:
            of = (int(1000 * time.time()), 0, getattr(model, "model_id", None), dataset.name, dataset.digest, run_id)
            MlflowClient().log_batch(run_id, metrics=[Metric(key, value, *of) for key, value in metrics.items()])
        artifacts = {SCORES: _logged(found.to_frame(), found.page, run_id)}
        return EvaluationResult(metrics, artifacts, run_id)  # type: ignore[no-untyped-call]


def _frame(dataset: Any) -> pd.DataFrame:
    features = dataset.features_data
    frame = features if isinstance(features, pd.DataFrame) else pd.DataFrame(np.asarray(features))
    return frame.reset_index(drop=True)


def _targets(dataset: Any) -> Any:
    if dataset.labels_data is None:
        raise InvalidInputError("targets: not given; name the target column, as in mlflow.models.evaluate(targets='y')")
    return np.asarray(dataset.labels_data)


def _embedded(frame: pd.DataFrame, settings: EvaluatorConfig) -> Array:
    """The embeddings (n, d) of one column, batch by batch, or the numbers in it where there is no encoder."""
    from congruence.tasks.encoders.base import InvalidRow
    from congruence.tasks.encoders.loading import load_encoder

    name = str(settings.input)
    if name not in frame.columns:
        raise InvalidInputError(
            f"evaluator_config.input: column {name!r} is missing; the data have {', '.join(map(repr, frame.columns))}"
        )
    if settings.encoder is None:
        return np.stack([np.atleast_1d(np.asarray(row, dtype=np.float64)) for row in frame[name]])
    try:
        return load_encoder(settings.encoder).embed(frame[name])
    except InvalidRow as error:
        raise InvalidInputError(
            f"{error}; drop it, or use `congruence evaluate`, which reports invalid rows and goes on"
        ) from error


def _predict(model: Any, frame: pd.DataFrame, settings: EvaluatorConfig) -> Distribution:
    from congruence.kernels.distributions import Distribution
    from congruence.tasks.contract import read_distribution
    from congruence.tasks.contract.model import PredictiveModel, settings_in
    from congruence.tasks.settings.sections import ModelVersion

    if isinstance(model, mlflow.pyfunc.PyFuncModel):
        name = str(model.model_id or model.metadata.model_uuid)
        identity = ModelVersion(name, "", f"models:/{name}", model.model_id)
        read_by = settings.predictions or settings_in(model.metadata.metadata, identity.label)
        return PredictiveModel(identity, read_by, model).predict(frame)
    output = frame if model is None else model.predict(frame)
    if isinstance(output, Distribution):
        return output
    return read_distribution(output, settings.predictions or PredictionSettings(), len(frame))


def _logged(scores: pd.DataFrame, page: str, run_id: str) -> ParquetEvaluationArtifact:
    with tempfile.TemporaryDirectory() as folder:
        scores.to_parquet(Path(folder) / SCORES, index=False)
        (Path(folder) / REPORT).write_text(page, encoding="utf-8")
        MlflowClient().log_artifacts(run_id, folder)
    return ParquetEvaluationArtifact(mlflow.get_artifact_uri(SCORES), scores)  # type: ignore[no-untyped-call]
