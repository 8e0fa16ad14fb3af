"""From the parts of an index to shards: digests of what each holds, and of the whole, and keys that occur once."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from congruence.tasks.data.digests import ROW_BYTES, canonical_bytes, combine
from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.inputs import InputColumns
from congruence.tasks.data.parts import BYTES, DIGEST, fixed_bytes
from congruence.tasks.data.roles import described_columns
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.tables import Table


def merged(settings: SplitSettings, table: Table, inputs: InputColumns, rows: Table) -> tuple[list[str], str]:
    """The digest of each shard and of the split, in one stream over ``rows``, the parts one after the other.

    Raises:
        SplitError: a key that occurs twice.
    """
    names = described_columns(settings, table, inputs)
    key = settings.key or table.key
    columns = {name: BYTES + name if BYTES + name in rows.schema.names else name for name in names}
    states = {name: blake2b(digest_size=ROW_BYTES) for name in names}
    shards = _ShardDigests(settings.input_kind, settings.rows_of_a_shard(rows.rows))
    whole = blake2b(digest_size=ROW_BYTES)
    keys = np.empty(rows.rows if key else 0, np.uint64)
    start = 0
    for batch in rows.batches([DIGEST, *columns.values()], 0, rows.rows):
        digests = fixed_bytes(batch.column(DIGEST))
        whole.update(digests)
        shards.update(digests)
        for name, column in columns.items():
            content = _content(batch.column(column))
            states[name].update(content)
            if name == key:
                words = np.frombuffer(content, np.uint64)
                keys[start : start + batch.num_rows] = words.reshape(batch.num_rows, -1)[:, 0]
        start += batch.num_rows
    if key:
        _require_unique(keys, key, rows if key in rows.schema.names else table, table)
    described = combine(part for name in names for part in (name.encode(), states[name].digest())).encode()
    roles = [f"{role}: {name}".encode() for role, name in settings.design_columns.items()]
    return shards.finished(), combine([described, whole.digest(), *roles])


class _ShardDigests:
    """The digests of consecutive shards of one size, from the digests of their rows."""

    def __init__(self, kind: str, size: int) -> None:
        self._kind, self._size = kind.encode(), size
        self._done: list[str] = []
        self._state, self._rows = blake2b(self._kind, digest_size=ROW_BYTES), 0

    def update(self, digests: bytes) -> None:
        """The digests of more rows."""
        view, rows, at = memoryview(digests), len(digests) // ROW_BYTES, 0
        while at < rows:
            taken = min(rows - at, self._size - self._rows)
            self._state.update(view[at * ROW_BYTES : (at + taken) * ROW_BYTES])
            self._rows += taken
            at += taken
            if self._rows == self._size:
                self._close()

    def finished(self) -> list[str]:
        """All of them, the last perhaps of fewer rows."""
        if self._rows:
            self._close()
        return self._done

    def _close(self) -> None:
        self._state.update(self._rows.to_bytes(8, "little"))
        self._done.append(self._state.hexdigest())
        self._state, self._rows = blake2b(self._kind, digest_size=ROW_BYTES), 0


def _content(column: Any) -> bytes:
    return fixed_bytes(column) if pa.types.is_fixed_size_binary(column.type) else canonical_bytes(column)


def _require_unique(words: npt.NDArray[np.uint64], key: str, keys: Table, table: Table) -> None:
    """Raise SplitError where a key occurs twice; ``words`` are equal where keys are, and rarely elsewhere."""
    ordered = np.sort(words)
    suspects = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(suspects):
        return
    first: dict[str, int] = {}
    for row, text in _texts(keys, key, np.isin(words, suspects)):
        if text in first:
            raise SplitError(
                f"column {key!r} (key) holds {text!r} twice: {table.place(first[text])} and {table.place(row)}; "
                "keys name rows and must be unique (remove the copy, or leave `key` out to use row numbers)"
            )
        first[text] = row


def _texts(table: Table, column: str, wanted: npt.NDArray[np.bool_]) -> Iterator[tuple[int, str]]:
    start = 0
    for batch in table.batches([column], 0, table.rows):
        rows = np.flatnonzero(wanted[start : start + batch.num_rows])
        for row, value in zip(rows.tolist(), batch.column(0).take(pa.array(rows)).to_pylist(), strict=True):
            yield start + row, str(value)
        start += batch.num_rows
