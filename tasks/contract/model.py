"""A registered model that predicts distributions: loaded by URI, asked row by row, checked before the long work.

Loading a model from a registry runs the code that its author put there (pickled classes, ``code_paths``): evaluate only
models whose authors may run code on this machine.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import weakref
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

import pandas as pd
from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import PyFuncModel, load_model
from mlflow.types.schema import Schema

from congruence.kernels.distributions.base import Distribution
from congruence.tasks.contract.errors import ContractError
from congruence.tasks.contract.exposure import EXPOSURE, exposed, exposure_in
from congruence.tasks.contract.loading_remedy import loading_remedy
from congruence.tasks.contract.reading import read_distribution
from congruence.tasks.contract.resolved import settings_in
from congruence.tasks.contract.settings import AUTO, PredictionSettings
from congruence.tasks.contract.signature import pictures_as_files, to_signature, to_tensor
from congruence.tasks.models.registry import resolve
from congruence.tasks.models.version import ModelVersion
from congruence.tasks.readers.base import UnreadableOutputError
from congruence.tasks.readers.read import answer_of, said_of
from congruence.tasks.runtime.mlflow_requests import is_transient

FETCHED = "congruence-model-"


@runtime_checkable  # flows that are given models make a schema of their arguments
class AskedModel(Protocol):
    """A model that was loaded, in this process or another: MLflow's ``PyFuncModel``, or one that is asked like it."""

    @property
    def metadata(self) -> Any:
        """What its ``MLmodel`` file says."""

    def predict(self, data: Any) -> Any:
        """Its output for a frame or a matrix."""


@dataclass(frozen=True)
class PredictiveModel:
    """A model version with the settings that turn its output into distributions."""

    identity: ModelVersion
    settings: PredictionSettings
    pyfunc: AskedModel = field(repr=False)
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
        without a signature gets every column.

        Args:
            frame: the input rows.
            start: the number of the first row in the split, for errors.

        Raises:
            ContractError: a column is missing, the model raised, or its output is not what the settings promise.
        """
        output = self.output(frame, start=start)
        try:
            found = read_distribution(output, self.settings, len(frame), start=start)
            if self.settings.exposure is None:
                return found
            exposure = exposure_in(frame, self.settings.exposure, start)
            return exposed(found, found.family, exposure)
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
            folder = Path(opened.enter_context(TemporaryDirectory())) if _holds_bytes(frame) else None
            try:
                inputs = self._inputs(frame, folder)
            except Exception as error:  # values of any kind, in conversions of pandas
                why = (
                    str(error) if isinstance(error, ContractError) else f"{rows} cannot be given: {failure_text(error)}"
                )
                raise ContractError(f"{label}: {why}") from error
            try:
                return self._asked(inputs)
            except UnreadableOutputError as error:
                raise ContractError(f"{label}: {error}") from error
            except MlflowException as error:
                raise ContractError(
                    f"{label}: {rows} do not fit the model's signature: {str(error).rsplit('Error: ', 1)[-1]}; it asks "
                    f"for {self._input_schema}"
                ) from error
            except (Exception, SystemExit) as error:  # the model's own code may raise anything
                raise ContractError(f"{label}: predict failed on {rows}: {failure_text(error)}") from error

    def asked_by(self) -> str:
        """What of the native model is asked, in words; "" where that is its logged ``predict``."""
        if self.settings.method is not None:
            return self.settings.method
        if isinstance(self.pyfunc, PyFuncModel):
            return said_of(self.pyfunc)
        return str(getattr(self.pyfunc, "said", ""))

    def _asked(self, inputs: Any) -> Any:
        settings = self.settings
        as_spec = settings.family == AUTO
        if settings.method is None and not as_spec:
            return self.pyfunc.predict(inputs)
        ask = getattr(self.pyfunc, "answer_of", None)  # of a model in a process of its own
        if ask is not None:
            return ask(inputs, settings.method, as_spec=as_spec, levels=settings.levels)
        return answer_of(self.pyfunc, inputs, settings.method, as_spec=as_spec, levels=settings.levels)

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
            inputs, notes = to_signature(frame[names], schema)
            if folder is not None:
                inputs, more = pictures_as_files(inputs, schema, folder)
                notes |= more
            self.casts.update(notes)
            return inputs
        return to_tensor(frame, schema.numpy_types()[0]) if schema.is_tensor_spec() else frame


def load_predictive_model(uri: str, predictions: PredictionSettings | None = None) -> PredictiveModel:
    """Load the model version behind ``uri`` from the current MLflow registry (see ``registry.resolve`` for the forms).

    Args:
        uri: the model version.
        predictions: how to read its output; by default what its metadata says under the key ``congruence``.

    Raises:
        RegistryError: there is no such version.
        ContractError: the model cannot be loaded, or nobody says how to read its output.
        MlflowException: MLflow does not answer.
    """
    return load_version(resolve(uri), predictions)


def load_version(identity: ModelVersion, predictions: PredictionSettings | None = None) -> PredictiveModel:
    """Load a version into this process.

    Its files are fetched first and live as long as the model: what then fails is the model's own failure.

    Raises:
        ContractError: the files are not there, the model cannot be loaded, or nobody says how to read its output.
        MlflowException: MLflow does not answer.
    """
    folder = fetch(identity)
    try:
        forget_code_of_others()
        pyfunc = load_model(str(folder), suppress_warnings=True)
    except (Exception, SystemExit) as error:  # unpickling runs foreign code
        shutil.rmtree(folder, ignore_errors=True)
        raise ContractError(
            f"{identity.label}: loading failed: {failure_text(error)}; {loading_remedy(error, identity.uri)}"
        ) from error
    # Some models open their files when they predict.
    weakref.finalize(pyfunc, shutil.rmtree, folder, ignore_errors=True)
    if predictions is None or predictions.family == AUTO:
        predictions = settings_in(pyfunc.metadata.metadata, identity.label, predictions)
    return PredictiveModel(identity, predictions, pyfunc)


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


def forget_code_of_others() -> None:
    """Forget the modules that versions loaded before brought along (``code_paths``).

    MLflow puts each version's folder of code on the path, so a module that two versions have under one name would be
    that of the version loaded first. Objects that were made of such a module keep it.
    """
    sys.path[:] = [path for path in sys.path if not _is_fetched(path)]
    for name, module in list(sys.modules.items()):
        if _is_fetched(str(getattr(module, "__dict__", {}).get("__file__") or "")):  # without waking lazy modules
            del sys.modules[name]


def failure_text(error: BaseException) -> str:
    """What the code of a model raised, for a ContractError, which masks its secrets."""
    text = str(error).strip()
    if isinstance(error, ContractError):  # of a process that said more
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _listed(frame: pd.DataFrame) -> str:
    return ", ".join(map(repr, frame.columns))


def _holds_bytes(frame: pd.DataFrame) -> bool:
    return len(frame) > 0 and any(isinstance(cell, bytes) for cell in frame.iloc[0])


def _rows(start: int, frame: pd.DataFrame) -> str:
    return f"rows {start} to {start + len(frame) - 1}"


def _is_fetched(path: str) -> bool:
    return f"/{FETCHED}" in path
