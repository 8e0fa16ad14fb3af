"""The evaluation of one table in memory, without flow, shards or store: for MLflow's plugin and its metrics."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from mlflow.metrics import MetricValue
from mlflow.models import EvaluationMetric, make_metric
from pydantic import Field

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.calibration import calibration_error_of_pit, pit_values
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.scores import point_scores
from congruence.tasks.contract.reading import read_distribution
from congruence.tasks.contract.settings import PredictionSettings
from congruence.tasks.encoders.base import Encoder
from congruence.tasks.encoders.errors import InvalidRow
from congruence.tasks.encoders.loading import load_encoder
from congruence.tasks.encoders.moments import standardisation
from congruence.tasks.encoders.settings import EncoderSettings
from congruence.tasks.scores.names import MetricName, requested_metrics
from congruence.tasks.scores.points import score_points, version_metrics
from congruence.tasks.settings.protocol import ProtocolSettings
from congruence.tasks.settings.strict import Strict
from congruence.tasks.solving.measurement import measure


class TableEvaluationSettings(Strict):
    """How to evaluate a table: the columns that are the input x, their encoder, and the protocol.

    ``input`` is one column of images, texts or feature arrays, or a list of numeric columns; without an encoder its
    numbers are x themselves. The `identity` encoder's mean and scale, where not given, are those of the table.
    ``key`` names the rows (for the randomised PIT of counts), as in the evaluation file.
    """

    input: str | list[str] | None = None
    input_kind: Literal["image", "text", "features"] | None = Field(
        default=None, description="as in the evaluation file; the encoder's kind, where given, must be the same"
    )
    encoder: EncoderSettings | None = None
    protocol: ProtocolSettings = ProtocolSettings()
    predictions: PredictionSettings | None = Field(default=None, description="where the model's metadata do not say")
    key: str | None = None
    metrics: list[MetricName] | None = Field(default=None, description="narrows the metrics; all that apply by default")
    seed: int = 0


def evaluate_table(
    frame: pd.DataFrame,
    targets: Any,
    predictive: Distribution,
    settings: TableEvaluationSettings,
    *,
    embeddings: Array | None = None,
) -> tuple[dict[str, float], pd.DataFrame]:
    """The metrics of the evaluation flow and the scores of every row.

    Args:
        frame: the rows: the columns of ``settings.input`` and ``settings.key``.
        targets: (n,) or (n, q).
        predictive: the distributions of the n rows.
        settings: inputs, encoder, protocol.
        embeddings: (n, d) in place of the encoder's output.

    Raises:
        InvalidInputError: a column is missing, or a row cannot be read: a table here has no invalid rows.
    """
    y = require_targets(targets, "targets", len(frame))
    encoder = _encoder(frame, settings) if embeddings is None else None
    x = embed_table(frame, settings.input, encoder) if embeddings is None else embeddings
    if len(x) != len(frame):
        raise InvalidInputError(f"embeddings: {len(x)} rows for a table of {len(frame)}; they must match row by row")
    protocol = settings.protocol.protocol()
    if encoder is not None:
        protocol = replace(protocol, encoder=f"{encoder.id} {encoder.preprocessing_digest}")
    keys = None if settings.key is None else _column(frame, settings.key).to_numpy()
    found = measure(settings, protocol, x, y, {"model": predictive}, keys=keys)["model"]
    points = score_points(
        found.result, predictive, y, seed=settings.seed, keys=keys, test=found.test, calibration=found.calibration
    )
    requested = requested_metrics(settings.metrics)
    summary, _ = version_metrics(requested, points, predictive, y, found, seed=settings.seed, keys=keys)
    metrics = {name: metric.value for name, metric in summary.items()}
    scores = pd.DataFrame(points)
    scores.insert(0, "row" if keys is None else "key", np.arange(len(frame)) if keys is None else keys)
    return metrics, scores


def embed_table(frame: pd.DataFrame, columns: str | list[str] | None, encoder: Encoder | None) -> Array:
    """The embeddings (n, d) of the input columns, batch by batch, or the numbers in them where there is no encoder."""
    raw = _raw_inputs(frame, columns)
    if encoder is None:
        return np.stack([np.atleast_1d(np.asarray(row, dtype=np.float64)) for row in raw])
    rows = []
    for number, row in enumerate(raw):
        try:
            rows.append(encoder.preprocess(row))
        except InvalidRow as error:
            raise InvalidInputError(
                f"row {number}: {error}; drop it, or use `congruence evaluate`, which reports invalid rows and goes on"
            ) from error
    size = encoder.batch_size
    return np.concatenate([encoder.encode(rows[start : start + size]) for start in range(0, len(rows), size)])


def _encoder(frame: pd.DataFrame, settings: TableEvaluationSettings) -> Encoder | None:
    chosen = settings.encoder
    if chosen is not None and chosen.needs_statistics:
        mean, scale = standardisation(
            _raw_inputs(frame, settings.input), chosen.dimension, missing=chosen.takes_missing
        )
        chosen = chosen.model_copy(update={"mean": mean, "scale": scale})
    encoder = None if chosen is None else load_encoder(chosen)
    kind, read = settings.input_kind, "features" if encoder is None else encoder.input_kind
    if kind is not None and kind != read:
        reader = "without an encoder" if encoder is None else f"encoder {encoder.id}"
        raise InvalidInputError(
            f"evaluator_config.input_kind: is {kind!r}, but {reader} the inputs are read as {read!r}; set "
            f"evaluator_config['encoder'] to one that reads {kind!r}, such as {{'kind': 'open_clip', 'model': "
            f"'compact'}} for images, or input_kind to {read!r}"
        )
    return encoder


def _raw_inputs(frame: pd.DataFrame, columns: str | list[str] | None) -> Any:
    if columns is None:
        raise InvalidInputError(
            "evaluator_config.input: not given; name the column(s) that the error is conditional on, as in "
            "evaluator_config={'input': ['age', 'income']}, or give their embeddings (n, d) as "
            "evaluator_config={'embeddings': x}"
        )
    if isinstance(columns, list):
        return np.column_stack([_column(frame, name).to_numpy() for name in columns])
    return _column(frame, columns).tolist()


def _column(frame: pd.DataFrame, name: str) -> pd.Series[Any]:
    if name not in frame.columns:
        raise InvalidInputError(f"column {name!r} is missing; the table has {', '.join(map(repr, frame.columns))}")
    return frame[name]


def predictive_metrics(settings: TableEvaluationSettings) -> list[EvaluationMetric]:
    """Metrics for ``mlflow.models.evaluate(..., extra_metrics=...)``: cce, nll, crps and ece of parameter columns.

    They suit models with one column per parameter: ``predictions`` of the call is the column of the first parameter,
    and the other parameters and the inputs are found by their column names. Each metric carries its value for every row
    (shown in MLflow's table) and its mean; ``cce`` also the noise floor and the excess.

    Raises:
        InvalidInputError: the settings name no family, or no column for a parameter.
    """
    described = settings.predictions
    if described is None or settings.input is None:
        raise InvalidInputError("settings: metrics need `predictions` (family and columns) and `input`")
    first, *others = [described.columns.get(name, name) for name in described.parameters]
    if not isinstance(first, str):
        raise InvalidInputError(f"predictions.columns: {described.parameters[0]} must be one column, got {first!r}")
    parameters = [column for group in others for column in (group if isinstance(group, list) else [group])]
    inputs = settings.input if isinstance(settings.input, list) else [settings.input]
    names = [name for name in dict.fromkeys([*parameters, *inputs]) if isinstance(name, str) and name != first]
    return [_metric(name, first, names, settings) for name in ("cce", "nll", "crps", "ece")]


def _metric(name: str, first: str, names: list[str], settings: TableEvaluationSettings) -> EvaluationMetric:
    def evaluate(predictions: Any, targets: Any, metrics: Any, *columns: Any) -> MetricValue:  # noqa: ARG001
        if len(targets) == 1:  # MLflow tries a metric on one row first, where no conditional law is defined
            return MetricValue()
        frame = pd.DataFrame({first: np.asarray(predictions)} | dict(zip(names, columns, strict=True)))
        assert settings.predictions is not None
        predictive = read_distribution(frame, settings.predictions, len(frame))
        return _score(name, frame, require_targets(targets, "targets"), predictive, settings)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    known = [inspect.Parameter(part, kind) for part in ("predictions", "targets", "metrics", *names)]
    evaluate.__signature__ = inspect.Signature(known)  # type: ignore[attr-defined]
    metric: EvaluationMetric = make_metric(eval_fn=evaluate, greater_is_better=False, name=name)  # type: ignore[no-untyped-call]
    return metric


def _score(
    name: str, frame: pd.DataFrame, y: Array, predictive: Distribution, settings: TableEvaluationSettings
) -> MetricValue:
    if name == "cce":
        values, scores = evaluate_table(frame, y, predictive, settings)
        aggregates = {part: values[f"cce_{part}"] for part in ("mean", "noise_floor", "excess")}
        return MetricValue(scores=scores["cce"].tolist(), aggregate_results=aggregates)
    if name == "ece":
        pit = pit_values(y, predictive, seed=settings.seed)
        return MetricValue(aggregate_results={"ece": calibration_error_of_pit(pit)})
    points = point_scores(predictive, y)[name]
    return MetricValue(scores=points.tolist(), aggregate_results={"mean": float(np.mean(points))})
