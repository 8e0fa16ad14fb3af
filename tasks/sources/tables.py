"""What every format of a split offers: typed columns, a number of rows, and any range of rows as a stream."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import pyarrow as pa

BATCH_ROWS = 256
"""Rows that a stream holds at once: with images of 100 kB some 25 MB."""


class Table(ABC):
    """Rows in a fixed order. Holds no data and no open file, so that it travels to workers cheaply.

    ``schema`` gives the columns and their Arrow types, ``rows`` their number, ``folder`` the path that relative
    image paths start from when the settings name no other.
    """

    location: str
    folder: str
    schema: pa.Schema
    rows: int
    key: str | None = None
    """The column that names the rows where the format itself has one."""

    @abstractmethod
    def batches(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows ``start`` to ``stop`` of ``columns`` in order, at most BATCH_ROWS at a time."""

    @abstractmethod
    def place(self, row: int) -> str:
        """The file and the row in it, as a person would look it up."""

    @abstractmethod
    def files(self) -> list[str]:
        """The paths of all files that hold the table: their state tells whether anything changed."""


def sliced(batch: pa.RecordBatch, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Rows ``start`` to ``stop`` of ``batch`` in pieces of at most BATCH_ROWS."""
    for begin in range(start, stop, BATCH_ROWS):
        yield batch.slice(begin, min(BATCH_ROWS, stop - begin))
