"""Ingesting a split: each of its files becomes one Parquet file in one layout, and a manifest says what they are.

What is kept in a folder, all of it under names that follow from the state of the source and the columns asked for:

    rows/DIGEST/part-*.parquet   the rows of one file of the source: every column that the settings name, and of
                                 pictures, which stay where they are, a path or a reference and a digest
    rows/DIGEST/split-*.json     the manifest of a split in the present state of all its files: parts, shards, digests

A part is there whole or not at all: who was killed goes on with the files that are left. Every function takes plain
addresses, so that it can run anywhere that sees the source and the folder.
"""

from __future__ import annotations

import atexit
import base64
import os
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from congruence.tasks.data.digests import ROW_BYTES, combine, fixed_bytes
from congruence.tasks.data.errors import SplitChangedError, SplitError
from congruence.tasks.data.formats import SplitSource
from congruence.tasks.data.ingested import Ingested, RowFacts
from congruence.tasks.data.inputs import STATE, InputColumns, Pictures
from congruence.tasks.data.look import looked_through
from congruence.tasks.data.roles import checked_inputs, image_folder, needed_columns
from congruence.tasks.data.rows import joined_schema, read_rows, read_schema, row_count, typed, write_rows
from congruence.tasks.data.settings import WINDOW_KEYS, SplitSettings
from congruence.tasks.data.sources import REASON
from congruence.tasks.runtime.files import load_record, save_record

_FORMAT = "6"
_File: TypeAlias = tuple[str, str]
"""The path of a file of the source, and its state."""
_Files: TypeAlias = Sequence[_File]


def source_files(settings: SplitSettings) -> list[str]:
    """The files of a split, each of which is ingested alone: arrays that are read side by side count as one.

    Raises:
        SplitError: no such file or folder, or its format cannot be inferred.
    """
    return SplitSource.of(settings).paths()


def require_columns(settings: SplitSettings) -> None:
    """Refuse a split whose first file lacks a column, by a look at its first rows.

    Raises:
        SplitError: no such file, a file that is not of its format, a column that does not exist or of another type.
    """
    source = SplitSource.of(settings)
    path = source.paths()[0]
    schema = source.schema(path)
    if not set(needed_columns(settings, source)) <= set(schema.names):
        schema = source.full_schema(path)
    checked_inputs(settings, source, schema, path)


def ingest_file(settings: SplitSettings, file: str, folder: str | Path) -> str:
    """Ingest one of ``source_files``, unless that was done in its present state; returns the path of its part.

    ``folder`` is seen by all that share the work.

    Raises:
        SplitError: a damaged file, or columns that are not there or of another type.
    """
    source = SplitSource.of(settings)
    return str(_part(settings, source, (file, source.state(file)), Path(folder)))


def ingest(settings: SplitSettings, folder: Path) -> tuple[str, Ingested]:
    """The name of the split's manifest in the present state of its files, and the split: as it is kept, or made now.

    Raises:
        SplitError: what makes a split unusable, see ``open_split``.
    """
    source, files = _present(settings)
    name = _manifest_name(settings, files)
    found = _load_unchanged(settings, folder, name)
    return name, found or _make(settings, source, files, folder)


def kept(settings: SplitSettings, folder: Path) -> tuple[str, Ingested] | None:
    """The same where the split is kept, None where it is not."""
    name = _manifest_name(settings, _present(settings)[1])
    found = _load_unchanged(settings, folder, name)
    return None if found is None else (name, found)


def load(settings: SplitSettings, folder: Path, name: str) -> Ingested | None:
    """The split of that manifest as it is kept, whatever has become of the source; None where it is not."""
    at = _folder(settings, folder)
    said = load_record(at / f"split-{name}.json")
    if said is None or not all((at / part).exists() for part in said["parts"]):
        return None
    source = SplitSource.of(settings)
    files = [(path, state) for path, state in said["files"]]
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(said["schema"])))
    inputs = checked_inputs(settings, source, schema, files[0][0])
    parts = [at / part for part in said["parts"]]
    shards = [said["shards"][n : n + 2 * ROW_BYTES] for n in range(0, len(said["shards"]), 2 * ROW_BYTES)]
    facts = RowFacts.from_json(said["facts"])
    return Ingested(source, files, parts, said["counts"], schema, inputs, shards, said["digest"], facts)


@cache
def own_folder() -> Path:
    """A folder for rows that nobody asked to keep: it goes with this process."""
    folder = Path(tempfile.mkdtemp(prefix="congruence-rows-"))
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder


def _present(settings: SplitSettings) -> tuple[SplitSource, _Files]:
    """The source of a split, and its files with their present states."""
    source = SplitSource.of(settings)
    return source, [(path, source.state(path)) for path in source.paths()]


def _load_unchanged(settings: SplitSettings, folder: Path, name: str) -> Ingested | None:
    found = load(settings, folder, name)
    return found if found is not None and _pictures_unchanged(found.parts, found.inputs) else None


def _make(settings: SplitSettings, source: SplitSource, files: _Files, folder: Path) -> Ingested:
    parts, schema = _parts(settings, source, files, folder)
    counts = [row_count(part) for part in parts]
    if not sum(counts):
        raise SplitError(f"{source.location.uri}: holds no rows; give at least one")
    inputs = checked_inputs(settings, source, schema, files[0][0])
    split = looked_through(settings, Ingested(source, files, parts, counts, schema, inputs))
    content = {
        "files": files,
        "parts": [part.name for part in parts],
        "counts": counts,
        "schema": base64.b64encode(schema.serialize()).decode(),
        "shards": "".join(split.shard_digests),
        "digest": split.digest,
        "facts": split.facts.to_json(),
    }
    save_record(_folder(settings, folder) / f"split-{_manifest_name(settings, files)}.json", content)
    return split


def _parts(settings: SplitSettings, source: SplitSource, files: _Files, folder: Path) -> tuple[list[Path], pa.Schema]:
    """The parts of all files, and types that hold the values of all of them.

    Where numbers in one file are texts in another, the notation of the former counts: it is ingested as texts.
    """
    parts = [_part(settings, source, file, folder) for file in files]
    schema, apart = joined_schema([read_schema(part) for part in parts])
    if apart:
        said = {name for path, _ in files for name in source.location.partitions(path)}
        if source.source.has_types and not apart <= said:
            raise _unlike(files, parts, min(apart - said))
        parts = [_part(settings, source, file, folder, frozenset(apart)) for file in files]
        schema, _ = joined_schema([read_schema(part) for part in parts])
    types = (pa.float64() if pa.types.is_null(field.type) else field.type for field in schema)
    return parts, pa.schema(list(zip(schema.names, types, strict=True)))


def _unlike(files: _Files, parts: Sequence[Path], name: str) -> SplitError:
    first, *others = ((path, read_schema(part).field(name).type) for (path, _), part in zip(files, parts, strict=True))
    path, kind = next((path, kind) for path, kind in others if kind != first[1] and not pa.types.is_null(kind))
    return SplitError(f"{path}: column {name!r} is {kind}, but {first[1]} in {first[0]}; write both files alike")


def _part(
    settings: SplitSettings, source: SplitSource, file: _File, folder: Path, as_text: frozenset[str] = frozenset()
) -> Path:
    """The part of a file, made where it is missing, or of pictures that changed."""
    file_path, state = file
    said = (f"{name}={value}" for name, value in source.location.partitions(file_path).items())
    root = image_folder(settings, source).root if settings.input_kind == "image" else ""
    path = _folder(settings, folder) / f"part-{_name(file_path, state, root, *sorted(as_text), *said)}.parquet"
    if path.exists() and _pictures_unchanged([path], checked_inputs(settings, source, read_schema(path), file_path)):
        return path
    names = needed_columns(settings, source)
    batches = source.batches(file_path, columns=(*names, REASON), as_text=as_text)
    first = next(batches)
    given = _with_texts(first.schema, settings)
    inputs = checked_inputs(settings, source, given, file_path)
    kept_names = [*names, *([REASON] if REASON in given.names else [])]
    schema = pa.schema([*((name, given.field(name).type) for name in kept_names), *inputs.added])
    filled = (typed(batch, given) for batch in chain([first], batches) if batch.num_rows)
    write_rows(path, schema, (inputs.ingested(batch, schema) for batch in filled))
    try:
        source.require_unchanged(file_path, state)
    except SplitChangedError:  # its rows may be of two files
        path.unlink(missing_ok=True)
        raise
    return path


def _with_texts(schema: pa.Schema, settings: SplitSettings) -> pa.Schema:
    """The columns, that of pictures or texts as text where it has no value at all."""
    number = -1 if settings.input_kind == "features" else schema.get_field_index(str(settings.input))
    if number < 0 or not pa.types.is_null(schema.field(number).type):
        return schema
    return schema.set(number, schema.field(number).with_type(pa.string()))


def _pictures_unchanged(parts: Sequence[Path], inputs: InputColumns) -> bool:
    """Whether every picture that a row names by its path is in the state that it was ingested in."""
    if not (isinstance(inputs, Pictures) and inputs.has_paths):
        return True
    for part in parts:
        schema = pa.schema([read_schema(part).field(name) for name in (*inputs.columns, STATE)])
        for batch in read_rows(part, schema, 0, row_count(part)):
            if inputs.states(batch) != fixed_bytes(batch.column(STATE)):
                return False
    return True


def _folder(settings: SplitSettings, folder: Path) -> Path:
    return folder / "rows" / _name(_described(settings))


def _described(settings: SplitSettings) -> str:
    unsaid = () if settings.stored else ("stored",)
    return settings.model_dump_json(exclude={"name", "uri", "storage_options", "shard_rows", *WINDOW_KEYS, *unsaid})


def _manifest_name(settings: SplitSettings, files: _Files) -> str:
    return _name(_described(settings), str(settings.rows_of_a_shard()), *(text for file in files for text in file))


def _name(*parts: str) -> str:
    return combine(part.encode() for part in (_FORMAT, *parts))
