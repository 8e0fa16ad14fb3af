"""Where the rows of one file lie: what an index keeps so that the file need not be opened to be read later."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from congruence.tasks.data.typing_rows import ColumnTypes


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
        arrays: what is stored under which name, for formats of arrays.
    """

    path: str
    state: str
    rows: int
    schema: pa.Schema | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    pieces: Sequence[int] = ()
    marks: Sequence[Sequence[int]] = ()
    arrays: Sequence[Mapping[str, Any]] = ()

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


def positions_of_marks(marks: Sequence[tuple[int, int]], rows: int) -> npt.NDArray[np.int64]:
    """For each of ``rows`` rows the byte of the nearest mark (row, byte) before it."""
    known = np.array(marks, np.int64).reshape(-1, 2)
    return np.repeat(known[:, 1], np.diff(known[:, 0], append=rows))
