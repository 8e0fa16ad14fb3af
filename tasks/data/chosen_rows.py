"""Some rows of a split as a split of their own: a file that is read as the split is."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split
from congruence.tasks.runtime.files import whole_file


def split_of_rows(split: Split, rows: npt.NDArray[np.int64], path: Path, name: str) -> SplitSettings:
    """The split of these rows, each under the key or number that it has, written to ``path`` unless it is there.

    The numbers of the rows ascend; the name of the Parquet file tells split and rows.

    Raises:
        SplitError: no rows.
    """
    if not path.exists():
        with whole_file(path) as stream:
            _write(split, rows, stream)
    at = {"name": name, "uri": str(path), "format": "parquet", "key": split.key_column}
    return split.settings.model_copy(update={**at, "image_root": None, "last": None, "new_dates_only": False})


def _write(split: Split, rows: npt.NDArray[np.int64], stream: BinaryIO) -> None:
    """Shard by shard, so that few rows are in memory."""
    writer: pq.ParquetWriter | None = None
    for shard in split.shards:
        first, last = np.searchsorted(rows, [shard.start, shard.stop])
        if first < last:
            frame = split.frame(shard, split.row_columns).loc[rows[first:last]]
            if writer is None:
                writer = pq.ParquetWriter(stream, _schema(split, frame))
            writer.write_table(pa.Table.from_pandas(frame, writer.schema, preserve_index=False))
    if writer is None:
        raise SplitError(f"split {split.name!r}: none of its {split.rows} rows is chosen; give more rows")
    writer.close()


def _schema(split: Split, frame: pd.DataFrame) -> pa.Schema:
    """The types of the first shard's columns; of one without a value there, that of the source."""
    found = pa.Schema.from_pandas(frame, preserve_index=False)
    types = {each.name: split.column_type(each.name) if pa.types.is_null(each.type) else each.type for each in found}
    return pa.schema(list(types.items()))
