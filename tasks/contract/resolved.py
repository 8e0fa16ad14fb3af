"""What a version will be asked and how its output will be read, known before any of its code is loaded."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.models import Model
from pydantic import ValidationError

from congruence.tasks.contract.errors import ContractError
from congruence.tasks.contract.settings import AUTO, PredictionSettings
from congruence.tasks.models.registry import logged_model_record
from congruence.tasks.models.settings import Isolation
from congruence.tasks.models.version import ModelVersion
from congruence.tasks.runtime.files import digest_of
from congruence.tasks.runtime.masking import mask_text
from congruence.tasks.runtime.mlflow_requests import is_transient

METADATA_KEY = "congruence"


def resolved_contract(version: ModelVersion, predictions: PredictionSettings | None = None) -> PredictionSettings:
    """How the output of ``version`` is read: by ``predictions``, else as its own metadata say, all defaults filled in.

    Predictions that name a method and no family are for versions whose metadata say nothing.

    Where neither says anything, the class of the native model tells once it is loaded (family "auto"). Only the
    version's ``MLmodel`` file is read, and only where ``predictions`` are not given.

    Raises:
        ContractError: the metadata say what is not valid; or there is no ``MLmodel`` file.
        MlflowException: MLflow does not answer.
    """
    if predictions is not None and predictions.family != AUTO:
        return predictions
    return settings_in(read_description(version).metadata, version.label, predictions)


def contract_digest(settings: PredictionSettings, model_inputs: Sequence[str], isolation: Isolation = "none") -> str:
    """32 hexadecimal digits for what changes the predictions of a version beyond the version and the rows.

    These are the resolved contract, the columns that the version is given in their order, and whose packages it runs
    with.
    """
    return digest_of({"settings": settings.digested(), "model_inputs": list(model_inputs), "isolation": isolation})


def read_description(version: ModelVersion) -> Model:
    """The content of the version's ``MLmodel`` file: flavours, signature, metadata.

    Raises:
        ContractError: there is none.
        MlflowException: MLflow does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="congruence-") as folder:
        try:
            return Model.load(download_artifacts(artifact_uri=f"{_source(version)}/MLmodel", dst_path=folder))
        except Exception as error:  # artifact stores raise what their clients raise
            if is_transient(error):
                raise
            why = " ".join(mask_text(str(error)).split())
            raise ContractError(
                f"{version.label}: its MLmodel file cannot be read ({why}); bring its artifacts back to where MLflow's "
                "record says they are, or log the model again"
            ) from error


def settings_in(
    metadata: Mapping[str, Any] | None, label: str, otherwise: PredictionSettings | None = None
) -> PredictionSettings:
    """How to read the output of a model, from its metadata; ``otherwise`` where these say nothing, by default "auto".

    Raises:
        ContractError: the metadata say what is not valid.
    """
    found = (metadata or {}).get(METADATA_KEY)
    if found is None:
        return otherwise or PredictionSettings()
    try:
        return PredictionSettings.model_validate(found)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise ContractError(
            f"{label}: metadata {METADATA_KEY}{'.' if place else ''}{place}: {problem['msg']}; correct it "
            "under `predictions:` in the evaluation file, or log the model again"
        ) from error


def _source(version: ModelVersion) -> str:
    if version.model_id is None:
        return version.uri
    return logged_model_record(MlflowClient(), version.model_id).artifacts
