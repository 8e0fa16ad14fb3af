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
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from congruence.tasks.data.columns import design_problem, design_type_problem, first_text, no_numbers
from congruence.tasks.data.inputs import (
    ROW_BYTES,
    STATE,
    ContentDigest,
    Features,
    InputColumns,
    Texts,
    as_numbers,
    combine,
    fixed_bytes,
    is_list,
    is_number,
    is_text,
    row_codes,
    to_standardise_by,
)
from congruence.tasks.data.pictures import Pictures, image_folder, pictures_of
from congruence.tasks.data.rows import (
    FACTS,
    Ingested,
    RowFacts,
    joined_schema,
    read_rows,
    read_schema,
    row_count,
    rows_without_target,
    typed,
    write_rows,
)
from congruence.tasks.data.settings import WINDOW_KEYS, SplitSettings
from congruence.tasks.data.sources import REASON, SplitSource
from congruence.tasks.runtime.errors import SplitChangedError, SplitError, unknown_column
from congruence.tasks.runtime.files import load_record, save_record

_FORMAT = "6"
Looking: TypeAlias = Callable[[int], AbstractContextManager[Callable[[int], object]]]
"""Given the rows that are looked through one after the other: inside, its value is called with the rows just seen."""


def source_files(settings: SplitSettings) -> list[str]:
    """The files of a split, each of which is ingested alone: arrays that are read side by side count as one."""
    return SplitSource.of(settings).paths()


def source_bytes(settings: SplitSettings, file: str) -> int:
    """The size of one of ``source_files``; 0 of what is no file."""
    filesystem = SplitSource.of(settings).location.filesystem
    return int(filesystem.size(file) or 0) if filesystem.isfile(file) else 0


def require_columns(settings: SplitSettings) -> None:
    """Refuse a split whose first file lacks a column, by a look at its first rows.

    Raises:
        SplitError: no such file, a file that is not of its format, a column that does not exist or of another type.
    """
    source = SplitSource.of(settings)
    path = source.paths()[0]
    schema = source.schema(path)
    if not set(source.needed_columns) <= set(schema.names):
        schema = source.full_schema(path)
    checked_inputs(source, schema, path)


def checked_inputs(source: SplitSource, schema: pa.Schema, path: str) -> InputColumns:
    """How the input's columns are read, after a look at the types of all columns that the settings name.

    A column without any value passes: what is wrong with its rows is said of each.

    Args:
        source: of the split.
        schema: the columns that there are.
        path: a file that has them.

    Raises:
        SplitError: a column that does not exist, or whose type cannot hold what it should.
    """
    settings, where = source.settings, source.location.uri
    types = dict(zip(schema.names, schema.types, strict=True))
    for name, role in settings.roles:
        if name not in types:
            available = [other for other in source.full_schema(path).names if not other.startswith("__")]
            raise unknown_column(name, role, available, where if source.paths() == [path] else path)
    for name in settings.target_columns:
        if not is_number(types[name]) or pa.types.is_boolean(types[name]):
            remedy = "convert it to numbers or name another column"
            said = no_numbers(types[name], first_text(source, path, name), remedy)
            raise SplitError(f"{where}: column {name!r} (target) {said}")
    for name in settings.input_columns if settings.input_kind == "features" else ():
        vector = len(settings.input_columns) == 1 and is_list(types[name])
        if not is_number(types[name].value_type if vector else types[name]):
            remedy = (
                "leave it out of input (a model that reads it as it is names it under model_inputs), or give its "
                "numbers in columns"
            )
            said = no_numbers(types[name], first_text(source, path, name), remedy)
            raise SplitError(f"{where}: column {name!r} (input) {said}")
    for name, role in settings.roles:
        if name in settings.target_columns and role not in ("target", "model_inputs", "key"):
            raise SplitError(f"{where}: column {name!r} ({role}) is the target; name another column, or leave it out")
    for name in settings.slices:
        if pa.types.is_nested(types[name]):
            raise SplitError(
                f"{where}: column {name!r} (slices) holds {types[name]}, by which rows cannot be grouped; name a "
                "column of single values"
            )
    for role, name in settings.design_columns.items():
        problem = None if pa.types.is_null(types[name]) else design_type_problem(role, types[name])
        if problem is not None:
            raise SplitError(f"{where}: column {name!r} ({role}) {problem}")
    if settings.input_kind == "features":
        return Features(settings.input_columns)
    (column,) = settings.input_columns
    is_of_texts = settings.input_kind == "text" and is_text(types[column])
    return Texts([column]) if is_of_texts else pictures_of(source, column, types[column])


def ingest_files(settings: SplitSettings, folder: str, files: Sequence[str]) -> list[str]:
    """Ingest some of ``source_files``, unless that was done in their present state; returns the paths of their parts.

    ``folder`` is seen by all that share the work.
    """
    rows = SplitRows(settings, Path(folder))
    return [str(rows.part((file, rows.source.state(file)))) for file in files]


def unseen(rows: int) -> AbstractContextManager[Callable[[int], object]]:  # noqa: ARG001
    """Nobody sees how far it is."""
    return nullcontext(lambda _: None)


@cache
def own_folder() -> Path:
    """A folder for rows that nobody asked to keep: it goes with this process."""
    folder = Path(tempfile.mkdtemp(prefix="congruence-rows-"))
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder


class SplitRows:
    """The rows of a split in a folder: parts and manifests, found again or made.

    What makes a split unusable is a SplitError, see ``open_split``.
    """

    def __init__(self, settings: SplitSettings, folder: Path) -> None:
        self.source = SplitSource.of(settings)
        unsaid = {"name", "uri", "storage_options", "shard_rows", *WINDOW_KEYS}
        if not settings.stored:
            unsaid.add("stored")
        self._described = settings.model_dump_json(exclude=unsaid)
        self._folder, self._at = folder, folder / "rows" / _name(self._described)

    @cached_property
    def files(self) -> list[tuple[str, str]]:
        """The path of each file of the source, and its present state."""
        return [(path, self.source.state(path)) for path in self.source.paths()]

    @property
    def _manifest_name(self) -> str:
        size = str(self.source.settings.rows_of_a_shard())
        return _name(self._described, size, *(text for file in self.files for text in file))

    def kept(self) -> Ingested | None:
        """The split in the present state of its files, None where it is not kept."""
        found = self.load(self._manifest_name)
        return found if found is not None and _pictures_unchanged(found.parts, found.inputs) else None

    def load(self, name: str) -> Ingested | None:
        """The split of that manifest, whatever has become of the source; None where it is not kept."""
        said = load_record(self._at / f"split-{name}.json")
        if said is None or not all((self._at / part).exists() for part in said["parts"]):
            return None
        files = [(path, state) for path, state in said["files"]]
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(said["schema"])))
        shards = [said["shards"][n : n + 2 * ROW_BYTES] for n in range(0, len(said["shards"]), 2 * ROW_BYTES)]
        return Ingested(
            self._folder,
            name,
            self.source,
            files,
            [self._at / part for part in said["parts"]],
            said["counts"],
            schema,
            checked_inputs(self.source, schema, files[0][0]),
            shards,
            said["digest"],
            FACTS.validate_python(said["facts"]),
        )

    def made(self, looking: Looking = unseen) -> Ingested:
        """The split in the present state of its files, whose parts are made where they are missing."""
        parts, schema = self._parts()
        counts = [row_count(part) for part in parts]
        if not sum(counts):
            raise SplitError(f"{self.source.location.uri}: holds no rows; give at least one")
        inputs, name = checked_inputs(self.source, schema, self.files[0][0]), self._manifest_name
        look = _Look(Ingested(self._folder, name, self.source, self.files, parts, counts, schema, inputs))
        columns = [*look.described, *inputs.digested, *self.source.settings.target_columns]
        start = 0
        with looking(sum(counts)) as advance:
            for batch in look.split.stored(list(dict.fromkeys(columns)), 0, sum(counts)):
                look.take(batch, start)
                start += batch.num_rows
                advance(batch.num_rows)
        split = look.ended()
        content = {
            "files": self.files,
            "parts": [part.name for part in parts],
            "counts": counts,
            "schema": base64.b64encode(schema.serialize()).decode(),
            "shards": "".join(split.shard_digests),
            "digest": split.digest,
            "facts": FACTS.dump_python(split.facts),
        }
        save_record(self._at / f"split-{name}.json", content)
        return split

    def _parts(self) -> tuple[list[Path], pa.Schema]:
        """The parts of all files, and types that hold the values of all of them.

        Where numbers in one file are texts in another, the notation of the former counts: it is ingested as texts.
        """
        parts = [self.part(file) for file in self.files]
        schemas = [read_schema(part) for part in parts]
        schema, apart = joined_schema(schemas)
        if apart:
            said = {name for path, _ in self.files for name in self.source.location.partitions(path)}
            if self.source.source.has_types and not apart <= said:
                name = min(apart - said)
                types = [(path, each.field(name).type) for (path, _), each in zip(self.files, schemas, strict=True)]
                (first, of_first), *others = types
                path, kind = next((p, kind) for p, kind in others if kind != of_first and not pa.types.is_null(kind))
                where = f"{path}: column {name!r} is {kind}, but {of_first} in {first}"
                raise SplitError(f"{where}; write both files alike")
            parts = [self.part(file, frozenset(apart)) for file in self.files]
            schema, _ = joined_schema([read_schema(part) for part in parts])
        known = [pa.float64() if pa.types.is_null(field.type) else field.type for field in schema]
        return parts, pa.schema(list(zip(schema.names, known, strict=True)))

    def part(self, file: tuple[str, str], as_text: frozenset[str] = frozenset()) -> Path:
        """The part of a file (its path and state), made where it is missing, or of pictures that changed."""
        source, (file_path, state) = self.source, file
        said = (f"{name}={value}" for name, value in source.location.partitions(file_path).items())
        root = image_folder(source).root if source.settings.input_kind == "image" else ""
        path = self._at / f"part-{_name(file_path, state, root, *sorted(as_text), *said)}.parquet"
        if path.exists() and _pictures_unchanged([path], checked_inputs(source, read_schema(path), file_path)):
            return path
        names = source.needed_columns
        batches = source.batches(file_path, columns=(*names, REASON), as_text=as_text)
        first = next(batches)
        given, column = first.schema, first.schema.get_field_index(str(source.settings.input))
        if source.settings.input_kind != "features" and column >= 0 and pa.types.is_null(given.field(column).type):
            given = given.set(column, given.field(column).with_type(pa.string()))  # pictures or texts without any value
        inputs = checked_inputs(source, given, file_path)
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


def _name(*parts: str) -> str:
    return combine(part.encode() for part in (_FORMAT, *parts))


class _Look:
    """Looks through the rows for the split's digest, those of its shards, and the facts of its rows."""

    def __init__(self, split: Ingested) -> None:
        self._settings, self._key = split.source.settings, split.source.key
        self.split, self._facts = split, RowFacts(split.rows)
        self._codes = np.empty(split.rows if self._key else 0, np.uint64)
        self.described = {name: ContentDigest() for name in split.source.described_columns}
        # Of the inputs, and of which rows have no target: of the split, and of the shard that is being looked at.
        self._whole, self._shard = (ContentDigest(), ContentDigest()), (ContentDigest(), ContentDigest())
        self._shards: list[str] = []

    def take(self, batch: pa.RecordBatch, start: int) -> None:
        """The rows from row ``start`` on."""
        if self._key:
            column = batch.column(self._key)
            if column.null_count:
                row = start + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
                place = self.split.place(row)
                raise SplitError(f"{place}: column {self._key!r} (key) is empty; give every row a key")
            self._codes[start : start + batch.num_rows] = row_codes(column)
        self._note_design(batch, start)
        for name, state in self.described.items():
            state.add_column(batch.column(name))
        self._digest(batch, start, self._note_lacking(batch, start))

    def ended(self) -> Ingested:
        """After the last row."""
        settings, facts = self._settings, self._facts
        if settings.weight is not None and facts.weights[0] == 0.0:
            raise SplitError(
                f"{self.split.source.location.uri}: column {settings.weight!r} (weight) is 0 in all {facts.rows:,} "
                "rows; at least one row must count: name another column, or leave weight out"
            )
        if self._key:
            self.split.require_unique(self._key, self._codes)
        parts = (part for name, state in self.described.items() for part in (name.encode(), state.digest()))
        roles = [f"{role}: {name}".encode() for role, name in settings.design_columns.items()]
        digest = combine([combine(parts).encode(), b"".join(each.digest() for each in self._whole), *roles])
        return replace(self.split, shard_digests=self._shards, digest=digest, facts=facts)

    def _digest(self, batch: pa.RecordBatch, start: int, lacking: dict[int, str]) -> None:
        size, inputs, flags = self._settings.rows_of_a_shard(), self.split.inputs, np.zeros(batch.num_rows, np.uint8)
        flags[list(lacking)] = 1
        done = 0
        while done < batch.num_rows:
            taken = min(batch.num_rows - done, size - (start + done) % size)
            inputs.digest(batch.slice(done, taken).select(inputs.digested), self._whole[0], self._shard[0])
            for _, state in (self._whole, self._shard):
                state.update(flags[done : done + taken].data)
            done += taken
            if (start + done) % size == 0 or start + done == self.split.rows:
                digest = b"".join(each.digest() for each in self._shard)
                self._shards.append(combine([self._settings.input_kind.encode(), digest]))
                self._shard = ContentDigest(), ContentDigest()

    def _note_design(self, batch: pa.RecordBatch, start: int) -> None:
        for role, name in self._settings.design_columns.items():
            found = design_problem(role, batch.column(name))
            if found is not None:
                row, reason = found
                raise SplitError(f"{self.split.place(start + row)}: column {name!r} ({role}) {reason}")
            if role == "weight":
                weights, (total, squares) = as_numbers(batch.column(name)), self._facts.weights
                self._facts.weights = (total + float(weights.sum()), squares + float(weights @ weights))

    def _note_lacking(self, batch: pa.RecordBatch, start: int) -> dict[int, str]:
        """Rows without a finite target, and of the others those whose features are not finite."""
        facts, inputs, lacking = self._facts, self.split.inputs, rows_without_target(self._settings, batch)
        for name in self._settings.target_columns:
            values = as_numbers(batch.column(name))
            finite = values[np.isfinite(values)]
            if len(finite):
                facts.widen(name, float(finite.min()), float(finite.max()))
        for row, reason in sorted(lacking.items()):
            facts.targets.add(start + row, reason)
        if isinstance(inputs, Features):
            vectors = inputs.vectors(batch)
            unusable = inputs.unusable(*vectors)
            never = inputs.unusable(*vectors, missing=True) if unusable else {}
            for row, reason in unusable.items():
                if row not in lacking:
                    (facts.inputs if row in never else facts.missing).add(start + row, reason)
            facts.add_features(to_standardise_by(*vectors, lacking))
        return lacking
