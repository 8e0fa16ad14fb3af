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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from congruence.tasks.data.design import as_numbers, design_problem
from congruence.tasks.data.digests import ROW_BYTES, ContentDigest, combine, fixed_bytes, row_codes
from congruence.tasks.data.errors import SplitChangedError, SplitError
from congruence.tasks.data.facts import RowFacts
from congruence.tasks.data.formats import SplitSource
from congruence.tasks.data.inputs import DIGEST, STATE, Features, InputColumns, Pictures
from congruence.tasks.data.roles import checked_inputs, described_columns, image_folder, key_of, needed_columns
from congruence.tasks.data.rows import Rows, is_written, joined_schema, read_facts, read_schema, typed, write_rows
from congruence.tasks.data.settings import WINDOW_KEYS, SplitSettings
from congruence.tasks.data.sources import REASON
from congruence.tasks.runtime.files import load_record, save_record

_FORMAT = "6"
_Known: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any]]


@dataclass(frozen=True)
class Ingested:
    """A split that was ingested: its rows, its shards, and what is known of them.

    Attributes:
        source: what it was read from.
        files: the files of the source, each with its state.
        rows: as they were ingested.
        inputs: how the encoder's inputs are read.
        shard_digests: of each shard's inputs.
        digest: of every row's content.
        facts: of all rows.
    """

    source: SplitSource
    files: Sequence[tuple[str, str]]
    rows: Rows
    inputs: InputColumns
    shard_digests: Sequence[str]
    digest: str
    facts: RowFacts

    def place(self, row: int) -> str:
        """The file that a row lies in, and its number in that file."""
        part = self.rows.part(row)
        return f"{self.files[part][0]}, row {row - self.rows.starts[part]}"

    def require_unchanged(self, start: int, stop: int) -> None:
        """To be asked after rows were read and before they are used.

        Raises:
            SplitChangedError: a file of the source that holds some of them is another one, or gone.
        """
        if start < stop:
            for path, state in self.files[self.rows.part(start) : self.rows.part(stop - 1) + 1]:
                self.source.require_unchanged(path, state)

    def read_reference(self, at: Mapping[str, Any]) -> bytes:
        """The bytes that a reference stands for."""
        first, filesystem = at["offset"], self.source.location.filesystem
        return bytes(filesystem.cat_file(at["file"], start=first, end=first + at["length"]))

    def batches(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows of some columns, of pictures that stay in the source from there."""
        outside = [name for name in self.inputs.columns if self.inputs.stay and name in columns]
        if not outside:
            yield from self.rows.batches(columns, start, stop)
            return
        inside = [name for name in columns if name not in outside]
        for number, (path, state) in enumerate(self.files):
            offset, end = self.rows.starts[number], min(stop, self.rows.starts[number + 1])
            first = max(start, offset)
            if first < end:
                held = pa.Table.from_batches(self.rows.batches(inside, first, end)).combine_chunks() if inside else None
                for batch in self.source.rows_in_place(path, state, outside, first - offset, end - offset):
                    if held is not None:
                        for name in inside:
                            column = held.column(name).combine_chunks()
                            batch = batch.append_column(name, column.slice(0, batch.num_rows))
                        held = held.slice(batch.num_rows)
                    yield batch.select(list(columns))


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


def ingest_file(settings: SplitSettings, file: str, folder: str | Path, as_text: Sequence[str] = ()) -> str:
    """Ingest one of ``source_files``, unless that was done in its present state; returns the path of its part.

    ``folder`` is seen by all that share the work; columns of ``as_text`` are texts in another file of the split.

    Raises:
        SplitError: a damaged file, columns that are not there or of another type, a row that cannot be used.
    """
    source = SplitSource.of(settings)
    return str(_part(settings, source, file, source.state(file), Path(folder), frozenset(as_text)))


def ingest(settings: SplitSettings, folder: Path) -> tuple[str, Ingested]:
    """The name of the split's manifest in the present state of its files, and the split: as it is kept, or made now.

    Raises:
        SplitError: what makes a split unusable, see ``open_split``.
    """
    name, found = kept(settings, folder)
    return name, found or _make(settings, folder, name)


def kept(settings: SplitSettings, folder: Path) -> tuple[str, Ingested | None]:
    """The name of the split's manifest in the present state of its files, and the split where it is kept."""
    source = SplitSource.of(settings)
    states = [(path, source.state(path)) for path in source.paths()]
    name = _name(_described(settings), str(settings.rows_of_a_shard()), *(text for pair in states for text in pair))
    found = load(settings, folder, name)
    return name, found if found is not None and _Pictures(found.rows, found.inputs).are_as_ingested() else None


def load(settings: SplitSettings, folder: Path, name: str) -> Ingested | None:
    """The split of that manifest as it is kept, whatever has become of the source; None where it is not."""
    said = load_record(_folder(settings, folder) / f"split-{name}.json")
    if said is None or not all(is_written(_folder(settings, folder) / part) for part in said["parts"]):
        return None
    source = SplitSource.of(settings)
    files = [(path, state) for path, state in said["files"]]
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(said["schema"])))
    inputs = checked_inputs(settings, source, schema, files[0][0])
    rows = Rows([_folder(settings, folder) / part for part in said["parts"]], said["counts"], schema)
    shards = [said["shards"][at : at + 2 * ROW_BYTES] for at in range(0, len(said["shards"]), 2 * ROW_BYTES)]
    return Ingested(source, files, rows, inputs, shards, said["digest"], RowFacts.from_json(said["facts"]))


@cache
def own_folder() -> Path:
    """A folder for rows that nobody asked to keep: it goes with this process."""
    folder = Path(tempfile.mkdtemp(prefix="congruence-rows-"))
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder


def _make(settings: SplitSettings, folder: Path, name: str) -> Ingested:
    source = SplitSource.of(settings)
    files = [(path, source.state(path)) for path in source.paths()]
    parts, schema = _parts(settings, source, files, folder)
    facts, counts = RowFacts(), []
    for part in parts:
        found = read_facts(part)
        counts.append(found.rows)
        facts.join(found)
    where = source.location.uri
    if facts.rows == 0:
        raise SplitError(f"{where}: holds no rows; give at least one")
    if settings.weight is not None and facts.weights[0] == 0.0:
        raise SplitError(
            f"{where}: column {settings.weight!r} (weight) is 0 in all {facts.rows:,} rows; at least one row must "
            "count: name another column, or leave weight out"
        )
    inputs, rows = checked_inputs(settings, source, schema, files[0][0]), Rows(parts, counts, schema)
    split = Ingested(source, files, rows, inputs, [], "", facts)
    shards, digest = _digests(settings, split)
    content = {
        "files": files,
        "parts": [part.name for part in parts],
        "counts": counts,
        "schema": base64.b64encode(schema.serialize()).decode(),
        "shards": "".join(shards),
        "digest": digest,
        "facts": facts.to_json(),
    }
    save_record(_folder(settings, folder) / f"split-{name}.json", content)
    return Ingested(source, files, rows, inputs, shards, digest, facts)


def _parts(
    settings: SplitSettings, source: SplitSource, files: Sequence[tuple[str, str]], folder: Path
) -> tuple[list[Path], pa.Schema]:
    """The parts of all files, and types that hold the values of all of them.

    Where numbers in one file are texts in another, the notation of the former counts: it is ingested as texts.
    """
    parts = {path: _part(settings, source, path, state, folder) for path, state in files}
    schemas = {path: read_schema(part) for path, part in parts.items()}
    schema, apart = joined_schema(schemas)
    if apart:
        said = {name for path, _ in files for name in source.location.partitions(path)}
        if source.source.has_types and not apart <= said:
            raise _unlike(schemas, min(apart - said))
        as_text = frozenset(apart)
        parts = {path: _part(settings, source, path, state, folder, as_text) for path, state in files}
        schema, apart = joined_schema({path: read_schema(part) for path, part in parts.items()})
    types = (pa.float64() if pa.types.is_null(field.type) else field.type for field in schema)
    return list(parts.values()), pa.schema(list(zip(schema.names, types, strict=True)))


def _unlike(schemas: dict[str, pa.Schema], name: str) -> SplitError:
    first, *others = ((path, schema.field(name).type) for path, schema in schemas.items())
    path, kind = next((path, kind) for path, kind in others if kind != first[1] and not pa.types.is_null(kind))
    return SplitError(f"{path}: column {name!r} is {kind}, but {first[1]} in {first[0]}; write both files alike")


def _part(
    settings: SplitSettings,
    source: SplitSource,
    file: str,
    state: str,
    folder: Path,
    as_text: frozenset[str] = frozenset(),
) -> Path:
    """The part of a file, made where it is missing, or of pictures that changed."""
    said = (f"{name}={value}" for name, value in source.location.partitions(file).items())
    root = image_folder(settings, source).root if settings.input_kind == "image" else ""
    path = _folder(settings, folder) / f"part-{_name(file, state, root, *sorted(as_text), *said)}.parquet"
    before = _Pictures.of_part(settings, source, file, path) if is_written(path) else None
    if before is not None and before.are_as_ingested():
        return path
    part = _Part(settings, source, file, as_text, before)
    write_rows(path, part.schema, part.batches(), part.facts)
    try:
        source.require_unchanged(file, state)
    except SplitChangedError:  # its rows may be of two files
        path.unlink(missing_ok=True)
        raise
    return path


@dataclass(frozen=True)
class _Pictures:
    """What a part says of pictures in files of their own."""

    rows: Rows
    inputs: InputColumns

    @classmethod
    def of_part(cls, settings: SplitSettings, source: SplitSource, file: str, part: Path) -> _Pictures:
        """Of a part that is there."""
        schema = read_schema(part)
        return cls(Rows([part], [read_facts(part).rows], schema), checked_inputs(settings, source, schema, file))

    def are_as_ingested(self) -> bool:
        """Whether every file that a row points to is in the state that it was ingested in."""
        inputs = self.inputs
        if not (isinstance(inputs, Pictures) and inputs.has_paths):
            return True
        batches = self.rows.batches([*inputs.columns, STATE], 0, self.rows.count)
        return all(inputs.states(batch) == fixed_bytes(batch.column(STATE)) for batch in batches)

    def known(self) -> _Known:
        """State and digest of each row."""
        table = pa.Table.from_batches(self.rows.batches([STATE, DIGEST], 0, self.rows.count)).combine_chunks()
        columns = [table.column(name).combine_chunks() for name in (STATE, DIGEST)]
        states, digests = (np.frombuffer(fixed_bytes(column), f"V{ROW_BYTES}") for column in columns)
        return states, digests


class _Part:
    """The rows of one file of the source, batch by batch as they are kept.

    Attributes:
        schema: the columns that the settings name, and those that ingesting adds; of pictures that stay in the source
            the column is there without them.
        facts: of the rows so far.
    """

    def __init__(
        self, settings: SplitSettings, source: SplitSource, path: str, as_text: frozenset[str], before: _Pictures | None
    ) -> None:
        self._settings, self._path, self._key = settings, path, key_of(settings, source)
        names = needed_columns(settings, source)
        stream = source.batches(path, columns=(*names, REASON), as_text=as_text)
        first = next(stream)
        self._given = first.schema
        if settings.input_kind != "features" and settings.input in first.schema.names:
            self._given = _with_texts(first.schema, str(settings.input))
        self._stream = chain([first], stream)
        self._inputs = checked_inputs(settings, source, self._given, path)
        reason = [(REASON, pa.string())] if REASON in self._given.names else []
        kept_columns = [(name, self._given.field(name).type) for name in names]
        self.schema = pa.schema([*kept_columns, *reason, *self._inputs.added])
        self._known = before.known() if before is not None else None
        self.facts = RowFacts()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows."""
        for batch in self._stream:
            if batch.num_rows:
                yield self._kept(typed(batch, self._given))
                self.facts.rows += batch.num_rows

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        start = self.facts.rows
        if self._key and batch.column(self._key).null_count:
            row = start + int(np.argmax(batch.column(self._key).is_null().to_numpy(zero_copy_only=False)))
            raise SplitError(f"{self._path}, row {row}: column {self._key!r} (key) is empty; give every row a key")
        self._note_design(batch, start)
        self._note_lacking(batch, start)
        columns = {name: batch.column(name) for name in self.schema.names if name in batch.schema.names}
        if isinstance(self._inputs, Pictures):
            there = slice(start, start + batch.num_rows)
            known = None if self._known is None else (self._known[0][there], self._known[1][there])
            columns |= self._inputs.add(batch, known)
            if self._inputs.stay:
                columns[self._inputs.columns[0]] = self._inputs.left_there(batch)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _note_design(self, batch: pa.RecordBatch, start: int) -> None:
        for role, name in self._settings.design_columns.items():
            found = design_problem(role, batch.column(name))
            if found is not None:
                row, reason = found
                raise SplitError(f"{self._path}, row {start + row}: column {name!r} ({role}) {reason}")
            if role == "weight":
                weights, (total, squares) = as_numbers(batch.column(name)), self.facts.weights
                self.facts.weights = (total + float(weights.sum()), squares + float(weights @ weights))

    def _note_lacking(self, batch: pa.RecordBatch, start: int) -> None:
        """Rows without a finite target, and of the others those whose features are not finite."""
        lacking = rows_without_target(self._settings, batch)
        for name in self._settings.target_columns:
            values = as_numbers(batch.column(name))
            finite = values[np.isfinite(values)]
            if len(finite):
                self.facts.widen(name, float(finite.min()), float(finite.max()))
        unusable = self._inputs.unusable(batch)
        never = self._inputs.unusable(batch, missing=True) if unusable else {}
        for row, reason in unusable.items():
            if row not in lacking:
                (self.facts.inputs if row in never else self.facts.missing).add(start + row, reason)
        for row, reason in sorted(lacking.items()):
            self.facts.targets.add(start + row, reason)
        if isinstance(self._inputs, Features):
            self.facts.add_features(self._inputs.to_standardise_by(batch, lacking))


def rows_without_target(settings: SplitSettings, batch: pa.RecordBatch) -> dict[int, str]:
    """The rows of ``batch`` that cannot be measured by their target, and why."""
    lacking: dict[int, str] = {}
    for name in settings.target_columns:
        values = as_numbers(batch.column(name))
        for row in np.flatnonzero(~np.isfinite(values)).tolist():
            lacking.setdefault(row, f"target {name!r} is {values[row]}, not a finite number")
    return lacking


def _with_texts(schema: pa.Schema, name: str) -> pa.Schema:
    """The columns, that one as text where it has no value at all."""
    field = schema.field(name)
    return (
        schema.set(schema.get_field_index(name), field.with_type(pa.string()))
        if pa.types.is_null(field.type)
        else schema
    )


def _digests(settings: SplitSettings, split: Ingested) -> tuple[list[str], str]:
    """The digest of each shard and of the whole, in one stream over the rows.

    Raises:
        SplitError: a key that occurs twice.
    """
    rows, inputs, size = split.rows, split.inputs, settings.rows_of_a_shard()
    names, key = described_columns(settings, split.source), key_of(settings, split.source)
    described = {name: ContentDigest() for name in names}
    codes = np.empty(rows.count if key else 0, np.uint64)
    (whole, whole_lacking), (shard, shard_lacking) = _new_digests(), _new_digests()
    found: list[str] = []
    start = 0
    for batch in rows.batches(list(dict.fromkeys([*names, *inputs.digested])), 0, rows.count):
        for name, state in described.items():
            state.add_column(batch.column(name))
        if key:
            codes[start : start + batch.num_rows] = row_codes(batch.column(key))
        lacking = np.zeros(batch.num_rows, dtype=np.uint8)
        lacking[list(rows_without_target(settings, batch))] = 1
        done = 0
        while done < batch.num_rows:
            taken = min(batch.num_rows - done, size - start % size)
            inputs.digest(batch.slice(done, taken).select(inputs.digested), whole, shard)
            for state in (whole_lacking, shard_lacking):
                state.update(lacking[done : done + taken].data)
            start, done = start + taken, done + taken
            if start % size == 0 or start == rows.count:
                found.append(combine([settings.input_kind.encode(), shard.digest(), shard_lacking.digest()]))
                shard, shard_lacking = _new_digests()
    if key:
        _require_unique(split, key, codes)
    roles = [f"{role}: {name}".encode() for role, name in settings.design_columns.items()]
    said = combine(part for name, state in described.items() for part in (name.encode(), state.digest())).encode()
    return found, combine([said, whole.digest(), whole_lacking.digest(), *roles])


def _new_digests() -> tuple[ContentDigest, ContentDigest]:
    """Of inputs, and of which rows have no target."""
    return ContentDigest(), ContentDigest()


def _require_unique(split: Ingested, key: str, codes: npt.NDArray[np.uint64]) -> None:
    """Raise SplitError where a key occurs twice; ``codes`` are equal where keys are, and rarely elsewhere."""
    ordered = np.sort(codes)
    suspects = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(suspects):
        return
    first: dict[str, int] = {}
    for row in np.flatnonzero(np.isin(codes, suspects)).tolist():
        (batch,) = split.rows.batches([key], row, row + 1)
        text = str(batch.column(0)[0].as_py())
        if text in first:
            remedy = "remove the copy, or leave `key` out to use row numbers"
            if key == split.source.source.key:
                remedy = "write the members of a sample side by side, as tar --sort=name does"
            raise SplitError(
                f"column {key!r} (key) holds {text!r} twice: {split.place(first[text])} and {split.place(row)}; keys "
                f"name rows and must be unique ({remedy})"
            )
        first[text] = row


def _folder(settings: SplitSettings, folder: Path) -> Path:
    return folder / "rows" / _name(_described(settings))


def _described(settings: SplitSettings) -> str:
    return settings.model_dump_json(exclude={"name", "uri", "storage_options", "shard_rows", *WINDOW_KEYS})


def _name(*parts: str) -> str:
    return combine(part.encode() for part in (_FORMAT, *parts))
