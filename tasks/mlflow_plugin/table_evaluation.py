"""The evaluation of one table in memory, without flow, shards or store: for MLflow's plugin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.tasks.contract.settings import PredictionSettings
from congruence.tasks.encoders.base import Encoder
from congruence.tasks.encoders.errors import InvalidRow
from congruence.tasks.encoders.loading import load_encoder
from congruence.tasks.encoders.moments import standardisation
from congruence.tasks.encoders.settings import EncoderSettings
from congruence.tasks.scores.metrics.asked import METRICS_ASKED, MetricName
from congruence.tasks.scores.metrics.registry import requested_metrics
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
    metrics: list[MetricName] | None = Field(default=None, description=METRICS_ASKED)
    seed: int = 0


def evaluate_table(
    frame: pd.DataFrame,
    targets: Array,
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
    encoder = _encoder(frame, settings) if embeddings is None else None
    x = embed_table(frame, settings.input, encoder) if embeddings is None else embeddings
    if len(x) != len(frame):
        raise InvalidInputError(f"embeddings: {len(x)} rows for a table of {len(frame)}; they must match row by row")
    protocol = settings.protocol.protocol()
    if encoder is not None:
        protocol = replace(protocol, encoder=f"{encoder.id} {encoder.preprocessing_digest}")
    keys = None if settings.key is None else _column(frame, settings.key).to_numpy()
    found = measure(settings, protocol, x, targets, {"model": predictive}, keys=keys)["model"]
    points = score_points(
        found.result, predictive, targets, seed=settings.seed, keys=keys, test=found.test, calibration=found.calibration
    )
    requested = requested_metrics(settings.metrics)
    summary, _ = version_metrics(requested, points, predictive, targets, found, seed=settings.seed, keys=keys)
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
            f"evaluator_config['encoder'] to one that reads {kind!r}, such as {{'kind': 'statistics'}} for images, or "
            f"input_kind to {read!r}"
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
