"""What the columns of a split are used for, and whether they can be."""

from __future__ import annotations

import pyarrow as pa

from congruence.tasks.data.design import design_type_problem
from congruence.tasks.data.digests import is_list, is_number, is_text
from congruence.tasks.data.errors import SplitError, unknown_column
from congruence.tasks.data.formats import SplitSource
from congruence.tasks.data.image_files import ImageFolder
from congruence.tasks.data.inputs import InputColumns, input_columns
from congruence.tasks.data.locations import Location
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.sources.inferred import kind_of_texts


def key_of(settings: SplitSettings, source: SplitSource) -> str | None:
    """The column that names the rows, None where their numbers do."""
    return settings.key or source.source.key


def described_columns(settings: SplitSettings, source: SplitSource) -> list[str]:
    """The columns that a split's digest covers beside the encoder's input: all that the settings name."""
    key = key_of(settings, source)
    named = [*settings.model_input_columns, *settings.slices, *settings.design_columns.values()]
    plain = [name for name in named if name not in settings.input_columns]
    return list(dict.fromkeys([*([key] if key else []), *settings.target_columns, *plain]))


def needed_columns(settings: SplitSettings, source: SplitSource) -> list[str]:
    """Every column of the source that is read, once."""
    described = described_columns(settings, source)
    return list(dict.fromkeys([*described, *settings.input_columns, *settings.stored_columns]))


def checked_inputs(settings: SplitSettings, source: SplitSource, schema: pa.Schema, path: str) -> InputColumns:
    """How the input's columns are read, after a look at the types of all columns that the settings name.

    A column without any value passes: what is wrong with its rows is said of each.

    Args:
        settings: of the split.
        source: of the split.
        schema: the columns that there are.
        path: a file that has them.

    Raises:
        SplitError: a column that does not exist, or whose type cannot hold what it should.
    """
    where = source.location.uri
    types = dict(zip(schema.names, schema.types, strict=True))
    for name, role in _roles(settings):
        if name not in types:
            available = [other for other in source.full_schema(path).names if not other.startswith("__")]
            raise unknown_column(name, role, available, where if source.paths() == [path] else path)
    for name in settings.target_columns:
        if not is_number(types[name]) or pa.types.is_boolean(types[name]):
            remedy = "convert it to numbers or name another column"
            raise _no_numbers(source, path, name, "target", types[name], remedy)
    for name in settings.input_columns if settings.input_kind == "features" else ():
        vector = len(settings.input_columns) == 1 and is_list(types[name])
        if not is_number(types[name].value_type if vector else types[name]):
            remedy = (
                "leave it out of input (a model that reads it as it is names it under model_inputs), or give its "
                "numbers in columns"
            )
            raise _no_numbers(source, path, name, "input", types[name], remedy)
    for name in settings.slices:
        if pa.types.is_nested(types[name]):
            raise SplitError(
                f"{where}: column {name!r} (slices) holds {types[name]}, by which rows cannot be grouped; name a "
                "column of single values"
            )
    for role, name in settings.design_columns.items():
        problem = None if pa.types.is_null(types[name]) else design_type_problem(role, types[name])
        if name in settings.target_columns:
            problem = "is the target; name another column"
        if problem is not None:
            raise SplitError(f"{where}: column {name!r} ({role}) {problem}")
    folder, can_stay = image_folder(settings, source), source.source.rows_from is not None
    return input_columns(settings.input_kind, settings.input_columns, schema, folder, where, can_stay=can_stay)


def image_folder(settings: SplitSettings, source: SplitSource) -> ImageFolder:
    """The folder that paths of images start from.

    Raises:
        SplitError: the settings name one that is not there.
    """
    location = source.location
    if settings.image_root is None:
        root = location.path
        if settings.input_kind == "image" and not location.is_folder():
            root = location.folder_of(source.paths())
        return ImageFolder(location.filesystem, root, location.is_local, settings.max_input_bytes)
    named = Location.of(settings.image_root, settings.storage_options)
    if settings.input_kind == "image" and not named.is_folder():
        raise SplitError(f"image_root {settings.image_root}: no such folder; give the one that image paths start from")
    return ImageFolder(named.filesystem, named.path, named.is_local, settings.max_input_bytes)


def _roles(settings: SplitSettings) -> list[tuple[str, str]]:
    return [
        *((name, "input") for name in settings.input_columns),
        *((name, "target") for name in settings.target_columns),
        *((name, "model_inputs") for name in settings.model_inputs or []),
        *((name, "slices") for name in settings.slices),
        *((name, role) for role, name in settings.design_columns.items()),
        *([(settings.key, "key")] if settings.key else []),
    ]


def _no_numbers(source: SplitSource, path: str, name: str, role: str, kind: pa.DataType, remedy: str) -> SplitError:
    """The error for a column that should hold numbers, with its first value that is none."""
    start, example = 0, ""
    for batch in source.batches(path, columns=(name,)):
        values = batch.column(name)
        are_texts = is_text(values.type)
        if not are_texts or kind_of_texts(values) in ("text", "bool"):
            for row, value in enumerate(values.to_pylist()):
                if value is not None and not (
                    are_texts and kind_of_texts(pa.array([value])) in ("int", "float", "null")
                ):
                    shown = value[:40] if isinstance(value, (str, bytes)) else value
                    example = f", for example {shown!r} at {path}, row {start + row}"
                    break
        if example:
            break
        start += batch.num_rows
    return SplitError(f"{source.location.uri}: column {name!r} ({role}) holds {kind}, not numbers{example}; {remedy}")
