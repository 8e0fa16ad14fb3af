"""Stored predictions as an evaluation: a split of each version's rows, which bring their predictions along.

What comes out is an evaluation file's content like any other, whose splits say which versions have predictions in them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pyarrow as pa
from mlflow.exceptions import MlflowException

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.tasks.contract import ContractError
from congruence.tasks.contract.reading import output_columns_among, read_distribution
from congruence.tasks.contract.settings import StoredPredictions
from congruence.tasks.data.locations import is_list, is_number
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.sources import SplitSource
from congruence.tasks.data.stored import StoredSource, StoredTable, read_stored, stored_in_frame
from congruence.tasks.data.stored_parts import write_parts
from congruence.tasks.mlflow.connection import database_file, use_tracking, with_retries
from congruence.tasks.models.registry import STORED, RegistryError, resolve
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.evaluation import EvaluationSettings

_NUMBERED = re.compile(r"(?:models:/)?(?P<name>[^/@:]+)/v?(?P<version>\d+)")


_NUMBER = re.compile(r"(?:v|version)?[ _.-]?(?P<version>\d+)", re.IGNORECASE)


def with_stored(settings: EvaluationSettings) -> tuple[EvaluationSettings, tuple[str, ...]]:
    """Returns the settings of an evaluation of stored predictions with the splits and versions that they hold.

    Each version is evaluated on all of its rows, and once more on those that others scored as well, if these are not
    all. The splits are those of all versions, whichever are named: what is fitted to the inputs is the same for all.
    MLflow must point where the settings say.

    Returns:
        The settings, whose predictions now say only how columns are read; and what to know of the rows.

    Raises:
        SplitError: files or columns that are not there; none of the rows has a label.
        SettingsError: ``models`` names a version that the rows do not have.
    """
    table = open_stored(settings)
    rows = table.rows_of()
    if not rows:
        raise SettingsError(f"predictions: nothing to evaluate yet: {table.said()}")
    addresses = version_addresses(settings, list(rows))
    wanted = [addresses[name] for name in named_versions(settings, addresses)]
    parts = [*table.parts(rows), *table.shared(rows)]
    made = as_evaluation(settings, write_parts(table, parts, addresses, *rows_folder(settings)))
    gate, model = settings.gate, settings.predictions and settings.predictions.model
    if gate is not None and gate.baseline is not None and (gate.baseline in addresses or model is None):
        gate = gate.model_copy(update={"baseline": addresses[named_version(gate.baseline, addresses)]})
    return made.model_copy(update={"models": wanted, "gate": gate}), (table.said(),)


def opened(settings: EvaluationSettings) -> EvaluationSettings:
    """Returns the settings, those of stored predictions with the splits and versions that they hold.

    Raises:
        CongruenceError: see ``with_stored``.
    """
    if not settings.is_of_stored_predictions:
        return settings
    use_tracking(settings.for_workers().tracking)
    return with_stored(settings)[0]


def require_models(settings: EvaluationSettings, command: str) -> None:
    """Refuse a file of stored predictions where a command has to ask models.

    Raises:
        SettingsError: the file is one.
    """
    if settings.is_of_stored_predictions:
        raise SettingsError(
            f"predictions.from: `congruence {command}` asks models, and stored predictions bring none; write a file "
            "that names models"
        )


def as_evaluation(settings: EvaluationSettings, splits: Sequence[SplitSettings]) -> EvaluationSettings:
    """Returns the settings with splits that bring predictions along, in place of the table that these lie in."""
    assert settings.predictions is not None
    uris = list(dict.fromkeys(uri for split in splits for uri in split.stored))
    made = {"splits": list(splits), "models": uris, "predictions": settings.predictions.read_by}
    return settings.model_copy(update=made)


def open_stored(settings: EvaluationSettings) -> StoredTable:
    """Returns what is known of the rows of an evaluation file's stored predictions.

    Raises:
        SplitError: files or columns that are not there.
        SettingsError: the columns of the predictions are not there.
    """
    stored, split = settings.predictions, settings.splits[0]
    assert stored is not None
    labels = None
    if stored.targets is not None:
        of = stored.targets
        labels = SplitSettings(uri=of.uri, format=of.format, input=of.key, target=of.target)
        labels = labels.model_copy(update={"storage_options": of.storage_options})
    read = SplitSource.of(split)
    path = read.paths()[0]
    columns = _prediction_columns(stored, split, read.schema(path), path)
    label_key, label_time = ("", None) if stored.targets is None else (stored.targets.key, stored.targets.time)
    return read_stored(StoredSource(split, columns, stored.version, stored.time, labels, label_key, label_time))


def _prediction_columns(stored: StoredPredictions, split: SplitSettings, schema: pa.Schema, where: str) -> list[str]:
    """The columns of a table that hold the predictions: of those that are nothing else, by name."""
    roles = {*split.input_columns, *split.model_input_columns, *split.slices, *split.design_columns.values()}
    roles |= {name for name in (stored.key, stored.version, stored.time, *split.target_columns) if name is not None}
    left = [each.name for each in schema if each.name not in roles and (is_number(each.type) or is_list(each.type))]
    try:
        return output_columns_among(stored, left)
    except ContractError as error:
        raise SettingsError(f"predictions: {where}: {error}") from error


@dataclass(frozen=True)
class StoredRows:
    """Rows of one version in memory.

    Attributes:
        rows: those of the frame that count, with all of its columns.
        targets: (n,) or (n, q).
        predictive: n laws.
    """

    rows: pd.DataFrame = field(repr=False)
    targets: Array = field(repr=False)
    predictive: Distribution = field(repr=False)


def rows_in_frame(frame: pd.DataFrame, predictions: StoredPredictions, split: SplitSettings) -> dict[str, StoredRows]:
    """Returns the rows of each version in a frame of stored predictions, by the rules for files of such.

    A row without a label yet is left out, and so is one without a prediction; of several rows of one key and version
    the latest counts.

    Args:
        frame: with inputs, predictions and targets; keys, versions and times where ``predictions`` name them.
        predictions: as in an evaluation file, whatever is said under ``from``.
        split: its input and target columns.

    Raises:
        SplitError: no such column.
        SettingsError: no columns of predictions.
        ContractError: a prediction that its family does not have.
    """
    split = split.model_copy(update={"key": predictions.key})
    head = pa.Schema.from_pandas(frame.iloc[:1], preserve_index=False)
    columns = _prediction_columns(predictions, split, head, "the frame")
    table = stored_in_frame(frame, StoredSource(split, columns, predictions.version, predictions.time))
    found = {}
    for name, own in table.rows_of().items():
        chosen, targets = frame.iloc[own], table.labels[own]
        law = read_distribution(chosen[columns], predictions, len(own))
        found[name] = StoredRows(chosen, targets[:, 0] if targets.shape[1] == 1 else targets, law)
    return found


def rows_folder(settings: EvaluationSettings) -> tuple[str, Mapping[str, object]]:
    """Returns where the rows of versions are kept, and the options of its file system: what all workers see."""
    if settings.store.uri is not None and "://" in settings.store.uri:
        return f"{settings.store.uri.rstrip('/')}/stored", settings.store.storage_options
    return str(settings.home_folder / "looks"), {}


def version_addresses(settings: EvaluationSettings, names: Sequence[str]) -> dict[str, str]:
    """Returns the address of each version: that of the registered one that its name says, where MLflow has it.

    ``price/3`` and, with ``predictions.model: price``, ``3``, ``v3`` and ``version 3`` are models:/price/3.
    """
    assert settings.predictions is not None
    model = settings.predictions.model
    return {name: _registered(settings, name, model) or f"{STORED}{_called(name, model)}" for name in names}


def _called(name: str, model: str | None) -> str:
    if not name:
        return model or "predictions"
    return name if model is None or name.startswith(model) else f"{model} {name}"


def _registered(settings: EvaluationSettings, name: str, model: str | None) -> str | None:
    file = database_file(os.environ.get("MLFLOW_REGISTRY_URI", str(settings.tracking.uri)))
    if file is not None and not Path(file).exists():
        return None
    numbered, number = _NUMBERED.fullmatch(name), _NUMBER.fullmatch(name)
    if numbered is not None:
        uri = f"models:/{numbered['name']}/{numbered['version']}"
    elif number is not None and model is not None:
        uri = f"models:/{model}/{number['version']}"
    else:
        return None
    try:
        return with_retries(f"looking up {uri}", lambda: resolve(uri), settings.tracking).uri
    except (RegistryError, MlflowException):
        return None


def named_versions(settings: EvaluationSettings, addresses: Mapping[str, str]) -> list[str]:
    """Returns the names of the versions that ``models`` names, of all where it names none.

    Raises:
        SettingsError: one that is none of them.
    """
    found = [name for pattern in settings.models for name in [named_version(pattern, addresses)]]
    return found or list(addresses)


def named_version(pattern: str, addresses: Mapping[str, str]) -> str:
    """Returns the name of the version that a person calls so: by its name, or by its address.

    Raises:
        SettingsError: it is none of them.
    """
    for name, uri in addresses.items():
        if pattern in (name, uri, uri.removeprefix(STORED), uri.removeprefix("models:/")):
            return name
    raise SettingsError(f"{pattern}: no labelled row is of this version; the versions are {', '.join(addresses)}")
