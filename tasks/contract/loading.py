"""A version's own description, which says how its output is read before its code is loaded; loading and trying it.

Loading a model from a registry runs the code that its author put there (pickled classes, ``code_paths``): evaluate only
models whose authors may run code on this machine.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.artifacts import download_artifacts
from mlflow.models import Model
from mlflow.pyfunc import load_model
from pydantic import ValidationError

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.distributions.base import Distribution
from congruence.tasks.contract.model import EXPOSURE, PredictiveModel, failure_text
from congruence.tasks.mlflow.connection import is_transient
from congruence.tasks.models.registry import logged_model_record, resolve
from congruence.tasks.readers.base import Spec
from congruence.tasks.runtime.errors import ContractError, mask_text
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


_REMEDIES = (
    (
        ("untrusted", "UntrustedTypes"),
        "MLflow logs scikit-learn by skops, which loads only types listed as trusted: log the model again with "
        "mlflow.sklearn.log_model(..., skops_trusted_types=[...]) and the types named here, or with "
        'serialization_format="cloudpickle"',
    ),
    (
        ("MLFLOW_ALLOW_MODEL_CODE_EXECUTION",),
        "MLFLOW_ALLOW_MODEL_CODE_EXECUTION is false here, which refuses every pyfunc model: set it to true for models "
        "whose authors you trust",
    ),
    (
        ("MLFLOW_ALLOW_PICKLE_DESERIALIZATION",),
        "set MLFLOW_ALLOW_PICKLE_DESERIALIZATION to true for models whose authors you trust, or log the model again in "
        'a format that holds no code (scikit-learn: serialization_format="skops", torch: "pt2")',
    ),
    (
        ("pt2", "torch.export", "ExportedProgram"),
        "MLflow logs torch modules by torch.export (pt2), which holds neither the module's class nor its methods: log "
        'it again with mlflow.pytorch.log_model(..., serialization_format="pickle") or with log_predictive_model',
    ),
)


def loading_remedy(error: BaseException, uri: str) -> str:
    """What to do, by what the error says."""
    text = f"{type(error).__name__} {error}"
    for signs, remedy in _REMEDIES:
        if any(sign in text for sign in signs):
            return remedy
    return f"install what the model needs (mlflow.pyfunc.get_model_dependencies({uri!r}) lists it)"


FETCHED = "congruence-model-"


def load_predictive_model(uri: str, predictions: PredictionSettings | None = None) -> PredictiveModel:
    """Load the model version behind ``uri``, from the current MLflow registry, into this process.

    See ``registry.resolve`` for the forms of ``uri``.

    Args:
        uri: the model version.
        predictions: how to read its output; by default what its metadata says under the key ``congruence``.

    Raises:
        RegistryError: there is no such version.
        ContractError: the model cannot be loaded, or nobody says how to read its output.
        MlflowException: MLflow does not answer.
    """
    identity = resolve(uri)
    folder = fetch(identity)  # first: what then fails is the model's own failure
    try:
        _forget_code_of_others()
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


def _forget_code_of_others() -> None:
    """Forget the modules that versions loaded before brought along (``code_paths``).

    MLflow puts each version's folder of code on the path, so a module that two versions have under one name would be
    that of the version loaded first. Objects that were made of such a module keep it.
    """
    sys.path[:] = [path for path in sys.path if f"/{FETCHED}" not in path]
    for name, module in list(sys.modules.items()):
        if f"/{FETCHED}" in str(getattr(module, "__dict__", {}).get("__file__") or ""):  # without waking lazy modules
            del sys.modules[name]


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


_CLEARLY = 1.2
"""A mean prediction within this factor of the mean count is one of counts."""

_REACH = 3.0


def require_counts(label: str, predictive: Distribution, frame: pd.DataFrame, targets: Any) -> None:
    """Refuse predicted rates that are read as counts, on rows whose split names an exposure.

    Raises:
        ContractError: the mean prediction is not the mean count, and nearer to the mean rate, sum y / sum e.
    """
    if EXPOSURE not in frame.columns or not predictive.is_discrete or np.ndim(targets) != 1:
        return
    exposure, total = frame[EXPOSURE].to_numpy(np.float64), float(np.sum(targets))
    predicted = float(np.mean(predictive.mean()))
    if total <= 0.0 or not predicted > 0.0:
        return
    count, rate = total / len(exposure), total / float(np.sum(exposure))
    from_count, from_rate = abs(np.log(predicted / count)), abs(np.log(predicted / rate))
    # The total is known to some 1 / sqrt(total) of itself.
    if from_count > max(np.log(_CLEARLY), _REACH / np.sqrt(total)) and from_rate < from_count:
        raise ContractError(
            f"{label}: predicts rates that are read as counts: its mean prediction {predicted:.3g} is "
            f"{predicted / count:.3g} times the mean count {count:.3g}, and {predicted / rate:.3g} times the mean rate "
            f"{rate:.3g} per unit of exposure, on {len(exposure):,} rows; add exposure: to predictions: in the "
            "evaluation file, or log it with log_predictive_model(..., exposure=...); a model that does predict counts "
            "is evaluated where the split names no exposure"
        )


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
