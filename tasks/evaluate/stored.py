"""Stored predictions as an evaluation: a split of each version's rows, which bring their predictions along.

What comes out is an evaluation file's content like any other, whose splits say which versions have predictions in them.
Their rows are chosen by ``tasks.data.stored`` and written here as Parquet files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from mlflow.exceptions import MlflowException

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.tasks.contract import ContractError
from congruence.tasks.contract.reading import columns_of_predictions, output_columns_among, read_distribution
from congruence.tasks.data.columns import first_text, no_numbers
from congruence.tasks.data.inputs import ContentDigest, combine, is_list, is_number, is_text
from congruence.tasks.data.settings import SplitSettings, StoredColumns
from congruence.tasks.data.sources import SplitSource
from congruence.tasks.data.stored import StoredPart, StoredTable, batches_of, read_stored, stored_in_frame
from congruence.tasks.mlflow.connection import database_file, use_tracking, with_retries
from congruence.tasks.models.registry import STORED, RegistryError, resolve
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.production import StoredPredictions
from congruence.tasks.settings.sections import AUTO

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
    read = SplitSource.of(split)
    path = read.paths()[0]
    columns = _prediction_columns(stored, split, read.schema(path), path, partial(first_text, read, path))
    return read_stored(split, columns, stored)


def _prediction_columns(
    stored: StoredPredictions, split: SplitSettings, schema: pa.Schema, where: str, example: Callable[[str], str]
) -> list[str]:
    """The columns of a table that hold the predictions: of those that are nothing else, by name.

    ``example`` says where the first value of a column stands that is no number.
    """
    roles = {*split.input_columns, *split.model_input_columns, *split.slices, *split.design_columns.values()}
    roles |= {name for name in (stored.key, stored.version, stored.time, *split.target_columns) if name is not None}
    left = [each.name for each in schema if each.name not in roles and (is_number(each.type) or is_list(each.type))]
    for parameter, column in stored.columns.items():
        if column in schema.names and column not in left:
            kind = schema.field(column).type
            why = "is named as input, slice, key or target, too"
            if column not in roles:
                why = no_numbers(kind, example(str(column)))
            raise SettingsError(f"predictions.columns.{parameter}: column {column!r} of {where} {why}")
    texts = [each.name for each in schema if each.name not in roles and is_text(each.type)]
    named = columns_of_predictions([*left, *texts]) if stored.family == AUTO else []
    if spelled := [name for name in named if name in texts]:
        why = no_numbers(schema.field(spelled[0]).type, example(spelled[0]))
        raise SettingsError(f"predictions: column {spelled[0]!r} of {where} {why}")
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
    columns = _prediction_columns(predictions, split, head, "the frame", partial(_text_in_frame, frame))
    table = stored_in_frame(frame, split, columns, predictions)
    found = {}
    for name, own in table.rows_of().items():
        chosen, targets = frame.iloc[own], table.labels[own]
        law = read_distribution(chosen[columns], predictions, len(own))
        found[name] = StoredRows(chosen, targets[:, 0] if targets.shape[1] == 1 else targets, law)
    return found


def _text_in_frame(frame: pd.DataFrame, name: str) -> str:
    column = frame[name].reset_index(drop=True)
    bad = column[column.notna() & pd.to_numeric(column, errors="coerce").isna()]
    return f", for example {bad.iloc[0]!r} in row {bad.index[0]}" if len(bad) else ""


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
    file = database_file(str(settings.tracking.registry))
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


def write_parts(
    table: StoredTable,
    parts: Sequence[StoredPart],
    addresses: Mapping[str, str],
    folder: str,
    options: Mapping[str, Any],
) -> list[SplitSettings]:
    """The parts as splits in ``folder``, written where they are not there yet, in one reading of the table.

    Args:
        table: the rows.
        parts: of it.
        addresses: of the versions by their names.
        folder: a path, or an address of any file system that fsspec knows.
        options: of the folder's file system.

    Raises:
        SplitError: a file of the table changed since it was read.
    """
    filesystem, root = fsspec.core.url_to_fs(folder, **options)
    filesystem.makedirs(root, exist_ok=True)
    writers = [_Writer(table, part, f"{root}/{_part_name(table, part)}.parquet", addresses) for part in parts]
    lacking = [writer for writer in writers if not filesystem.exists(writer.path)]
    if lacking:
        _copy(table, lacking, filesystem)
    found = []
    for part, writer in zip(parts, writers, strict=True):
        with filesystem.open(writer.path, "rb") as stream:
            said = pq.read_metadata(stream).metadata
        stored = {
            addresses[name]: StoredColumns(columns=writer.columns[name], digest=said[_key_of(number).encode()].decode())
            for number, name in enumerate(part.rows)
        }
        split = table.split
        root_of_images = split.image_root
        if split.input_kind == "image" and root_of_images is None:
            root_of_images = SplitSource.of(split).location.folder_of([table.files[0][0]])
        at = {"name": part.name, "uri": f"{folder.rstrip('/')}/{writer.path.rpartition('/')[2]}", "format": "parquet"}
        dates = {"since": part.since, "until": part.until, "last": None}
        more = {"stored": stored, "storage_options": dict(options), "image_root": root_of_images}
        found.append(split.model_copy(update={**at, **dates, **more}))
    return found


class _Writer:
    """The file of one part while it is written."""

    def __init__(self, table: StoredTable, part: StoredPart, path: str, addresses: Mapping[str, str]) -> None:
        self.path = path
        self.first, *self.others = part.rows
        self.rows, self.part, self.table = part.rows[self.first], part, table
        self.kept = _kept_columns(table)
        self.columns = {
            name: {f"{addresses[name]} {column}": column for column in table.predictions} for name in part.rows
        }
        self.digests = {name: ContentDigest() for name in part.rows}
        self.gathered: dict[str, list[pa.RecordBatch]] = {name: [] for name in self.others}
        self.file: Any = None

    def gather(self, batch: pa.RecordBatch, start: int) -> None:
        """Take the predictions of the other versions out of rows of the table that begin with ``start``."""
        for name in self.others:
            own = np.sort(self.part.rows[name])
            inside = own[np.searchsorted(own, start) : np.searchsorted(own, start + batch.num_rows)] - start
            if len(inside):
                self.gathered[name].append(batch.select(list(self.table.predictions)).take(pa.array(inside)))

    def in_order(self) -> None:
        """Put what was gathered into the order of the first version's rows."""
        self.beside = {
            name: pa.Table.from_batches(parts)
            .combine_chunks()
            .take(pa.array(np.searchsorted(np.sort(self.part.rows[name]), self.part.rows[name])))
            for name, parts in self.gathered.items()
        }
        self.gathered = {}

    def write(self, batch: pa.RecordBatch, start: int, stream: Any) -> None:
        """Copy the chosen ones of some rows of the table."""
        first, last = np.searchsorted(self.rows, [start, start + batch.num_rows])
        if first == last:
            return
        chosen = batch.take(pa.array(self.rows[first:last] - start))
        columns = {name: chosen.column(name) for name in self.kept}
        for number, name in enumerate(self.table.split.target_columns):
            columns[name] = pa.array(self.table.labels[self.rows[first:last], number])
        for name in self.part.rows:
            held = chosen if name == self.first else self.beside[name].slice(first, last - first).combine_chunks()
            for stored, column in self.columns[name].items():
                values = held.column(column)
                values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
                self.digests[name].add_column(values)
                columns[stored] = values
        made = pa.table(columns)
        if self.file is None:
            self.file = pq.ParquetWriter(stream, made.schema, compression="lz4")
        self.file.write_table(made.cast(self.file.schema))

    def close(self) -> None:
        """End the file with what tells its predictions from others."""
        numbered = enumerate(self.digests.values())
        self.file.add_key_value_metadata({_key_of(number): combine([each.digest()]) for number, each in numbered})
        self.file.close()


def _copy(table: StoredTable, writers: Sequence[_Writer], filesystem: Any) -> None:
    """Two readings where versions share rows: of the predictions that are brought to a row of another version first."""
    read = SplitSource.of(table.split)
    names = list(dict.fromkeys([*_kept_columns(table), *table.predictions]))
    if any(writer.others for writer in writers):
        for start, batch in _batches(table, read, table.predictions):
            for writer in writers:
                writer.gather(batch, start)
    for writer in writers:
        writer.in_order()
    streams = [filesystem.open(f"{writer.path}.partial", "wb") for writer in writers]
    for start, batch in _batches(table, read, names):
        for writer, stream in zip(writers, streams, strict=True):
            writer.write(batch, start, stream)
    for writer, stream in zip(writers, streams, strict=True):
        writer.close()
        stream.close()
        filesystem.mv(f"{writer.path}.partial", writer.path)


def _kept_columns(table: StoredTable) -> list[str]:
    """The columns that are copied as they are: all that the split names, but labels."""
    source = SplitSource.of(table.split)
    return [name for name in source.needed_columns if name not in source.settings.target_columns]


def _batches(table: StoredTable, read: SplitSource, names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of the table with some of its columns, and the number of the first row of each batch."""
    for (path, state), start in zip(table.files, table.starts, strict=False):
        for _, inside, batch in batches_of(read, [path], names):
            yield start + inside, batch
        read.require_unchanged(path, state)


def _part_name(table: StoredTable, part: StoredPart) -> str:
    """A name that changes with the rows of a part, their labels, and the state of the files that hold them."""
    described = table.split.model_dump_json(exclude={"uri", "storage_options", "name"})
    pieces = [described.encode(), repr(list(table.predictions)).encode()]
    for name, rows in part.rows.items():
        held = np.searchsorted(table.starts, rows, side="right") - 1
        inside = rows - np.asarray(table.starts)[held]
        used = np.unique(held)
        pieces += [name.encode(), *(" ".join(table.files[number]).encode() for number in used), inside.tobytes()]
        pieces.append(np.searchsorted(used, held).tobytes())
    pieces.append(table.labels[next(iter(part.rows.values()))].tobytes())
    return combine(pieces)


def _key_of(number: int) -> str:
    return f"congruence.{number}"
