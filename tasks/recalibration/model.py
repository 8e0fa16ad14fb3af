"""The pyfunc of a recalibrated version: the version that it corrects, what embeds its inputs, and the map, in one.

Everything lies in the model's own folder, so that it outlives the run and the home folder that it was made from:

    recalibration/recalibration.json   how the parent is read, what embeds, and what it must be
    recalibration/map.npz              the map's arrays, without pickle
    recalibration/parent/              the parent, as it was logged
    recalibration/encoder/             the encoder's weights, where they were files of this machine's own

It must stay importable under this name: logged models refer to it by a script (``recalibrated_model``), not a pickle.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.pyfunc import load_model
from mlflow.pyfunc.model import PythonModel

from congruence.kernels.arrays import Array
from congruence.kernels.recalibration.recalibration_map import RecalibrationMap, map_arrays, map_of
from congruence.tasks.contract.columns import output_columns
from congruence.tasks.contract.model import PredictiveModel
from congruence.tasks.contract.reading import (
    describe_distribution,
    distribution_columns,
    read_distribution,
    spec_distribution,
)
from congruence.tasks.contract.settings import PredictionSettings
from congruence.tasks.encoders.loading import load_encoder
from congruence.tasks.encoders.settings import EncoderSettings
from congruence.tasks.models.version import ModelVersion
from congruence.tasks.readers.base import Spec
from congruence.tasks.recalibration.corrected_output import corrected_output
from congruence.tasks.recalibration.embedded_inputs import Embedding
from congruence.tasks.runtime.errors import ContractError

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
        self.fitted = read_map(folder / MAP)
        identity = ModelVersion(described["parent"], "", str(folder / PARENT))
        self.parent = PredictiveModel(identity, self.settings, load_model(str(folder / PARENT), suppress_warnings=True))
        embedding = described["embedding"]
        self.embedding = None if embedding is None else _open_embedding(embedding, folder)

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
        if self.embedding is None:
            score_map = self.fitted.everywhere(len(frame))
        else:
            score_map = self.fitted.at(self.embedding(frame))
        return corrected_output(columns, self.read_by, form, base, score_map)


@dataclass(frozen=True)
class DescribedEmbedding:
    """What embeds, as a file holds it.

    Attributes:
        columns: of the frame, that the encoder reads.
        encoder: settings that load it; ``weights`` names the place of a path among them.
        weights: the key of ``encoder`` whose value is relative to the model's folder; "" for none.
        dtype: of kept embeddings.
        normalize: to unit norm.
        id, preprocessing_digest: what the encoder must be, see ``Encoder``.
    """

    columns: list[str]
    encoder: dict[str, Any] = field(repr=False)
    weights: str
    dtype: str
    normalize: bool
    id: str
    preprocessing_digest: str


def write_description(
    folder: Path, parent: str, predictions: PredictionSettings, embedding: DescribedEmbedding | None
) -> None:
    """Write what ``RecalibratedModel`` opens, beside the map and the parent."""
    described = {
        "parent": parent,
        "predictions": predictions.model_dump(mode="json"),
        "embedding": None if embedding is None else vars(embedding),
    }
    (folder / DESCRIPTION).write_text(json.dumps(described, indent=1))


def map_bytes(fitted: RecalibrationMap) -> bytes:
    """A map as an NPZ file."""
    arrays: dict[str, Array] = map_arrays(fitted)
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **arrays)
    return stream.getvalue()


def read_map(file: Path) -> RecalibrationMap:
    """The map that ``map_bytes`` wrote.

    Raises:
        InvalidInputError: another file.
    """
    with np.load(file, allow_pickle=False) as arrays:
        return map_of({name: arrays[name] for name in arrays.files})


def _open_embedding(described: dict[str, Any], folder: Path) -> Embedding:
    known = DescribedEmbedding(**described)
    given = dict(known.encoder)
    if known.weights:
        given[known.weights] = str(given[known.weights]).replace("{folder}", str(folder / WEIGHTS))
    encoder = load_encoder(EncoderSettings.model_validate(given))
    for name in ("id", "preprocessing_digest"):
        here, fitted = getattr(encoder, name), getattr(known, name)
        if here != fitted:
            raise ContractError(
                f"the correction was fitted on embeddings by {known.id} (preprocessing {known.preprocessing_digest}), "
                f"but here the encoder's {name} is {here}; install the packages that were logged with the model"
            )
    return Embedding(known.columns, encoder, known.dtype, known.normalize)
