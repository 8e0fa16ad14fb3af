"""A version by its contract: its own description, which says how its output is read, its files; asked, and tried.

Loading a model from a registry runs the code that its author put there (pickled classes, ``code_paths``): evaluate only
models whose authors may run code on this machine.
"""

from __future__ import annotations

import errno
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.types import DataType
from mlflow.types.schema import Schema
from pydantic import ValidationError

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.distributions.base import Distribution
from congruence.tasks.contract.reading import read_distribution
from congruence.tasks.contract.signature import (
    EXPOSURE,
    exposed,
    exposure_in,
    pictures_as_files,
    tensor_width,
    to_signature,
    to_tensor,
)
from congruence.tasks.mlflow.connection import is_transient
from congruence.tasks.models.registry import logged_model_record
from congruence.tasks.readers.base import Spec, UnreadableOutputError
from congruence.tasks.readers.read import answer_of, said_of
from congruence.tasks.runtime.errors import ContractError, mask_text, trouble
from congruence.tasks.runtime.files import digest_of
from congruence.tasks.settings.parts import Isolation
from congruence.tasks.settings.sections import AUTO, ModelVersion, PredictionSettings

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
            source = version.uri
            if version.model_id is not None:
                source = logged_model_record(mlflow.get_tracking_uri(), version.model_id).artifacts
            return Model.load(download_artifacts(artifact_uri=f"{source}/MLmodel", dst_path=folder))
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


FETCHED = "congruence-model-"


def fetch(identity: ModelVersion) -> Path:
    """The files of a version in a new folder, which the caller removes.

    Raises:
        ContractError: they are not there.
        MlflowException: MLflow does not answer.
    """
    folder = Path(tempfile.mkdtemp(prefix=FETCHED, dir=_place()))
    try:
        download_artifacts(artifact_uri=identity.uri, dst_path=str(folder))
    except Exception as error:  # artifact stores raise what their clients raise
        shutil.rmtree(folder, ignore_errors=True)
        if is_transient(error):
            raise
        raise ContractError(
            f"{identity.label}: its files cannot be fetched: {failure_text(error)}; log the model again"
        ) from error
    return folder


def _place() -> str | None:
    """The folder of the Dask worker that this is: Dask removes those of workers that were killed. Elsewhere none."""
    worker = sys.modules.get("distributed.worker")
    try:
        return None if worker is None else str(worker.get_worker().local_directory)
    except ValueError:
        return None


@dataclass(frozen=True)
class PredictiveModel:
    """A model version with the settings that turn its output into distributions."""

    identity: ModelVersion
    settings: PredictionSettings
    pyfunc: Any = field(repr=False)
    """MLflow's ``PyFuncModel``, or what has its ``metadata``: a model in a process of its own."""
    given: tuple[str, ...] | None = None
    """The columns that it is given, where that is said; its signature chooses among them, else it has all."""
    casts: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    """How columns were converted to the types of the signature, as far as the model was asked, in words by column."""

    @property
    def input_columns(self) -> tuple[str, ...] | None:
        """The columns that the model's signature asks for; None where it has no signature or takes a matrix."""
        schema = self._input_schema
        return tuple(map(str, schema.input_names())) if schema is not None and schema.has_input_names() else None

    def predict(self, frame: pd.DataFrame, *, start: int = 0) -> Distribution:
        """The predictive distributions of the rows of ``frame``, in order.

        Only the columns of the model's signature are handed over, so a target in the frame stays unseen. A model
        without a signature gets every column. Errors count rows from ``start``.

        Raises:
            ContractError: a column is missing, the model raised, or its output is not what the settings promise.
        """
        output = self.output(frame, start=start)
        try:
            found = read_distribution(output, self.settings, len(frame), start=start)
            column = self.settings.exposure
            return found if column is None else exposed(found, exposure_in(frame, column, start))
        except ContractError as error:
            raise ContractError(f"{self.identity.label}: {error}") from error
        except Exception as error:  # so may the objects that it returns
            raise ContractError(
                f"{self.identity.label}: its output on {_rows(start, frame)} cannot be read: {failure_text(error)}"
            ) from error

    def output(self, frame: pd.DataFrame, *, start: int = 0) -> Any:
        """What the model returns for the rows of ``frame``: columns, or a ``Spec`` read from its own objects.

        See ``predict``.
        """
        label, rows = self.identity.label, _rows(start, frame)
        with ExitStack() as opened:
            holds_bytes = len(frame) > 0 and any(isinstance(cell, bytes) for cell in frame.iloc[0])
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory())) if holds_bytes else None
            try:
                inputs = self._inputs(frame, folder)
            except ContractError as error:
                raise ContractError(f"{label}: {error}") from error
            except Exception as error:  # values of any kind, in conversions of pandas
                raise ContractError(f"{label}: {rows} cannot be given: {failure_text(error)}") from error
            try:
                ask = getattr(self.pyfunc, "answer_of", partial(answer_of, self.pyfunc))
                settings, as_spec = self.settings, self.settings.family == AUTO
                return ask(inputs, settings.method, as_spec=as_spec, levels=settings.levels)
            except UnreadableOutputError as error:
                raise ContractError(f"{label}: {error}") from error
            except MlflowException as error:
                said = str(error).rsplit("Error: ", 1)[-1].rstrip(".")
                if (asked := tensor_width(self._input_schema)) not in (None, given := np.shape(inputs)[-1]):
                    said = (
                        f"it takes {asked} numbers a row and is given {given}; name the columns that it was trained "
                        "on, in their order, as model_inputs"
                    )
                raise ContractError(f"{label}: {rows} do not fit the model's signature: {said}") from error
            except (Exception, SystemExit) as error:  # the model's own code may raise anything
                raise ContractError(f"{label}: predict failed on {rows}: {failure_text(error)}") from error

    def asked_by(self) -> str:
        """What of the native model is asked, in words; "" where that is its logged ``predict``."""
        return str(self.settings.method or getattr(self.pyfunc, "said", "") or said_of(self.pyfunc))

    @property
    def _input_schema(self) -> Schema | None:
        signature = self.pyfunc.metadata.signature
        return signature.inputs if signature is not None else None

    def _inputs(self, frame: pd.DataFrame, folder: Path | None) -> Any:
        schema = self._input_schema
        if EXPOSURE in frame.columns:
            frame = frame.drop(columns=EXPOSURE)
        if self.given is not None:
            absent = [name for name in self.given if name not in frame.columns]
            if absent:
                raise ContractError(f"model_inputs: there is no column {absent[0]!r}; the split gives {_listed(frame)}")
            frame = frame[list(self.given)]
        if schema is None:
            return frame
        if schema.has_input_names():
            given, required = set(frame.columns), set(schema.required_input_names())
            names = [name for name in schema.input_names() if name in given or name in required]
            missing = [name for name in names if name not in given]
            if missing:
                raise ContractError(
                    f"the model asks for input column {missing[0]!r}, but the split gives "
                    f"{_listed(frame)}; add it to the split's model inputs"
                )
            inputs, notes = frame[names].reset_index(drop=True), dict[str, str]()
            types: dict[Any, Any] = {item.name: getattr(item, "type", None) for item in schema.inputs}
            asked = [kind.to_numpy() if isinstance(kind := types[name], DataType) else None for name in names]
            if any(wanted is None or kind != wanted for kind, wanted in zip(inputs.dtypes, asked, strict=True)):
                inputs, notes = to_signature(inputs, schema)
            if folder is not None:
                inputs, more = pictures_as_files(inputs, schema, folder)
                notes |= more
            self.casts.update(notes)
            return inputs
        return to_tensor(frame, schema.numpy_types()[0]) if schema.is_tensor_spec() else frame


def failure_text(error: BaseException) -> str:
    """What the code of a model raised, for a ContractError, which masks its secrets."""
    text = str(error).strip()
    if isinstance(error, ContractError):  # of a process that said more
        return text
    why = trouble(error) if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) else None
    return ": ".join([type(error).__name__, *filter(None, (text, why))])


def _listed(frame: pd.DataFrame) -> str:
    return ", ".join(map(repr, frame.columns))


def _rows(start: int, frame: pd.DataFrame) -> str:
    return f"rows {start} to {start + len(frame) - 1}"


@dataclass(frozen=True)
class ContractReport:
    """What the trial showed: the family and how it was found, the rows tried, and what is allowed but worth knowing."""

    label: str
    family: str
    rows: int
    warnings: tuple[str, ...] = ()


def check_contract(model: PredictiveModel, frame: pd.DataFrame, targets: Any = None) -> ContractReport:
    """Ask ``model`` for the distributions of a few rows (8 to 100 are plenty) and check what comes back.

    Beyond what ``PredictiveModel.predict`` refuses, a count family must face whole, non-negative targets, targets and
    predictions must have one dimension, and the prediction of a row must not depend on the other rows of its batch.

    Raises:
        ContractError: names the column, shape, row or value, and the remedy.
    """
    if len(frame) == 0:
        raise ContractError(f"{model.identity.label}: there is no row to check the contract on")
    predictive = model.predict(frame)
    warnings = []
    if len(frame) > 1:
        alone = model.predict(frame.iloc[::-1].iloc[: (len(frame) + 1) // 2])
        warnings += _row_dependence(model, predictive, alone)
    if targets is not None:
        warnings += _check_targets(model, predictive, require_targets(targets, "targets", len(frame)))
    family, notes = model.settings.family, _in_short(model.casts)
    if family == AUTO or model.settings.method is not None:
        output, how = model.output(frame.iloc[:1]), model.asked_by()
        family = predictive.family + (f", read from {how}" if how else "")
        notes[:0] = [output.note] if isinstance(output, Spec) and output.note else []
    return ContractReport(model.identity.label, family, len(frame), (*notes, *warnings))


def _row_dependence(model: PredictiveModel, together: Distribution, apart: Distribution) -> list[str]:
    """The last half of the rows, in reverse, must have the means they have in the whole."""
    expected = np.asarray(together.mean())[::-1][: len(apart)]
    found = np.asarray(apart.mean())
    scale = float(np.mean(np.asarray(together.std()))) + float(np.ptp(expected)) + 1e-12
    difference = np.abs(found - expected).reshape(len(found), -1).max(axis=1)
    worst = int(np.argmax(difference))
    if difference[worst] <= 1e-3 * scale:
        return []
    values = f"mean {np.ravel(expected[worst])[0]:.6g} in one batch and {np.ravel(found[worst])[0]:.6g} in another"
    if together.draws is not None:
        return [f"row {len(together) - 1 - worst} has {values}: the samples are redrawn at every call"]
    raise ContractError(
        f"{model.identity.label}: row {len(together) - 1 - worst} has {values}: its prediction depends on the rest "
        "of the batch or on chance; put the network into evaluation mode, standardise with constants from training, "
        "fix seeds"
    )


def _check_targets(model: PredictiveModel, predictive: Distribution, targets: Array) -> list[str]:
    means = np.asarray(predictive.mean())
    if means.shape != targets.shape:
        raise ContractError(
            f"{model.identity.label}: predicts shape {means.shape} for targets of shape {targets.shape}; the target "
            "and the distribution must have the same dimension"
        )
    if predictive.is_discrete:
        wrong = (targets != np.round(targets)) | (targets < 0)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ContractError(
                f"{model.identity.label}: family {predictive.family} is for counts, but the target of row "
                f"{row} is {targets[row]:g}; choose a continuous family or another target column"
            )
    distance = np.abs(targets - means) / np.maximum(np.asarray(predictive.std()), 1e-300)
    if float(np.median(distance)) > 100:
        return [
            f"the typical target is {float(np.median(distance)):.3g} predicted standard deviations from its predicted "
            "mean: target and prediction may have different units"
        ]
    return []


def _in_short(casts: Mapping[str, str]) -> list[str]:
    """What was changed of the columns, in a line each; of those that are given in 32 bits of the most rounded one."""
    rounded = {name: note for name, note in casts.items() if " in 32 bits" in note}
    if len(rounded) < 2:
        return list(casts.values())
    largest = max(rounded.values(), key=lambda note: float(note.split()[-4]))
    others = "1 other column is" if len(rounded) == 2 else f"{len(rounded) - 1} other columns are"
    return [
        f"{largest}; {others}, too, and rounded by no more",
        *(note for name, note in casts.items() if name not in rounded),
    ]
