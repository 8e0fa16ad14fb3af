"""Some rows of a split as a split of their own: a file that is read as the split is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split
from congruence.tasks.runtime.atomic_files import whole_file


def split_of_rows(split: Split, rows: npt.NDArray[np.int64], path: Path, name: str) -> SplitSettings:
    """The split of these rows, each under the key or number that it has, written to ``path`` unless it is there.

    Args:
        split: opened.
        rows: their numbers, ascending.
        path: of a Parquet file, whose name tells split and rows.
        name: of the new split.
    """
    if not path.exists():
        with whole_file(path) as stream:
            _frame(split, rows).to_parquet(stream, index=False)
    settings = split.settings
    changes = {
        "name": name,
        "uri": str(path),
        "format": "parquet",
        "key": split.key_column,
        "image_root": None,
        "last": None,
        "new_rows_only": False,
    }
    return settings.model_copy(update=changes)


def _frame(split: Split, rows: npt.NDArray[np.int64]) -> pd.DataFrame:
    frames = []
    for shard in split.shards:
        first, last = np.searchsorted(rows, [shard.start, shard.stop])
        if first < last:
            frame = split.frame(shard, split.row_columns)
            frames.append(frame.loc[rows[first:last]])
    return pd.concat(frames, ignore_index=True)
