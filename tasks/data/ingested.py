"""A split that was ingested: any of its rows, from its own files, or of pictures from the source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from congruence.tasks.data.facts import RowFacts
from congruence.tasks.data.formats import SplitSource
from congruence.tasks.data.inputs import InputColumns
from congruence.tasks.data.rows import Rows


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
