"""What runs on a worker: a version, loaded once per process, predicts a group of shards into the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
from mlflow.models import Model

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.tasks.contract import ContractReport, PredictionSettings, PredictiveModel, check_contract
from congruence.tasks.contract.errors import ContractError
from congruence.tasks.contract.exposure import EXPOSURE, require_counts
from congruence.tasks.contract.loading_remedy import loading_remedy
from congruence.tasks.contract.model import failure_text, fetch
from congruence.tasks.data.settings import StoredColumns
from congruence.tasks.data.shards import Shard
from congruence.tasks.data.split import Split, runs
from congruence.tasks.models.contract_rows import contract_rows, model_frame
from congruence.tasks.models.predictions import (
    PredictionAddress,
    concatenate,
    missing,
    object_name,
    write_predictions,
)
from congruence.tasks.models.processes import ModelProcess
from congruence.tasks.models.refused_rows import naming_the_row, refused_rows
from congruence.tasks.models.settings import PredictSettings
from congruence.tasks.models.version import ModelVersion
from congruence.tasks.readers.base import Spec
from congruence.tasks.readers.read import read_output
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.made_once import MadeOnce

logger = logging.getLogger(__name__)

CONTRACT_ROWS = 32
RATE_ROWS = 2048
"""Rows, of tables and texts, that tell predicted rates from counts where the split names an exposure."""


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


def predict_shards(
    address: PredictionAddress,
    served: ServedVersion,
    split: Split,
    shards: Sequence[Shard],
    valid: Sequence[Array],
) -> int:
    """Predicts the valid rows of ``shards`` into the store, where they are not there yet; returns the rows in number.

    To run on a worker. Each shard is stored as soon as it is predicted, so that is what a kill costs. ``valid`` has a
    mask for each shard: the other rows cannot be embedded, or have no target.

    Raises:
        ContractError: the version cannot be loaded, or its output is not what its contract says; names version, rows
            and reason. The other versions are not concerned.
        MlflowException: MLflow does not answer; try again later.
    """
    pairs = ((shard, mask) for shard, mask in zip(shards, valid, strict=True) if mask.any())
    asked = {object_name(split, shard, mask): (shard, mask) for shard, mask in pairs}
    lacking = missing(address, list(asked))
    if not lacking:
        return 0
    model, first, rows = warm_model(served), None, 0
    for name in lacking:
        shard, mask = asked[name]
        found = _answered(model, split, shard, _valid_rows(split, shard, mask))
        first = found[:1] if first is None else first
        _require_alike(model, first, found[:1])
        write_predictions(address, name, found)
        rows += len(found)
    return rows


def refused_in_shards(
    served: ServedVersion, split: Split, shards: Sequence[Shard], valid: Sequence[Array]
) -> dict[int, str]:
    """The valid rows of ``shards`` that the version gives no prediction for, and why, by row of the split.

    To run on a worker.

    Raises:
        ContractError: see ``refused_rows``; or the version cannot be loaded.
        MlflowException: MLflow does not answer.
    """
    model = warm_model(served)
    found: dict[int, str] = {}
    for shard, mask in zip(shards, valid, strict=True):
        found |= refused_rows(model.predict, _valid_rows(split, shard, mask))
    return found


def try_contract(served: ServedVersion, split: Split, *, missing: bool = False) -> ContractReport:
    """Load the version and try its contract on a few rows of ``split``, before the long work. To run on a worker.

    ``missing``: rows that lack some features are among those that it will be asked for.

    Raises:
        ContractError: see ``check_contract``.
        MlflowException: MLflow does not answer.
    """
    frame, targets = contract_rows(split, CONTRACT_ROWS, missing=missing)
    model = warm_model(served)
    try:
        found = check_contract(model, frame, targets)
        if targets is not None and split.settings.exposure is not None and split.settings.input_kind != "image":
            frame, targets = contract_rows(split, RATE_ROWS, missing=missing)
            require_counts(served.label, model.predict(frame), frame, targets)
        return found
    except ContractError as error:
        keys = split.keys(split.shards[0])
        raise naming_the_row(model.predict, frame, lambda row: keys[row], error) from error
    except (Exception, SystemExit) as error:
        raise ContractError(f"{served.label}: its contract cannot be checked: {failure_text(error)}") from error


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

    def answer_of(
        self, data: pd.DataFrame, _method: str | None, *, as_spec: bool, levels: list[float] | None
    ) -> Spec | pd.DataFrame:
        found = self.predict(data)
        return read_output(found, len(found), levels=levels) if as_spec else found


def stored_predictions(
    served: ServedVersion, split: Split, shards: Sequence[Shard], valid: Sequence[Array]
) -> Distribution:
    """The stored predictions for the valid rows of ``shards``, read from the columns of the split.

    ``valid`` has a mask for each shard.

    Raises:
        ContractError: the columns are not what the contract says; names version, row and reason.
    """
    columns, model, parts = list(served.stored.columns) if served.stored else [], warm_model(served), []
    for start, stop in runs(shards):
        frame = split.frame(Shard(0, start, stop - start, ""), columns)
        exposure = split.settings.exposure and split.design([Shard(0, start, stop - start, "")]).exposure
        parts.append(frame if exposure is None else frame.assign(**{EXPOSURE: exposure}))
    whole = parts[0] if len(parts) == 1 else pd.concat(parts)
    mask = np.concatenate(list(valid))
    return model.predict(whole if mask.all() else whole[mask], start=shards[0].start)


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


def _answered(model: PredictiveModel, split: Split, shard: Shard, frame: pd.DataFrame) -> Distribution:
    try:
        return model.predict(frame, start=shard.start)
    except ContractError as error:
        keys = split.keys(shard)
        raise naming_the_row(model.predict, frame, lambda row: keys[row - shard.start], error) from error


def _require_alike(model: PredictiveModel, first: Distribution, found: Distribution) -> None:
    try:
        concatenate([first, found])
    except ContractError as error:
        raise ContractError(f"{model.identity.label}: {error}") from error


def _valid_rows(split: Split, shard: Shard, mask: Array) -> pd.DataFrame:
    return model_frame(split, shard)[mask]
