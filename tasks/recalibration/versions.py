"""A corrected version: fitted to half of the rows of a split, packed with all that it needs, and registered."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature, infer_signature
from mlflow.types import ColSpec, Schema
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.dependence.correlation import HoldOut, hold_out, version_blocks
from congruence.kernels.engine.spectrum import input_spectrum
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.recalibration.fit import FEWEST_ROWS, fit_recalibration
from congruence.kernels.recalibration.recalibration_map import RecalibrationMap, input_features, map_arrays
from congruence.kernels.rng import hashed_keys, keyed_uniforms
from congruence.tasks.contract.log import logged_model_name, without_notices
from congruence.tasks.contract.model import METADATA_KEY, fetch
from congruence.tasks.data.settings import Shard, SplitSettings
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.base import Encoder
from congruence.tasks.mlflow.connection import connect, open_experiment, with_retries
from congruence.tasks.mlflow.identity import PREFIX
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.models.registry import resolve
from congruence.tasks.recalibration import recalibrated_model
from congruence.tasks.recalibration.model import (
    DESCRIPTION,
    FOLDER,
    MAP,
    PARENT,
    WEIGHTS,
    DescribedEmbedding,
    RecalibratedModel,
)
from congruence.tasks.runtime.errors import ContractError
from congruence.tasks.runtime.files import digest_of, to_npz
from congruence.tasks.scores.correction import in_words
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import (
    FITTED_ON,
    FITTED_UNTIL,
    EncoderSettings,
    ModelVersion,
    PredictionSettings,
    TrackingSettings,
    fitted_on,
)

LOCAL = "local-dir:"
HERE = "{folder}"


def pack_encoder(settings: EncoderSettings, folder: Path) -> tuple[EncoderSettings, str]:
    """Copy weights that are files of this machine into ``folder``: the settings that find them there, and their key.

    The mean and scale of features are among the settings; the compact encoder ships with the package; weights that are
    named on a hub, and encoders of the user's own, are named again and must be within reach where the model is loaded.

    Returns:
        The settings, in which ``{folder}`` stands for the folder, and the key that holds it, "" for none.
    """
    anywhere = settings.model_copy(update={"device": "auto"})
    model, pretrained = settings.model or "", settings.pretrained or ""
    if model.startswith(LOCAL):
        source = Path(model.removeprefix(LOCAL))
        shutil.copytree(source, folder / source.name)
        return anywhere.model_copy(update={"model": f"{LOCAL}{HERE}/{source.name}"}), "model"
    if pretrained and Path(pretrained).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(pretrained, folder / Path(pretrained).name)
        return anywhere.model_copy(update={"pretrained": f"{HERE}/{Path(pretrained).name}"}), "pretrained"
    return anywhere, ""


MADE_FROM = PREFIX + "recalibration"
EXAMPLE_ROWS = 5


@dataclass(frozen=True)
class Origin:
    """What a recalibrated version is made from: the same origin is the same version.

    Of a ``parent``, whose output is read by ``predictions``, the map is fitted on the labelled ``split``, or on half of
    it, with kernel and normalisation of the ``protocol``.
    """

    parent: ModelVersion
    predictions: PredictionSettings
    split: Split
    half: bool
    protocol: EvaluationProtocol
    seed: int

    @property
    def digest(self) -> str:
        """32 hexadecimal digits."""
        parts: dict[str, Any] = {"parent": self.parent.model_id or self.parent.uri}
        parts |= {
            "predictions": self.predictions.digested(),
            "split": self.split.digest,
            "half": self.half,
            "protocol": self.protocol.digest,
            "seed": self.seed,
        }
        return digest_of(parts)


def find_recalibrated(origin: Origin, settings: TrackingSettings) -> ModelVersion | None:
    """The version of the parent's name that was made from the same, if there is one."""
    client, name = connect(settings), origin.parent.name
    found = with_retries("looking for versions", lambda: client.search_model_versions(f"name = '{name}'"), settings)
    made = [item for item in found if item.tags.get(MADE_FROM) == origin.digest and item.status == "READY"]
    return resolve(f"models:/{name}/{made[0].version}") if made else None


def require_given(split: Split, predictions: PredictionSettings, fitted: FittedVersion) -> None:
    """Refuse a correction that needs what the evaluation does not give the model.

    That is the inputs that it depends on, and the exposure of a version of rates: the corrected one multiplies itself.

    Raises:
        ContractError: names the columns.
    """
    given, exposure = split.settings.model_input_columns, predictions.exposure
    missing = [name for name in split.settings.input_columns if name not in given]
    if fitted.map.depends_on_input and missing:
        raise ContractError(
            f"split '{split.name}': the correction depends on {', '.join(missing)}, which its model_inputs do not give "
            "the model; add them to model_inputs of every split"
        )
    if exposure is not None and exposure not in given:
        raise ContractError(
            f"split '{split.name}': the predicted rates are multiplied by the exposure {exposure!r}, which the "
            f"corrected model must be given; add {exposure} to model_inputs of every split"
        )


def register_recalibrated(
    settings: EvaluationSettings, origin: Origin, fitted: FittedVersion, encoder: Encoder
) -> ModelVersion:
    """Log the corrected model and register it as a new version of the parent's name, with tags and a description.

    MLflow points where the evaluation's settings say; their encoder is packed where the correction depends on inputs.

    Raises:
        ContractError: the model, packed, does not answer as it should on a few rows.
    """
    with tempfile.TemporaryDirectory(prefix="congruence-") as made:
        folder = Path(made) / FOLDER
        folder.mkdir()
        shutil.move(fetch(origin.parent), folder / PARENT)
        (folder / MAP).write_bytes(to_npz(map_arrays(fitted.map)))
        split, model = origin.split, RecalibratedModel()
        predictions = origin.predictions.model_dump(mode="json")
        described: dict[str, Any] = {"parent": origin.parent.label, "predictions": predictions, "embedding": None}
        if fitted.map.depends_on_input:
            packed, key = pack_encoder(settings.encoder, folder / WEIGHTS)
            described["embedding"] = vars(
                DescribedEmbedding(
                    columns=split.settings.input_columns,
                    encoder=packed.model_dump(mode="json", exclude_unset=True),
                    weights=key,
                    dtype=settings.store.dtype,
                    normalize=origin.protocol.normalize,
                    id=encoder.id,
                    preprocessing_digest=encoder.preprocessing_digest,
                )
            )
        (folder / DESCRIPTION).write_text(json.dumps(described, indent=1))
        frame = split.frame(split.shards[0], list(dict.fromkeys(split.settings.model_input_columns)))
        example = frame[frame.notna().all(axis=1)].head(EXAMPLE_ROWS).reset_index(drop=True)
        try:
            model.open(folder)
            answered = model.predict(None, example)
        except Exception as error:
            raise ContractError(
                f"{origin.parent.label}: its recalibrated model fails on {len(example)} rows of split "
                f"'{split.name}': {error}"
            ) from error
        signature = _signature(folder / PARENT, example, answered)
        return _register(settings.tracking, origin, fitted, folder, signature, model.read_by)


def _signature(parent: Path, example: pd.DataFrame, answered: pd.DataFrame) -> ModelSignature:
    """Of the columns that the parent asks for, typed as it does, and of those that are embedded."""
    with without_notices():
        found = infer_signature(example, answered)
    asked = Model.load(str(parent / "MLmodel")).signature
    known: dict[str, ColSpec] = {}
    if asked is not None and asked.inputs is not None and asked.inputs.has_input_names():
        known = {str(item.name): item for item in asked.inputs}
    return ModelSignature(Schema([known.get(str(item.name), item) for item in found.inputs]), found.outputs)


def _register(
    tracking: TrackingSettings,
    origin: Origin,
    fitted: FittedVersion,
    folder: Path,
    signature: ModelSignature,
    read_by: PredictionSettings,
) -> ModelVersion:
    client, parent = connect(tracking), origin.parent
    place = with_retries("opening the experiment", lambda: _place(client, parent, tracking), tracking)
    rows = f"{fitted.rows:,} rows of {origin.split.name}"
    what = f"{parent.label} recalibrated: {fitted.said}"
    name = f"{parent.label} recalibrated"  # what it changes fills lines, and is the description's
    with mlflow.start_run(experiment_id=place, run_name=name, description=what), without_notices():
        mlflow.log_params({"parent": parent.uri, "rows": fitted.rows, "split": origin.split.name, "seed": origin.seed})
        mlflow.log_param("split_digest", origin.split.digest)
        info = mlflow.pyfunc.log_model(
            name=logged_model_name(parent.name),
            python_model=recalibrated_model.__file__,
            artifacts={FOLDER: str(folder)},
            signature=signature,
            metadata={METADATA_KEY: read_by.model_dump(exclude_defaults=True)},
            pip_requirements=_requirements(folder / PARENT),
        )
    tags = {
        "what": what,
        "recalibrated_from": parent.label,
        "recalibrated_on": f"{rows}, {described(origin.split.settings)}" if origin.half else rows,
        FITTED_ON: fitted_on(origin.split.digest),
        MADE_FROM: origin.digest,
    }
    if until := max(origin.split.period.partition("/")[2], parent.tags.get(FITTED_UNTIL, "")):
        tags[FITTED_UNTIL] = until
    description = (
        f"Version {parent.version} with its predictive distributions corrected where they are wrong: {fitted.said}. "
        f"Fitted on {rows}. The parent's model is packed into this one."
    )
    known = {"source": info.model_uri, "run_id": info.run_id, "model_id": info.model_id}
    made = client.create_model_version(parent.name, **known, tags=tags, description=description)
    link = [{"name": parent.name, "version": made.version}]
    client.set_logged_model_tags(info.model_id, {MLFLOW_MODEL_VERSIONS: json.dumps(link)})
    return resolve(f"models:/{parent.name}/{made.version}")


def _place(client: MlflowClient, parent: ModelVersion, tracking: TrackingSettings) -> str:
    """The experiment of the parent's logged model, whose page compares them; that of evaluations where it is gone."""
    if parent.model_id is not None:
        try:
            found = client.get_experiment(client.get_logged_model(parent.model_id).experiment_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        else:
            if found.lifecycle_stage == "active":
                return str(found.experiment_id)
    return str(open_experiment(client, tracking.evaluations, tracking).experiment_id)


def _requirements(parent: Path) -> list[str]:
    """The parent's, and what ours needs beside them, at the installed versions."""
    file = parent / "requirements.txt"
    listed = file.read_text().splitlines() if file.is_file() else []
    kept = [line.strip() for line in listed if line.strip() and not line.startswith("#")]
    named = {re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower().replace("_", "-") for line in kept}
    own: list[Any] = ["congruence", "mlflow", "numpy", "pandas"]
    return kept + [f"{name}=={re.sub(r'[+].*', '', installed(name))}" for name in own if name not in named]


def halves_of(split: Split) -> HoldOut:
    """Of each row of a split, whether a correction may see it, and whether it is held out: the same for all versions.

    Rows that the split says may depend on each other are not on both sides.
    """
    return hold_out(keys_of(split), split.design().dependence())


def described(settings: SplitSettings) -> str:
    """Which rows a correction is fitted on, and which it is to be judged on, in words."""
    if settings.groups is not None:
        return f"half of them by {settings.groups}: judge it on the other half"
    if settings.time is not None:
        return f"the earlier ones by {settings.time}: judge it on the later ones"
    return "half of them by key: judge it on the other half"


def keys_of(split: Split) -> Array:
    """The key of every row of the split."""
    return split.key_values(Shard(0, 0, split.rows, "")).to_numpy()


FIT_ROWS = 50_000
"""Rows that are read into memory at the most: more of them hardly move a smooth map."""


@dataclass(frozen=True)
class FittedVersion:
    """The correction of one version, by so many rows, and the p-value of calibration given the input on these.

    ``said`` is what it changes, in words; "" where nothing.
    """

    map: RecalibrationMap = field(repr=False)
    rows: int
    p_value: float
    said: str


def fit_version(
    protocol: EvaluationProtocol, rows: EvaluatedRows, version: str, *, half: bool, seed: int
) -> FittedVersion:
    """Fit the correction of a version, whose embeddings and predictions are kept, on labelled rows.

    With ``half`` on those that ``halves_of`` its split gives to the fit alone; the protocol says what is near.

    Raises:
        InvalidInputError: vector targets, laws that have no levels, too few rows, or fewer than ten groups or runs.
    """
    keys, targets = keys_of(rows.split)[rows.valid], rows.targets()
    if targets.ndim > 1:
        raise InvalidInputError(
            f"{version}: recalibration maps the levels of one target, but the split has {targets.shape[1]}; "
            "recalibrate models of one target each"
        )
    chosen = np.flatnonzero(halves_of(rows.split).fitting[rows.valid]) if half else np.arange(len(keys))
    if len(chosen) < FEWEST_ROWS:
        found = f"{len(chosen)}{f' (half of {len(keys)})' if half else ''}"
        raise InvalidInputError(
            f"{version}: a correction is fitted on at least {FEWEST_ROWS} labelled rows, and split "
            f"'{rows.split.name}' has {found} for it; bring more rows, or fit on another split (--fit NAME)"
        )
    if len(chosen) > FIT_ROWS:
        drawn = keyed_uniforms(keys[chosen], seed, "rows that are enough for a recalibration")
        chosen = np.sort(chosen[np.argsort(drawn, kind="stable")[:FIT_ROWS]])
    dependence = rows.design().dependence()
    dependence = None if dependence is None else dependence.of_rows(chosen)
    predictive, keys, targets = rows.all_predictive(version)[chosen], hashed_keys(keys[chosen]), targets[chosen]
    x = protocol.apply(np.asarray(rows.embeddings_of(chosen), dtype=np.float64))
    spectrum = input_spectrum(x, protocol.input_kernel, protocol.regularization, seed=seed)
    features = input_features(spectrum, x)
    blocks = version_blocks(dependence, targets, predictive)
    fitted = fit_recalibration(features, targets, predictive, seed=seed, keys=keys, blocks=blocks)
    calibration = prepare_calibration(x, input_kernel=protocol.input_kernel, seed=seed)
    test = calibration.test_version(targets, predictive, keys=keys, seed=seed, dependence=dependence)
    return FittedVersion(fitted, len(chosen), test.p_value, in_words(fitted, x))
