"""A split that was ingested: what is known of its rows, and any of them, of pictures from the source."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from congruence.tasks.data.formats import SplitSource
from congruence.tasks.data.inputs import InputColumns
from congruence.tasks.data.rows import read_rows
from congruence.tasks.encoders.moments import Moments

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

    @classmethod
    def of(cls, said: dict[str, Any]) -> Lacking:
        """What ``asdict`` gave."""
        return cls(said["rows"], [(row, reason) for row, reason in said["first"]])


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
        self._join_moments(complete, Moments.of(rows) if lacking.any() else complete)

    def widen(self, name: str, low: float, high: float) -> None:
        """Targets of a column lie between these, too."""
        before = self.ranges.get(name, (low, high))
        self.ranges[name] = (min(before[0], low), max(before[1], high))

    def _join_moments(self, complete: Moments | None, present: Moments | None) -> None:
        self.complete, self.present = _sum(self.complete, complete), _sum(self.present, present)

    def to_json(self) -> dict[str, Any]:
        """What ``from_json`` reads."""
        found = {"complete": self.complete, "present": self.present}
        moments = {name: None if each is None else each.to_json() for name, each in found.items()}
        return {**asdict(replace(self, complete=None, present=None)), **moments}

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> RowFacts:
        """The facts that ``to_json`` wrote."""
        ranges = {name: (low, high) for name, (low, high) in said["ranges"].items()}
        total, squares = said["weights"]
        inputs, missing, targets = (Lacking.of(said[name]) for name in ("inputs", "missing", "targets"))
        kept = [said[name] for name in ("complete", "present")]
        moments = [None if each is None else Moments.from_json(each) for each in kept]
        return cls(said["rows"], inputs, missing, targets, ranges, (total, squares), *moments)


def _sum(first: Moments | None, second: Moments | None) -> Moments | None:
    if first is None or second is None:
        return first or second
    return first + second if len(first.count) == len(second.count) else first


@dataclass(frozen=True)
class Ingested:
    """A split that was ingested: its rows, its shards, and what is known of them.

    Attributes:
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

    def read_reference(self, at: Mapping[str, Any]) -> bytes:
        """The bytes that a reference stands for."""
        first, filesystem = at["offset"], self.source.location.filesystem
        return bytes(filesystem.cat_file(at["file"], start=first, end=first + at["length"]))

    def stored(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows of some columns as they were ingested, in order.

        Raises:
            SplitError: a file is damaged, or gone.
        """
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
