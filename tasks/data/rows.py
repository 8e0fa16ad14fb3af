"""A split that was ingested: its files, Parquet of which any rows are read, and what is known of all rows."""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from congruence.tasks.data.inputs import InputColumns, as_numbers, is_text
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.sources import SplitSource
from congruence.tasks.encoders.loading import Moments
from congruence.tasks.runtime.errors import SplitError
from congruence.tasks.runtime.files import whole_file

GROUP_ROWS, GROUP_BYTES = 2**13, 2**26
"""A row group has at most so many rows, and so many bytes where its rows are large: what is read at once."""


def write_rows(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """The rows of one file of the source as one Parquet file, there whole or not at all."""
    texts = [field.name for field in schema if is_text(field.type)]
    with (
        whole_file(path) as stream,
        pq.ParquetWriter(
            stream, schema, compression="lz4", use_dictionary=texts, write_statistics=False, write_page_checksum=True
        ) as writer,
    ):
        for group in _groups(batches, schema):
            writer.write_table(group, row_group_size=len(group))


def _groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for begin in range(0, batch.num_rows, GROUP_ROWS):
            piece = batch.slice(begin, GROUP_ROWS)
            if held and (rows + piece.num_rows > GROUP_ROWS or size + piece.nbytes > GROUP_BYTES):
                taken = min(piece.num_rows, GROUP_ROWS - rows) if size + piece.nbytes <= GROUP_BYTES else 0
                yield pa.Table.from_batches([*held, piece.slice(0, taken)], schema)
                held, rows, size, piece = [], 0, 0, piece.slice(taken)
            held.append(piece)
            rows, size = rows + piece.num_rows, size + piece.nbytes
    if rows:
        yield pa.Table.from_batches(held, schema)


def row_count(path: Path) -> int:
    """The number of rows of a file."""
    with _readable(path):
        return _opened(path)[1][-1]


def read_schema(path: Path) -> pa.Schema:
    """The columns of a file."""
    with _readable(path):
        return _opened(path)[0].schema.to_arrow_schema().remove_metadata()


def read_rows(path: Path, schema: pa.Schema, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Rows ``start`` to ``stop`` of a file in order, the columns of ``schema``, at most a row group at a time.

    Raises:
        SplitError: the file is damaged, or gone.
    """
    with _readable(path):
        metadata, starts = _opened(path)
        with pq.ParquetFile(path, metadata=metadata, page_checksum_verification=True) as file:
            for group in range(bisect.bisect_right(starts, start) - 1, bisect.bisect_left(starts, stop)):
                begin, end = starts[group], starts[group + 1]
                table = file.read_row_group(group, schema.names).combine_chunks()
                for batch in table.slice(max(0, start - begin), min(stop, end) - max(start, begin)).to_batches():
                    yield typed(batch, schema)


def typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``schema``, by name, with its types."""
    arrays = [batch.column(field.name).cast(field.type, safe=False) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def joined_schema(schemas: Iterable[pa.Schema]) -> tuple[pa.Schema, set[str]]:
    """The columns of several files with types that hold the values of all of them, and those of which no type does."""
    fields: dict[str, pa.DataType] = {}
    apart: set[str] = set()
    for schema in schemas:
        for column in schema:
            known = fields.get(column.name, column.type)
            joined = _joined_type(known, column.type)
            fields[column.name] = known if joined is None else joined
            apart |= {column.name} if joined is None else set()
    return pa.schema(list(fields.items())), apart


def _joined_type(left: Any, right: Any) -> Any:
    """The type of both, None where there is none."""
    if pa.types.is_binary(left) or pa.types.is_binary(right):  # Arrow would take texts for bytes
        return left if left == right else None
    try:
        schemas = [pa.schema([("", kind)]) for kind in (left, right)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowTypeError:
        return None


def _opened(path: Path) -> tuple[Any, list[int]]:
    """The footer of a file, and the rows that its groups begin with."""
    state = os.stat(path)
    return _opened_once(str(path), state.st_mtime_ns, state.st_ino)


@lru_cache(128)
def _opened_once(path: str, time: int, inode: int) -> tuple[Any, list[int]]:  # noqa: ARG001 - of that file alone
    metadata = pq.read_metadata(path)
    groups = (metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    return metadata, [0, *accumulate(groups)]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise SplitError(f"{path}: is gone; run again, and the split is read from its source") from error
    except (pa.ArrowInvalid, OSError, KeyError, ValueError) as error:
        if isinstance(error, (SplitError, PermissionError, ConnectionError, TimeoutError)):
            raise
        raise SplitError(
            f"{path}: is damaged ({error}); delete the file, and run again: the split is read from its source"
        ) from error


FIRST_ROWS = 3
"""Of rows that lack a number so many are named."""


@dataclass
class Lacking:
    """Rows without a finite number where one should be: how many, and the first few with the reason."""

    rows: int = 0
    first: list[tuple[int, str]] = field(default_factory=list)

    def add(self, row: int, reason: str) -> None:
        """One more row."""
        self.rows += 1
        if len(self.first) < FIRST_ROWS:
            self.first.append((row, reason))

    def listed(self, place: Callable[[int], str]) -> str:
        """The first few in words, each with the ``place`` that it lies at, and how many more there are."""
        first = sorted(self.first)[:FIRST_ROWS]
        listed = "; ".join(f"row {row} ({place(row)}): {reason}" for row, reason in first)
        return listed + (f"; and {self.rows - len(first)} more" if self.rows > len(first) else "")


@dataclass
class RowFacts:
    """What is known of all rows of a file, or of a split, as a whole."""

    rows: int = 0
    inputs: Lacking = field(default_factory=Lacking)
    """Features that are no numbers at all, of rows with a target. Images and texts must be decoded to be judged."""
    missing: Lacking = field(default_factory=Lacking)
    """Features without a value, of rows that have a target and are nothing worse."""
    targets: Lacking = field(default_factory=Lacking)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The smallest and the largest target by column."""
    weights: tuple[float, float] = (0.0, 0.0)
    """Their sum and that of their squares, where the rows have weights."""
    complete: Moments | None = None
    """Of tabular features, over rows that have a target and lack no feature."""
    present: Moments | None = None
    """The same over all values of rows that have a target and no infinite feature."""

    def add_features(self, rows: npt.NDArray[np.float64]) -> None:
        """Take rows of features (n, d) into the moments; those of another d than the rows before are left out."""
        lacking = np.isnan(rows).any(axis=1)
        complete = Moments.of(rows[~lacking] if lacking.any() else rows)
        present = Moments.of(rows) if lacking.any() else complete
        self.complete, self.present = _sum(self.complete, complete), _sum(self.present, present)

    def left_out(self, missing: str = "leave_out") -> tuple[Lacking, Lacking]:
        """The rows that are left out for their features, and those for their targets.

        ``missing`` is what the encoder makes of a feature without a value (``EncoderSettings.missing``).
        """
        if missing != "leave_out":
            return self.inputs, self.targets
        first = sorted([*self.inputs.first, *self.missing.first])[:FIRST_ROWS]
        return Lacking(self.inputs.rows + self.missing.rows, first), self.targets

    def widen(self, name: str, low: float, high: float) -> None:
        """Targets of a column lie between these, too."""
        before = self.ranges.get(name, (low, high))
        self.ranges[name] = (min(before[0], low), max(before[1], high))


FACTS = TypeAdapter(RowFacts)
"""Writes facts into a manifest, and reads them back."""


def _sum(first: Moments | None, second: Moments | None) -> Moments | None:
    if first is None or second is None:
        return first or second
    return first + second if len(first.count) == len(second.count) else first


def rows_without_target(settings: SplitSettings, batch: pa.RecordBatch) -> dict[int, str]:
    """The rows of ``batch`` that cannot be measured by their target, and why."""
    lacking: dict[int, str] = {}
    for name in settings.target_columns:
        values = as_numbers(batch.column(name))
        for row in np.flatnonzero(~np.isfinite(values)).tolist():
            lacking.setdefault(row, f"target {name!r} is {values[row]}, not a finite number")
    return lacking


@dataclass(frozen=True)
class Ingested:
    """A split that was ingested: its rows, its shards, and what is known of them.

    Attributes:
        folder: that its rows are kept in.
        name: of its manifest there.
        source: what it was read from.
        files: the files of the source, each with its state.
        parts: the file that each was ingested to.
        counts: the rows of each.
        schema: the columns, with types that hold the values of all parts.
        inputs: how the encoder's inputs are read.
        shard_digests: of each shard's inputs.
        digest: of every row's content.
        facts: of all rows.
    """

    folder: Path
    name: str
    source: SplitSource
    files: Sequence[tuple[str, str]]
    parts: Sequence[Path]
    counts: Sequence[int]
    schema: pa.Schema
    inputs: InputColumns
    shard_digests: Sequence[str] = ()
    digest: str = ""
    facts: RowFacts = field(default_factory=RowFacts)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._starts[-1]

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(self.counts)]

    def _part(self, row: int) -> int:
        return bisect.bisect_right(self._starts, row) - 1

    def _ranges(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The parts that hold some rows, and the rows of each."""
        while start < stop:
            part = self._part(start)
            end = min(stop, self._starts[part + 1])
            yield part, start - self._starts[part], end - self._starts[part]
            start = end

    def place(self, row: int) -> str:
        """The file that a row lies in, and its number in that file."""
        part = self._part(row)
        return f"{self.files[part][0]}, row {row - self._starts[part]}"

    def require_unchanged(self, start: int, stop: int) -> None:
        """To be asked after rows were read and before they are used.

        Raises:
            SplitChangedError: a file of the source that holds some of them is another one, or gone.
        """
        for part, _, _ in self._ranges(start, stop):
            self.source.require_unchanged(*self.files[part])

    def require_unique(self, key: str, codes: npt.NDArray[np.uint64]) -> None:
        """Raise SplitError where a key occurs twice; ``codes`` are equal where keys are, and rarely elsewhere."""
        ordered = np.sort(codes)
        suspects = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        if not len(suspects):
            return
        first: dict[str, int] = {}
        for row in np.flatnonzero(np.isin(codes, suspects)).tolist():
            (batch,) = self.stored([key], row, row + 1)
            text = str(batch.column(0)[0].as_py())
            if text in first:
                remedy = "remove the copy, or leave `key` out to use row numbers"
                if key == self.source.source.key:
                    remedy = "write the members of a sample side by side, as tar --sort=name does"
                raise SplitError(
                    f"column {key!r} (key) holds {text!r} twice: {self.place(first[text])} and {self.place(row)}; keys "
                    f"name rows and must be unique ({remedy})"
                )
            first[text] = row

    def stored(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows of some columns as they were ingested, in order."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        for part, first, end in self._ranges(start, stop):
            yield from read_rows(self.parts[part], schema, first, end)

    def batches(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The same, of pictures that stay in the source from there."""
        outside = [name for name in self.inputs.columns if self.inputs.stay and name in columns]
        if not outside:
            yield from self.stored(columns, start, stop)
            return
        inside = [name for name in columns if name not in outside]
        for part, first, end in self._ranges(start, stop):
            offset, at = self._starts[part], 0
            held = pa.Table.from_batches(self.stored(inside, offset + first, offset + end)).combine_chunks()
            for batch in self.source.rows_in_place(*self.files[part], outside, first, end):
                beside = held.slice(at, batch.num_rows).combine_chunks().columns
                arrays = [*batch.select(outside).columns, *(column.chunk(0) for column in beside)]
                yield pa.RecordBatch.from_arrays(arrays, names=[*outside, *inside]).select(list(columns))
                at += batch.num_rows
