"""A split: labelled rows in a fixed order, cut into shards, each with a digest of what it holds."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from congruence.tasks.encoders.errors import InvalidRow
from congruence.tasks.sources.errors import SplitError, unknown_column
from congruence.tasks.sources.inputs import REASON, Features, InputColumns, RawInput, Reader
from congruence.tasks.sources.settings import SplitSettings
from congruence.tasks.sources.tables import Table


@dataclass(frozen=True)
class Shard:
    """Rows ``start`` to ``stop`` of a split. ``digest`` covers the content of their encoder inputs, nothing else.

    So the embeddings of a shard are found again under its digest after rows were appended to the split, after a target
    was corrected, or when the split was moved.
    """

    index: int
    start: int
    rows: int
    digest: str

    @property
    def stop(self) -> int:
        """One past the last row."""
        return self.start + self.rows


class Split:
    """Rows in a fixed order, read shard by shard: never whole in memory.

    ``digest`` covers the content of every row (key, target, model inputs, slices, encoder input), not the place where
    it lies, the files that it is divided into, or the size of the shards.
    """

    def __init__(
        self, settings: SplitSettings, table: Table, inputs: InputColumns, shards: Sequence[Shard], digest: str
    ) -> None:
        self.settings = settings
        self.name = settings.name
        self.rows = table.rows
        self.shards = list(shards)
        self.digest = digest
        self._table = table
        self._inputs = inputs

    @property
    def key_column(self) -> str:
        """The name of the key's column in frames."""
        return self.settings.key or self._table.key or "row"

    def place(self, row: int) -> str:
        """The file that row ``row`` of the split lies in, and where in that file."""
        return self._table.place(row)

    def input_readers(self, shard: Shard) -> Iterator[Reader]:
        """For each row a call that loads the encoder's input or raises InvalidRow: for threads that read and decode."""
        columns = _with_reason(self._inputs.columns, self._table)
        for batch in self._table.batches(columns, shard.start, shard.stop):
            yield from self._inputs.readers(batch)

    def read_encoder_inputs(self, shard: Shard) -> Iterator[RawInput | InvalidRow]:
        """The encoder's input of each row, or why there is none: encoded image bytes, a text, or a float64 vector."""
        for read in self.input_readers(shard):
            yield _read_or_reason(read)

    def features(self, shard: Shard) -> tuple[npt.NDArray[np.float64], dict[int, str]]:
        """The feature vectors of ``shard`` as one array (rows, d), and by row of it why some are no input.

        Raises:
            SplitError: the inputs are not features.
        """
        if not isinstance(self._inputs, Features):
            raise SplitError(f"split {self.name!r}: its inputs are of kind {self.settings.input_kind!r}, not features")
        whole = pa.concat_batches(list(self._table.batches(self._inputs.columns, shard.start, shard.stop)))
        return self._inputs.matrix(whole), self._inputs.unusable(whole)

    def frame(self, shard: Shard, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Key, targets, model inputs and slice columns of ``shard`` (or just ``columns``), one row per row.

        A model input that is also the encoder's image or text column holds the content that the encoder is given,
        None where the row is invalid. The index counts the rows of the split.

        Raises:
            SplitError: a column that does not exist.
        """
        wanted = list(dict.fromkeys(columns if columns is not None else self._frame_columns()))
        content = self._content_columns()
        stored = [name for name in wanted if name not in content and name != self._row_key]
        for name in stored:
            if name not in self._table.schema.names:
                raise unknown_column(name, "frame", self._table.schema.names, self._table.location)
        batches = list(self._table.batches(stored, shard.start, shard.stop)) if stored else []
        index = pd.RangeIndex(shard.start, shard.stop)
        frame = pa.Table.from_batches(batches).to_pandas() if batches else pd.DataFrame(index=range(shard.rows))
        frame.index = index
        for name in wanted:
            if name in content:
                values: list[Any] = [None if isinstance(v, InvalidRow) else v for v in self.read_encoder_inputs(shard)]
                frame[name] = pd.Series(values, index=index, dtype=object)
            elif name == self._row_key:
                frame[name] = index.astype(str)
        return frame[wanted]

    def targets(self, shard: Shard) -> npt.NDArray[np.float64]:
        """The targets of ``shard``: (rows,), (rows, q) for several target columns, (rows, 0) where there is none."""
        names = self.settings.target_columns
        values = self.frame(shard, names).to_numpy(dtype=np.float64)
        return values[:, 0] if len(names) == 1 else values

    def keys(self, shard: Shard) -> list[str]:
        """The keys of ``shard`` as text."""
        return [str(key) for key in self.frame(shard, [self.key_column])[self.key_column]]

    @property
    def _row_key(self) -> str | None:
        return None if self.settings.key or self._table.key else "row"

    def _frame_columns(self) -> list[str]:
        settings = self.settings
        return [self.key_column, *settings.target_columns, *settings.model_input_columns, *settings.slices]

    def _content_columns(self) -> set[str]:
        return set(self._inputs.columns) if self.settings.input_kind != "features" else set()


def _with_reason(columns: Sequence[str], table: Table) -> list[str]:
    return [*columns, REASON] if REASON in table.schema.names else list(columns)


def _read_or_reason(read: Callable[[], RawInput]) -> RawInput | InvalidRow:
    try:
        return read()
    except InvalidRow as invalid:
        return invalid
