"""A registered model that predicts distributions: loaded by URI, asked row by row, checked before the long work.

Loading a model from a registry runs the code that its author put there (pickled classes, ``code_paths``): evaluate only
models whose authors may run code on this machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import PyFuncModel, load_model
from mlflow.types import DataType
from mlflow.types.schema import Schema
from pydantic import ValidationError

from congruence.kernels.distributions.base import Distribution
from congruence.tasks.contract.errors import ContractError
from congruence.tasks.contract.reading import read_distribution
from congruence.tasks.contract.settings import PredictionSettings
from congruence.tasks.models.registry import ModelVersion, resolve

METADATA_KEY = "congruence"


@dataclass(frozen=True)
class PredictiveModel:
    """A model version with the settings that turn its output into distributions."""

    identity: ModelVersion
    settings: PredictionSettings
    pyfunc: PyFuncModel = field(repr=False)

    @property
    def name(self) -> str:
        """The registered name."""
        return self.identity.name

    @property
    def version(self) -> str:
        """The version number, "" where the model is not registered."""
        return self.identity.version

    @property
    def model_id(self) -> str | None:
        """MLflow's LoggedModel id, to which metrics are attached."""
        return self.identity.model_id

    @property
    def uri(self) -> str:
        """The exact URI."""
        return self.identity.uri

    @property
    def input_columns(self) -> tuple[str, ...] | None:
        """The columns that the model's signature asks for; None where it has no signature or takes a matrix."""
        schema = self._input_schema
        return tuple(map(str, schema.input_names())) if schema is not None and schema.has_input_names() else None

    def predict(self, frame: pd.DataFrame, *, start: int = 0) -> Distribution:
        """The predictive distributions of the rows of ``frame``, in order.

        Only the columns of the model's signature are handed over, so a target in the frame stays unseen. A model
        without a signature gets every column.

        Args:
            frame: the input rows.
            start: the number of the first row in the split, for errors.

        Raises:
            ContractError: a column is missing, the model raised, or its output is not what the settings promise.
        """
        inputs = self._inputs(frame)
        try:
            output = self.pyfunc.predict(inputs)
        except MlflowException as error:
            raise ContractError(
                f"{self.identity.label}: the rows do not fit the model's signature: "
                f"{str(error).rsplit('Error: ', 1)[-1]}; it asks for {self._input_schema}"
            ) from error
        except Exception as error:  # the model's own code may raise anything
            raise ContractError(
                f"{self.identity.label}: predict failed on rows {start} to {start + len(frame) - 1}: "
                f"{type(error).__name__}: {error}"
            ) from error
        try:
            return read_distribution(output, self.settings, len(frame), start=start)
        except ContractError as error:
            raise ContractError(f"{self.identity.label}: {error}") from error

    @property
    def _input_schema(self) -> Schema | None:
        signature = self.pyfunc.metadata.signature
        return signature.inputs if signature is not None else None

    def _inputs(self, frame: pd.DataFrame) -> Any:
        schema = self._input_schema
        if schema is None:
            return frame
        if schema.has_input_names():
            optional = set(schema.input_names()) - set(schema.required_input_names())
            names = [name for name in schema.input_names() if name in frame.columns or name not in optional]
            missing = [name for name in names if name not in frame.columns]
            if missing:
                raise ContractError(
                    f"{self.identity.label}: the model asks for input column {missing[0]!r}, but the split gives "
                    f"{', '.join(map(repr, frame.columns))}; add it to the split's model inputs"
                )
            inputs = frame[names].reset_index(drop=True)
            # MLflow refuses long where the signature says double; a whole number below 2^53 is the same in both.
            wide = {str(item.name) for item in schema.inputs if getattr(item, "type", None) == DataType.double}
            return inputs.astype(
                {name: "float64" for name in names if name in wide and inputs[name].dtype.kind in "iu"}
            )
        matrix = np.stack([np.asarray(row) for row in frame.iloc[:, 0]]) if frame.shape[1] == 1 else frame.to_numpy()
        return matrix.astype(schema.numpy_types()[0]) if schema.is_tensor_spec() else frame


def load_predictive_model(uri: str, predictions: PredictionSettings | None = None) -> PredictiveModel:
    """Load the model version behind ``uri`` from the current MLflow registry (see ``registry.resolve`` for the forms).

    Args:
        uri: the model version.
        predictions: how to read its output; by default what its metadata says under the key ``congruence``.

    Raises:
        RegistryError: there is no such version.
        ContractError: the model cannot be loaded, or nobody says how to read its output.
    """
    identity = resolve(uri)
    try:
        pyfunc = load_model(identity.uri, suppress_warnings=True)
    except Exception as error:  # unpickling runs foreign code
        raise ContractError(
            f"{identity.label}: loading failed: {type(error).__name__}: {error}; install what the model needs "
            f"(mlflow.pyfunc.get_model_dependencies({identity.uri!r}) lists it)"
        ) from error
    return PredictiveModel(identity, predictions or settings_of(pyfunc, identity), pyfunc)


def settings_of(pyfunc: PyFuncModel, identity: ModelVersion) -> PredictionSettings:
    """How to read the output of a loaded model, from its metadata.

    Raises:
        ContractError: the metadata do not say, or say what is not valid.
    """
    found = (pyfunc.metadata.metadata or {}).get(METADATA_KEY)
    if found is None:
        raise ContractError(
            f"{identity.label}: its metadata has no key {METADATA_KEY!r} that says how to read its output; log it with "
            "log_predictive_model, or give `predictions: {family: ..., columns: ...}` in the evaluation file"
        )
    try:
        return PredictionSettings.model_validate(found)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise ContractError(
            f"{identity.label}: metadata {METADATA_KEY}{'.' if place else ''}{place}: {problem['msg']}; correct it "
            "under `predictions:` in the evaluation file, or log the model again"
        ) from error
