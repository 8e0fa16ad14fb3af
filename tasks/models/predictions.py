"""A version, loaded once per process to predict; and its predictions, kept shard by shard beside the embeddings.

    <store>/predictions/<version>-<contract>/<shard digest>-<digest of the rest>.npz

The name of an object says what it answers: the inputs of a shard, its other model inputs, and which of its rows are
asked for. So where rows are appended, or a target is corrected, the version is asked for new inputs alone. An object is
written at once and whole; one that is there is finished. It holds the parameters of the family by their names, one row
for each row that was predicted, and a description as JSON.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pyarrow as pa
from mlflow.models import Model

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution, Mixture
from congruence.kernels.distributions.recalibrated import NormalScoreMap, Recalibrated, RecalibratedCount
from congruence.kernels.errors import CongruenceError, InvalidInputError
from congruence.tasks.contract import PredictionSettings, PredictiveModel
from congruence.tasks.contract.loading import fetch, loading_remedy
from congruence.tasks.contract.model import EXPOSURE, failure_text
from congruence.tasks.contract.settings import families
from congruence.tasks.data.locations import ContentDigest, combine
from congruence.tasks.data.settings import Shard, StoredColumns
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.base import InvalidRow
from congruence.tasks.encoders.images import decode_image
from congruence.tasks.models.processes import ModelProcess
from congruence.tasks.runtime.errors import ContractError, SettingsError
from congruence.tasks.runtime.files import digest_of, from_npz, to_npz
from congruence.tasks.runtime.memory import MadeOnce
from congruence.tasks.settings.sections import EncoderSettings, ModelVersion, PredictSettings
from congruence.tasks.store.objects import ObjectStore

logger = logging.getLogger(__name__)

_FORMAT = 3
_READ_AT_ONCE = 8
_DESCRIPTION = "description"


class PredictionsError(CongruenceError):
    """Predictions that are missing or damaged: names the version, the file and the remedy."""


class NotPredictedError(PredictionsError):
    """Predictions that were not made yet, or were removed."""


@dataclass(frozen=True)
class KeptPredictions:
    """The predictions of one version, read by one contract, in a store; small enough to travel with the work.

    Attributes:
        objects: the store of the embeddings.
        folder: the key in that store below which they lie.
        label: what people call the version.
    """

    objects: ObjectStore = field(repr=False)
    folder: str
    label: str

    @classmethod
    def of(cls, objects: ObjectStore, version: ModelVersion, contract: str) -> KeptPredictions:
        """Returns what ``version`` predicts, read by the contract of that ``contract_digest``."""
        # MLflow's id of the logged model; versions of MLflow 2 have none, but name the run that logged them.
        model = version.model_id or "v-" + digest_of([version.name, version.version, version.uri, version.run_id])
        read = digest_of({"format": _FORMAT, "contract": contract})
        return cls(objects, f"predictions/{model}-{read}", version.label)

    def key(self, name: str) -> str:
        """Returns the key of the object of that name."""
        return f"{self.folder}/{name}.npz"

    def missing(self, names: Sequence[str]) -> list[str]:
        """Returns those of ``names`` that are still to be predicted, by one listing."""
        done = self.objects.finished(self.folder)
        return [name for name in names if self.key(name) not in done]

    def read(self, names: Sequence[str]) -> Distribution:
        """Returns the predictive distributions under ``names`` one after the other.

        Raises:
            NotPredictedError: one of them is not there.
            PredictionsError: a damaged file; or there are no ``names``.
            ContractError: they are not of one family and shape.
        """
        if not names:
            raise PredictionsError(f"{self.label}: none of these rows is valid, so none was predicted")
        with ThreadPoolExecutor(_READ_AT_ONCE) as threads:
            return concatenate(list(threads.map(self._read, names)))

    def _read(self, name: str) -> Distribution:
        content, place = self.objects.get(self.key(name)), f"{self.objects.uri}/{self.key(name)}"
        if content is None:
            raise NotPredictedError(f"{self.label}: predictions are missing ({place}); run the evaluation again")
        try:
            arrays = from_npz(content)
            return restore(json.loads(str(arrays.pop(_DESCRIPTION))), arrays)
        except (ValueError, KeyError, InvalidInputError) as error:
            raise PredictionsError(
                f"{self.label}: {place} is damaged ({error}); delete this file and run the evaluation again: it "
                "asks the version for these rows and keeps the others"
            ) from error

    def write(self, name: str, distribution: Distribution) -> None:
        """Stores what was predicted, after which it is done."""
        arrays: dict[str, Array] = {}
        description = np.array(json.dumps(describe(distribution, arrays)))
        self.objects.put(self.key(name), to_npz({**arrays, _DESCRIPTION: description}))

    def remove(self, names: Sequence[str]) -> None:
        """Removes what is kept under ``names``, so that the version is asked again."""
        self.objects.remove([self.key(name) for name in names])


def object_name(split: Split, shard: Shard, valid: Array) -> str:
    """Returns the name of the object that answers for the ``valid`` rows, (rows,), of a shard."""
    settings = split.settings
    others = [name for name in settings.model_input_columns if name not in settings.input_columns]
    named = json.dumps([settings.input_kind, settings.input_columns, others, settings.exposure])
    content = b""
    if others or settings.exposure is not None:
        key = (split.digest, shard.start, shard.rows, named)
        content = _contents.get(key, lambda: _content(split, shard, others)).encode()
    mask = np.packbits(np.asarray(valid, dtype=bool)).tobytes()
    return f"{shard.digest}-{combine([named.encode(), content, mask])}"


def concatenate(parts: Sequence[Distribution]) -> Distribution:
    """Returns the rows of several parts of one version's predictions as one.

    Raises:
        ContractError: the parts are not of one family and shape.
    """
    if len(parts) == 1:
        return parts[0]
    try:
        return type(parts[0]).concatenate(parts)
    except (InvalidInputError, ValueError, AttributeError, KeyError) as error:
        raise ContractError(
            f"predictions of several shards do not fit together ({error}); a version must give every row the same "
            "number of samples, quantiles or components"
        ) from error


_contents = MadeOnce[str](2**14)


def _content(split: Split, shard: Shard, columns: Sequence[str]) -> str:
    """A digest of what a version is given of a shard beside the encoder's input, which the shard's digest covers."""
    frame, state = split.frame(shard, columns), ContentDigest()
    for name in columns:
        column = pa.array(frame[name], from_pandas=True)
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:  # text of several files
            state.add_column(chunk)
    exposure = None if split.settings.exposure is None else split.design([shard]).exposure
    return combine([state.digest(), b"" if exposure is None else np.asarray(exposure, dtype=np.float64).tobytes()])


_MAP = ("shift", "factor", "levels", "shares")
"""Of a ``NormalScoreMap``, in the order of its constructor."""


def describe(distribution: Distribution, arrays: dict[str, Array], prefix: str = "") -> dict[str, Any]:
    """The family and the names of its parameters in the constructor's order; the arrays under those names are added.

    Component k of a mixture has arrays ``component_k.NAME``; of a part, ``prefix`` begins the names.
    """
    if distribution.recalibration is not None:
        base, score_map = distribution.recalibration
        arrays |= {f"{prefix}map.{name}": getattr(score_map, name) for name in _MAP}
        return {"recalibrated": describe(base, arrays, f"{prefix}base.")}
    if distribution.mixture is not None:
        weights, components = distribution.mixture
        arrays[f"{prefix}weights"] = weights
        listed = enumerate(components)
        return {"components": [describe(part, arrays, f"{prefix}component_{k}.") for k, part in listed]}
    parameters = distribution.parameters()
    arrays |= {f"{prefix}{name}": values for name, values in parameters.items()}
    return {"family": distribution.family, "parameters": list(parameters)}


def restore(description: Mapping[str, Any], arrays: Mapping[str, Array], prefix: str = "") -> Distribution:
    """The distribution that ``describe`` described.

    Raises:
        KeyError, InvalidInputError: description and arrays do not belong together.
    """
    if "recalibrated" in description:
        base = restore(description["recalibrated"], arrays, f"{prefix}base.")
        kept: Any = RecalibratedCount if base.is_discrete else Recalibrated
        return kept(base, NormalScoreMap(*(arrays[f"{prefix}map.{name}"] for name in _MAP)))  # type: ignore[no-any-return]
    if "components" in description:
        listed = enumerate(description["components"])
        parts = [restore(part, arrays, f"{prefix}component_{k}.") for k, part in listed]
        return Mixture(arrays[f"{prefix}weights"], parts)
    family: Any = families()[description["family"]]
    return family(*(arrays[f"{prefix}{name}"] for name in description["parameters"]))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ServedVersion:
    """All that a worker needs to load a version: small, picklable, without the version itself.

    Attributes:
        version: which.
        contract: how its output is read, see ``resolved_contract``.
        tracking_uri: MLflow server or database; the process's current one where it is None.
        registry_uri: the model registry; that of ``tracking_uri`` where it is None.
        settings: whether it runs in a process of its own.
        environments: folder, on the worker's machine, that keeps the environments of versions.
        inputs: the columns that it is given, where its entry of ``models:`` names them.
        stored: where its predictions are columns of the split, these: then no model is loaded.
    """

    version: ModelVersion
    contract: PredictionSettings
    tracking_uri: str | None = field(default=None, repr=False)
    registry_uri: str | None = field(default=None, repr=False)
    settings: PredictSettings = field(default_factory=PredictSettings)
    environments: str = ".congruence/environments"
    inputs: tuple[str, ...] | None = None
    stored: StoredColumns | None = None

    @property
    def label(self) -> str:
        """``name/version``."""
        return self.version.label

    @property
    def key(self) -> str:
        """What differs between two versions, or two ways to read or run one."""
        parts = (self.tracking_uri, self.version.model_id or self.version.uri, self.version.run_id)
        read = f"{self.contract.model_dump_json()} {self.inputs} {self.stored}"
        return f"{parts} {read} {self.settings.model_dump_json()} {self.environments}"


def warm_model(served: ServedVersion) -> PredictiveModel:
    """The version, loaded at most once in this process while it is one of the two asked last; for any thread.

    Raises:
        ContractError: it cannot be loaded.
        MlflowException: MLflow does not answer.
    """
    return _models.get(served.key, lambda: _load(served))


_models = MadeOnce[PredictiveModel](2)
"""One is loaded at a time: MLflow's addresses and the import path belong to the process."""


class _Answers:
    """Stored predictions as a model that answers with the columns that it is given, under their own names."""

    metadata = Model()

    def __init__(self, columns: dict[str, str]) -> None:
        self.columns = columns

    def predict(self, data: pd.DataFrame) -> pd.DataFrame:
        return data.rename(columns=self.columns)


def _load(served: ServedVersion) -> PredictiveModel:
    if served.stored is not None:
        answers = _Answers(served.stored.columns)
        return PredictiveModel(served.version, served.contract, answers, tuple(served.stored.columns))
    if served.tracking_uri is not None and mlflow.get_tracking_uri() != served.tracking_uri:
        mlflow.set_tracking_uri(served.tracking_uri)
    registry = served.registry_uri or served.tracking_uri
    if registry is not None and mlflow.get_registry_uri() != registry:
        mlflow.set_registry_uri(registry)
    started = time.perf_counter()
    folder = fetch(served.version)
    try:
        model = ModelProcess(folder, served.label, served.settings, Path(served.environments))
    except SettingsError:
        raise
    except Exception as error:
        remedy = f"; {loading_remedy(error, served.version.uri)}" if served.settings.isolation == "none" else ""
        raise ContractError(f"{served.label}: loading failed: {failure_text(error)}{remedy}") from error
    logger.info("%s loaded in %.1f s", served.label, time.perf_counter() - started)
    return PredictiveModel(served.version, served.contract, model, served.inputs)


def model_frame(split: Split, shard: Shard, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """``columns`` of ``shard``: by default the model inputs, and predictions that are stored beside them.

    The exposure of its rows, where the split names one, is the column ``EXPOSURE``.
    """
    asked = [*split.settings.model_input_columns, *split.settings.stored_columns] if columns is None else columns
    frame, exposure = split.frame(shard, asked), split.settings.exposure and split.design([shard]).exposure
    return frame if exposure is None else frame.assign(**{EXPOSURE: exposure})


def contract_rows(split: Split, most: int, *, missing: bool = False) -> tuple[pd.DataFrame, Array | None]:
    """Model inputs and targets of the first rows that will be evaluated, as far as one can tell: at most ``most``.

    Left out are rows without a finite target, or whose input cannot be read (rows may be ``missing`` features): they
    will have no embedding, so no version is asked for them. Targets are None where the split has none.
    """
    first, kind = split.shards[0], split.settings.input_kind
    frame = model_frame(split, first)
    targets = split.targets(first) if split.settings.target_columns else None
    if kind == "features":
        usable = np.ones(len(frame), dtype=bool)
        usable[list(split.features(first, missing=missing)[1])] = False
    else:
        needed = [name for name in frame.columns if name in split.settings.input_columns]
        usable = frame[needed].notna().all(axis=1).to_numpy()
    if targets is not None:
        usable = usable & np.isfinite(targets.reshape(len(frame), -1)).all(axis=1)
    rows = np.flatnonzero(usable)
    if kind == "image":
        decoded = (row for row, read in enumerate(split.input_readers(first)) if usable[row] and _is_image(read))
        rows = np.array(list(islice(decoded, most)) or rows, dtype=np.int64)
    return frame.iloc[rows[:most]], None if targets is None else targets[rows[:most]]


def _is_image(read: Callable[[], Any]) -> bool:
    try:
        decode_image(read(), EncoderSettings().max_pixels)
    except InvalidRow:
        return False
    return True
