"""What runs on a worker: a version, loaded once per process, predicts a group of shards into the store.

Where it fails on some rows, these are asked again in halves until one is left, which is named.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
from mlflow.models import Model

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.tasks.contract import ContractReport, PredictionSettings, PredictiveModel, check_contract
from congruence.tasks.contract.loading import fetch, loading_remedy, require_counts
from congruence.tasks.contract.model import EXPOSURE, failure_text
from congruence.tasks.data.settings import Shard, StoredColumns
from congruence.tasks.data.split import Split, runs
from congruence.tasks.encoders.base import InvalidRow
from congruence.tasks.encoders.images import decode_image
from congruence.tasks.models.predictions import (
    PredictionAddress,
    concatenate,
    missing,
    object_name,
    write_predictions,
)
from congruence.tasks.models.processes import ModelProcess
from congruence.tasks.runtime.errors import ContractError, SettingsError
from congruence.tasks.runtime.memory import MadeOnce
from congruence.tasks.settings.sections import EncoderSettings, ModelVersion, PredictSettings

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
        frame = _valid_rows(split, shard, mask)
        try:
            found = model.predict(frame, start=shard.start)
        except ContractError as error:
            keys = dict(enumerate(split.keys(shard), shard.start))
            raise naming_the_row(model.predict, frame, keys, error) from error
        first = found[:1] if first is None else first
        try:
            concatenate([first, found[:1]])
        except ContractError as error:
            raise ContractError(f"{served.label}: {error}") from error
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
        keys = dict(enumerate(split.keys(split.shards[0])))
        raise naming_the_row(model.predict, frame, keys, error) from error
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


def _valid_rows(split: Split, shard: Shard, mask: Array) -> pd.DataFrame:
    return model_frame(split, shard)[mask]


def model_frame(split: Split, shard: Shard) -> pd.DataFrame:
    """The model inputs of ``shard``, predictions that are stored beside them, and the exposure of its rows if any.

    The exposure, where the split names one, is the column ``EXPOSURE``.
    """
    frame = split.frame(shard, [*split.settings.model_input_columns, *split.settings.stored_columns])
    exposure = None if split.settings.exposure is None else split.design([shard]).exposure
    return frame if exposure is None else frame.assign(**{EXPOSURE: exposure})


def contract_rows(split: Split, most: int, *, missing: bool = False) -> tuple[pd.DataFrame, Array | None]:
    """Model inputs and targets of the first rows that will be evaluated, as far as one can tell: at most ``most``.

    Left out are rows without a finite target, or whose input cannot be read (rows may be ``missing`` features): they
    will have no embedding, so no version is asked for them. Targets are None where the split has none.
    """
    first = split.shards[0]
    frame = model_frame(split, first)
    targets = split.targets(first) if split.settings.target_columns else None
    if split.settings.input_kind == "features":
        usable = np.ones(len(frame), dtype=bool)
        usable[list(split.features(first, missing=missing)[1])] = False
    else:
        needed = [name for name in frame.columns if name in split.settings.input_columns]
        usable = frame[needed].notna().all(axis=1).to_numpy()
    if targets is not None:
        usable = usable & np.isfinite(targets.reshape(len(frame), -1)).all(axis=1)
    rows = np.flatnonzero(usable)[:most]
    if split.settings.input_kind == "image":
        rows = np.array(list(_with_image(split, first, usable, most)) or rows, dtype=np.int64)
    return frame.iloc[rows], None if targets is None else targets[rows]


def _with_image(split: Split, shard: Shard, usable: Array, most: int) -> Iterator[int]:
    most_pixels = EncoderSettings().max_pixels
    for row, read in enumerate(split.input_readers(shard)):
        if most == 0:
            return
        if usable[row]:
            try:
                decode_image(read(), most_pixels)
            except InvalidRow:
                continue
            most -= 1
            yield row


_SECONDS = 300.0
"""After so long what is found by then is said."""
_WITHOUT_ANSWER = "predict.timeout"  # every half that holds the row would take as long again
_FIRST_ROW = re.compile(r"\brows 0 to 0\b|\brow 0\b")
_ONE_OF_ONE = re.compile(r" \(1 of 1 rows are\)")

Ask = Callable[[pd.DataFrame], Distribution]


def naming_the_row(ask: Ask, frame: pd.DataFrame, keys: Mapping[int, str], error: ContractError) -> ContractError:
    """What to say of ``error``, which ``ask`` raised on ``frame``: of a row by its number in the split and its key.

    A version that fails on the first row and on the last fails on all, as far as one can tell: then the error stands as
    it is, and so it does where no half of the rows fails by itself.

    Args:
        ask: predicts rows, and counts them from 0 in its errors.
        frame: the rows, its index their numbers in the split.
        keys: the key of a row by its number.
        error: what it raised.
    """
    ends = [frame.iloc[:1], frame.iloc[-1:]][: len(frame)]
    if _WITHOUT_ANSWER in str(error) or len(ends) == 0:
        return error
    if len(ends) > 1 and all(_refusal(ask, part) is not None for part in ends):
        return error
    begun, half = time.monotonic(), len(frame) // 2
    for part, refused in _refused_parts(ask, [frame.iloc[:half], frame.iloc[half:]]):
        first, last = int(part.index[0]), int(part.index[-1])
        if len(part) == 1:
            return ContractError(_of_row(refused, f"row {first} of the split (key {keys[first]!r})"))
        if time.monotonic() - begun > _SECONDS:
            return ContractError(f"{refused}; it is one of the rows {first} to {last} of the split")
    return error  # rows are refused together alone


def refused_rows(ask: Ask, frame: pd.DataFrame) -> dict[int, str]:
    """The rows of ``frame`` that a version cannot take by themselves, and why, by row of the split.

    ``ask`` and ``frame`` are those of ``naming_the_row``.

    Raises:
        ContractError: what ``ask`` raised, where rows are refused together alone, it answers to none within its time
            limit, or the search has taken five minutes.
    """
    begun = time.monotonic()
    found: dict[int, str] = {}
    first: ContractError | None = None
    for part, refused in _refused_parts(ask, [frame]):
        if _WITHOUT_ANSWER in str(refused) or time.monotonic() - begun > _SECONDS:
            raise refused
        first = first or refused
        if len(part) == 1:
            found[int(part.index[0])] = _of_row(refused, "this row")
    if first is not None and not found:
        raise first
    return found


def _refused_parts(ask: Ask, parts: list[pd.DataFrame]) -> Iterator[tuple[pd.DataFrame, ContractError]]:
    """The parts that are refused and why, each before those of its halves that are, in the order of the rows."""
    left = parts[::-1]
    while left:
        part = left.pop()
        if len(part) and (error := _refusal(ask, part)) is not None:
            yield part, error
            half = len(part) // 2
            left += [part.iloc[half:], part.iloc[:half]] if half else []


def _of_row(error: ContractError, row: str) -> str:
    """``error`` of one row that was asked alone, with ``row`` for it."""
    text, named = _FIRST_ROW.subn(row, _ONE_OF_ONE.sub("", str(error)), count=1)
    text = re.sub(r"; rows are counted from row \d+ of the split", "", text)
    return text if named else f"{text}; it is {row}"


def _refusal(ask: Ask, frame: pd.DataFrame) -> ContractError | None:
    try:
        ask(frame)
    except ContractError as error:
        return error
    return None
