"""What the columns of a split are used for, and whether they can be."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from congruence.tasks.data.design import design_type_problem
from congruence.tasks.data.errors import SplitError, unknown_column
from congruence.tasks.data.files import ImageFolder
from congruence.tasks.data.inputs import InputColumns, input_columns
from congruence.tasks.data.locations import Location
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.tables import Table


def described_columns(settings: SplitSettings, table: Table, inputs: InputColumns) -> list[str]:
    """The columns that a split's digest covers beside the encoder's input: all that the settings name."""
    key = settings.key or table.key
    named = [*settings.model_input_columns, *settings.slices, *settings.design_columns.values()]
    plain = [name for name in named if name not in inputs.columns]
    return list(dict.fromkeys([*([key] if key else []), *settings.target_columns, *plain]))


def checked_inputs(settings: SplitSettings, table: Table, location: Location) -> InputColumns:
    """How the input's columns are read, after a look at all columns that the settings name.

    Raises:
        SplitError: a column that does not exist, or whose type cannot hold what it should.
    """
    _require_columns(settings, table)
    folder = _image_folder(settings, table, location)
    return input_columns(settings.input_kind, settings.input_columns, table.schema, folder, table.location)


def _require_columns(settings: SplitSettings, table: Table) -> None:
    roles = [
        *((name, "input") for name in settings.input_columns),
        *((name, "target") for name in settings.target_columns),
        *((name, "model_inputs") for name in settings.model_inputs or []),
        *((name, "slices") for name in settings.slices),
        *((name, role) for role, name in settings.design_columns.items()),
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
    for name in settings.slices:
        if pa.types.is_nested(kind := table.schema.field(name).type):
            raise SplitError(
                f"{table.location}: column {name!r} (slices) holds {kind}, by which rows cannot be grouped; name a "
                "column of single values"
            )
    for role, name in settings.design_columns.items():
        problem = design_type_problem(role, table.schema.field(name).type)
        if name in settings.target_columns:
            problem = "is the target; name another column"
        if problem is not None:
            raise SplitError(f"{table.location}: column {name!r} ({role}) {problem}")


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
