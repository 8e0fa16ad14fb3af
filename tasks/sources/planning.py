"""Opening a split: every column is checked and every row is digested before any work is spent on it."""

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from congruence.tasks.sources.digests import ROW_BYTES, canonical_bytes, combine
from congruence.tasks.sources.errors import SplitError, unknown_column
from congruence.tasks.sources.files import ImageFolder
from congruence.tasks.sources.formats import open_table
from congruence.tasks.sources.inputs import InputColumns, input_columns
from congruence.tasks.sources.locations import Location
from congruence.tasks.sources.plans import KeptPlan, Plan
from congruence.tasks.sources.settings import SplitSettings
from congruence.tasks.sources.split import Shard, Split
from congruence.tasks.sources.tables import Table


def open_split(settings: SplitSettings, plans: str | Path | None = None, copies: str | Path | None = None) -> Split:
    """The split that ``settings`` describe, checked and planned.

    Two streams over the data: the table's columns (keys unique, targets finite), then the content of the encoder's
    inputs. The plan and its digests depend on the content alone. In the folder ``plans`` a plan is kept for as long as
    no file changes its size, times or ETag: the next opening only looks at these. In the folder ``copies`` compressed
    arrays are kept decompressed, on every machine that reads them; without it each shard decompresses them anew.

    Raises:
        SplitError: no such file, column or type, duplicate or missing keys, targets that are not finite, no rows.
    """
    location = Location.of(settings.uri, settings.storage_options)
    table = open_table(settings, location, Path(copies) if copies is not None else None)
    _require_columns(settings, table)
    if table.rows == 0:
        raise SplitError(f"{table.location}: holds no rows; give at least one")
    folder = _image_folder(settings, table, location)
    inputs = input_columns(settings.input_kind, settings.input_columns, table.schema, folder, table.location)
    kept = KeptPlan.of(Path(plans), settings, table, inputs, location) if plans is not None else None
    plan = kept.load() if kept is not None else None
    if plan is None:
        table_digest = _check_and_digest_table(settings, table, inputs)
        shards, input_digest = _digest_inputs(settings, table, inputs)
        plan = Plan(shards, combine([table_digest, input_digest]))
        if kept is not None:
            kept.save(plan)
    return Split(settings, table, inputs, plan.shards, plan.digest)


def _require_columns(settings: SplitSettings, table: Table) -> None:
    roles = [
        *((name, "input") for name in settings.input_columns),
        *((name, "target") for name in settings.target_columns),
        *((name, "model_inputs") for name in settings.model_inputs or []),
        *((name, "slices") for name in settings.slices),
        *([(settings.key, "key")] if settings.key else []),
    ]
    available = [name for name in table.schema.names if not name.startswith("__")]
    for name, role in roles:
        if name not in table.schema.names:
            raise unknown_column(name, role, available, table.location)
    for name in settings.target_columns:
        kind = table.schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            example = _first_value(table, name)
            raise SplitError(
                f"{table.location}: column {name!r} (target) holds {kind}, not numbers, for example {example!r} at "
                f"{table.place(0)}; convert it to numbers or name another column"
            )


def _first_value(table: Table, name: str) -> Any:
    for batch in table.batches([name], 0, min(1, table.rows)):
        text = batch.column(0)[0].as_py()
        return text[:40] if isinstance(text, (str, bytes)) else text
    return None


def _image_folder(settings: SplitSettings, table: Table, location: Location) -> ImageFolder:
    if settings.image_root is None:
        return ImageFolder(location.filesystem, table.folder, location.is_local, settings.max_input_bytes)
    root = Location.of(settings.image_root, settings.storage_options)
    if settings.input_kind == "image" and not root.is_folder():
        raise SplitError(f"image_root {settings.image_root}: no such folder; give the one that image paths start from")
    return ImageFolder(root.filesystem, root.path, root.is_local, settings.max_input_bytes)


def _check_and_digest_table(settings: SplitSettings, table: Table, inputs: InputColumns) -> bytes:
    """One stream over the key, target, slice and plain model-input columns."""
    key = settings.key or table.key
    content = inputs.columns
    plain = [name for name in [*settings.model_input_columns, *settings.slices] if name not in content]
    names = list(dict.fromkeys([*([key] if key else []), *settings.target_columns, *plain]))
    states = {name: blake2b(digest_size=ROW_BYTES) for name in names}
    keys: list[npt.NDArray[np.uint64]] = []
    for start, batch in _numbered(table, names):
        for name in names:
            states[name].update(canonical_bytes(batch.column(name)))
        for name in settings.target_columns:
            _require_finite_targets(batch.column(name), name, start, table)
        if key:
            keys.append(_key_hashes(batch.column(key), key, start, table))
    if key:
        _require_unique(np.concatenate(keys), key, table)
    return combine(part for name in names for part in (name.encode(), states[name].digest())).encode()


def _numbered(table: Table, names: list[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    start = 0
    for batch in table.batches(names, 0, table.rows):
        yield start, batch
        start += batch.num_rows


def _require_finite_targets(column: Any, name: str, start: int, table: Table) -> None:
    values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        row = int(bad[0])
        raise SplitError(
            f"{table.place(start + row)}: column {name!r} (target) is {column[row].as_py()}, not a finite number; "
            "repair the row or remove it from the split"
        )


def _key_hashes(column: Any, name: str, start: int, table: Table) -> npt.NDArray[np.uint64]:
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise SplitError(f"{table.place(start + row)}: column {name!r} (key) is empty; give every row a key")
    return pd.util.hash_array(np.array([str(key) for key in column.to_pylist()], dtype=object), categorize=False)


def _require_unique(hashes: npt.NDArray[np.uint64], key: str, table: Table) -> None:
    values, counts = np.unique(hashes, return_counts=True)
    suspects = set(values[counts > 1].tolist())
    if not suspects:
        return
    first: dict[str, int] = {}
    for start, batch in _numbered(table, [key]):
        keys = [str(value) for value in batch.column(0).to_pylist()]
        for row, text in enumerate(keys, start):
            if int(hashes[row]) not in suspects:
                continue
            if text in first:
                raise SplitError(
                    f"column {key!r} (key) holds {text!r} twice: {table.place(first[text])} and {table.place(row)}; "
                    "keys name rows and must be unique (remove the copy, or leave `key` out to use row numbers)"
                )
            first[text] = row


def _digest_inputs(settings: SplitSettings, table: Table, inputs: InputColumns) -> tuple[list[Shard], bytes]:
    shards: list[Shard] = []
    whole = blake2b(digest_size=ROW_BYTES)
    kind = settings.input_kind.encode()
    for index, start in enumerate(range(0, table.rows, settings.shard_rows)):
        rows = min(settings.shard_rows, table.rows - start)
        part = blake2b(kind, digest_size=ROW_BYTES)
        for batch in table.batches(inputs.columns, start, start + rows):
            content = inputs.digest(batch)
            part.update(content)
            whole.update(content)
        part.update(rows.to_bytes(8, "little"))
        shards.append(Shard(index, start, rows, part.hexdigest()))
    return shards, whole.digest()
