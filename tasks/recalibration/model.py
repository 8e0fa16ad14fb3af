"""A recalibrated version as a model: its inputs embedded where needed, its parent's output, and its correction."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.pyfunc import load_model
from mlflow.pyfunc.model import PythonModel

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.recalibrated import recalibrated
from congruence.kernels.distributions.recalibrated_draws import MANY_DRAWS
from congruence.kernels.distributions.score_map import NormalScoreMap
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.protocol import EXACT, PREPRINT
from congruence.kernels.recalibration.recalibration_map import Form, map_of
from congruence.tasks.contract.model import PredictiveModel
from congruence.tasks.contract.reading import (
    UNCORRECTED,
    as_frame,
    describe_distribution,
    distribution_columns,
    is_recalibrated,
    output_columns,
    parameter_columns,
    read_distribution,
    score_map_columns,
    spec_distribution,
)
from congruence.tasks.encoders.base import Encoder, InvalidRow
from congruence.tasks.encoders.loading import load_encoder
from congruence.tasks.readers.base import Spec
from congruence.tasks.runtime.errors import ContractError
from congruence.tasks.runtime.files import from_npz
from congruence.tasks.settings.sections import EncoderSettings, ModelVersion, PredictionSettings

_UNDONE: dict[str, Callable[[Array], Array]] = {
    "exp": np.log,
    "sqrt": np.square,
    "square": np.sqrt,
    "reciprocal": np.reciprocal,
    "softplus": lambda values: values + np.log(-np.expm1(-values)),
}
"""What a transform of the contract undoes."""


def corrected_output(
    columns: Mapping[str, Array],
    settings: PredictionSettings,
    form: Form,
    base: Distribution,
    score_map: NormalScoreMap,
) -> pd.DataFrame:
    """The output columns of the corrected law.

    Normal laws whose shape stays, and many draws, keep their family and are written into the parent's own columns,
    through the inverse of its transforms. Every other law is spelled by the parent's columns, renamed, beside the map
    (``contract.reading.score_map_columns``). Which of the two depends on contract and map alone, never on the rows.
    The parent's columns (``contract.reading.output_columns``) were read as the laws ``base``.
    """
    if form.is_a_temperature:  # at which the columns are already
        return as_frame(columns)
    places = _places(columns, settings, form, base.members or 0)
    if places is None:
        spelled = score_map_columns(score_map, with_shape=form.shape is not None)
        return as_frame({f"{UNCORRECTED}{name}": values for name, values in columns.items()} | spelled)
    written = dict(columns)
    for name, values in recalibrated(base, score_map).parameters().items():
        transform = settings.transforms.get(name)
        inner = values if transform is None else _UNDONE[transform](values)
        if len(places[name]) == 1:
            written[places[name][0]] = inner
        else:
            written |= {column: inner[:, k] for k, column in enumerate(places[name])}
    return as_frame(written)


def _places(
    columns: Mapping[str, Array], settings: PredictionSettings, form: Form, members: int
) -> dict[str, list[str]] | None:
    """The columns of each parameter, where the corrected law is of the parent's family and all of it stands in some."""
    many_draws = settings.family == "samples" and members >= MANY_DRAWS
    keeps_family = many_draws or (settings.family == "normal" and form.shape is None)
    if not keeps_family or is_recalibrated(columns) or "softmax" in settings.transforms.values():
        return None
    places = {name: parameter_columns(name, settings, columns) for name in settings.parameters}
    found = {name: place for name, place in places.items() if place is not None}
    named = [column for place in found.values() for column in place]
    # A constant of the contract stands in no column; one column for two parameters cannot hold two corrections.
    return found if len(found) == len(places) and len(set(named)) == len(named) else None


_BLOCK = 4096


@dataclass(frozen=True)
class DescribedEmbedding:
    """How inputs become points of the kernel, as a file holds it.

    ``weights`` is the key of the encoder's settings whose value is relative to the model's folder, "" for none;
    ``dtype`` that in which embeddings are kept: what is lost there is lost here. ``id`` and ``preprocessing_digest``
    are what the encoder must be, see ``Encoder``.
    """

    columns: list[str]
    encoder: dict[str, Any] = field(repr=False)
    weights: str
    dtype: str
    normalize: bool
    id: str
    preprocessing_digest: str

    def load(self, folder: Path) -> Encoder:
        """The encoder, with its weights in the model's folder.

        Raises:
            ContractError: it is not the one that the map was fitted with.
        """
        given = dict(self.encoder)
        if self.weights:
            given[self.weights] = str(given[self.weights]).replace("{folder}", str(folder / WEIGHTS))
        encoder = load_encoder(EncoderSettings.model_validate(given))
        for name in ("id", "preprocessing_digest"):
            here, fitted = getattr(encoder, name), getattr(self, name)
            if here != fitted:
                raise ContractError(
                    f"the correction was fitted on embeddings by {self.id} (preprocessing {self.preprocessing_digest})"
                    f", but here the encoder's {name} is {here}; install the packages that were logged with the model"
                )
        return encoder

    def embed(self, frame: pd.DataFrame, encoder: Encoder) -> Array:
        """The points of the rows, (rows, d) in float64.

        Raises:
            ContractError: a column that the frame lacks, or an input that cannot be embedded, by row and reason.
        """
        missing = [name for name in self.columns if name not in frame.columns]
        if missing:
            raise ContractError(f"input column {missing[0]!r}, which the correction depends on, is not in the frame")
        first = frame[self.columns[0]]
        raw: Sequence[Any] | Array = first.tolist()
        if encoder.input_kind == "features" and (len(self.columns) > 1 or pd.api.types.is_numeric_dtype(first.dtype)):
            raw = frame[self.columns].to_numpy(dtype=np.float64)
        points = np.empty((len(frame), encoder.dimension))
        for start in range(0, len(frame), _BLOCK):
            rows = slice(start, start + _BLOCK)
            try:
                points[rows] = encoder.embed(raw[rows], start).astype(self.dtype)
            except InvalidRow as invalid:
                raise ContractError(f"{invalid.reason}; leave such inputs out") from invalid
        wrong = np.flatnonzero(~np.isfinite(points).all(axis=1))
        if wrong.size:
            raise ContractError(f"row {wrong[0]}: its embedding is not finite; leave such inputs out")
        try:
            return np.asarray((EXACT if self.normalize else PREPRINT).apply(points))
        except InvalidInputError as error:
            raise ContractError(str(error)) from error


FOLDER = "recalibration"
DESCRIPTION, MAP, PARENT, WEIGHTS = "recalibration.json", "map.npz", "parent", "encoder"


class RecalibratedModel(PythonModel):
    """Asks the parent, reads its laws, corrects them at their inputs, and answers in the parent's columns."""

    def load_context(self, context: Any) -> None:
        """MLflow's entry: everything from the model's own folder."""
        self.open(Path(context.artifacts[FOLDER]))

    def open(self, folder: Path) -> None:
        """Load parent, map and encoder from ``folder``.

        Raises:
            ContractError: an encoder that is not the one that the map was fitted with.
        """
        described: dict[str, Any] = json.loads((folder / DESCRIPTION).read_text())
        self.settings = self.read_by = PredictionSettings.model_validate(described["predictions"])
        self.fitted = map_of(from_npz((folder / MAP).read_bytes()))
        identity = ModelVersion(described["parent"], "", str(folder / PARENT))
        self.parent = PredictiveModel(identity, self.settings, load_model(str(folder / PARENT), suppress_warnings=True))
        self.embedding = None if described["embedding"] is None else DescribedEmbedding(**described["embedding"])
        self.encoder = None if self.embedding is None else self.embedding.load(folder)

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:  # noqa: ARG002
        """MLflow's entry: the corrected laws of the rows, in order."""
        frame = model_input.reset_index(drop=True)
        output, self.read_by = self.parent.output(frame), self.settings
        counts = self.settings.exposure is not None  # rates times the exposure are no columns of the parent
        form = self.fitted.form
        if isinstance(output, Spec) or counts or form.temperature is not None:  # laws are written into columns of ours
            native = isinstance(output, Spec) and not counts
            law = form.tempered(spec_distribution(output, len(frame)) if native else self.parent.predict(frame))
            output, self.read_by = distribution_columns(law), describe_distribution(law)
        columns = output_columns(output, len(frame))
        base = read_distribution(columns, self.read_by, len(frame))
        if self.embedding is None or self.encoder is None:
            score_map = self.fitted.everywhere(len(frame))
        else:
            score_map = self.fitted.at(self.embedding.embed(frame, self.encoder))
        return corrected_output(columns, self.read_by, form, base, score_map)
