"""Where the rows of one file lie: what an index keeps so that the file need not be opened to be read later."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from congruence.tasks.data.digests import combine
from congruence.tasks.data.typing_rows import ColumnTypes

_FORMAT = "5"


def layout_name(path: str, state: str) -> str:
    """The name under which the layout of a file in this state is kept."""
    return combine(part.encode() for part in (_FORMAT, path, state))


@dataclass(frozen=True)
class FileLayout:
    """One file of a split: its rows, its columns, and the places in it that reading can begin at.

    Attributes:
        path: of the file, or of the folder that is read as one (a Zarr group).
        state: size and times of the file, or its ETag: another one means other content.
        rows: in it.
        schema: its columns; of text formats None.
        kinds: of text formats the kind of each column, as its own rows show it.
        pieces: rows of each row group or record batch of columnar files.
        marks: (row, byte) or (row, byte, line) of text formats and tar files, every so many rows.
        arrays: of formats of arrays: name, shape, dtype, and the .npy ``file`` or our ``copy`` of it with the byte
            ``offset`` of its rows; of a Zarr group neither.
    """

    path: str
    state: str
    rows: int
    schema: pa.Schema | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    pieces: Sequence[int] = ()
    marks: Sequence[Sequence[int]] = ()
    arrays: Sequence[Mapping[str, Any]] = ()

    @property
    def copies(self) -> list[str]:
        """The names of our copies of its arrays."""
        return [said["copy"] for said in self.arrays if "copy" in said]

    def to_json(self) -> dict[str, Any]:
        """What ``from_json`` reads."""
        schema = None if self.schema is None else base64.b64encode(self.schema.serialize()).decode()
        return {
            "path": self.path,
            "state": self.state,
            "rows": self.rows,
            "schema": schema,
            "kinds": dict(self.kinds),
            "pieces": list(self.pieces),
            "marks": [list(mark) for mark in self.marks],
            "arrays": [dict(array) for array in self.arrays],
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> FileLayout:
        """The layout that ``to_json`` wrote; raises KeyError, TypeError or ValueError for anything else."""
        schema = said["schema"]
        read = None if schema is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema)))
        parts = (said["kinds"], said["pieces"], said["marks"], said["arrays"])
        return cls(said["path"], said["state"], said["rows"], read, *parts)


def joined_kinds(layouts: Sequence[FileLayout]) -> dict[str, str]:
    """The kind of each column that holds the values of every file."""
    types = ColumnTypes()
    for layout in layouts:
        types.join(layout.kinds)
    return types.kinds
