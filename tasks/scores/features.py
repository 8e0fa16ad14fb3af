"""The named features of a split's rows: what encoder and model are given that is not an image, a text or a vector."""

from __future__ import annotations

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.tasks.data.split import Shard
from congruence.tasks.scores.segments import searched_rows
from congruence.tasks.scores.split_rows import SplitRows

MOST_VALUES = 30
"""Distinct values of a column of text beyond which it is a name rather than a feature."""
HIGHEST, LOWEST = 2_000, 10
"""Rows of the highest CCE, and of the lowest, that a report shows."""
_ROWS_AT_ONCE = 2**16


def rows_looked_at(cce: Array, seed: int) -> tuple[Array, Array]:
    """Which of the evaluated rows features are read of: of all of them a long split of many columns has no room.

    Returns:
        Those in which places are looked for (``searched_rows``), the same for every version, and these with the rows
        of highest and of lowest CCE; both in order.
    """
    logged = cce.astype(np.float32)  # in which a report orders them: of equal ones it shows the first
    lowest, highest = (np.argsort(sign * logged, kind="stable") for sign in (1, -1))
    searched = np.sort(searched_rows(len(cce), seed))
    return searched, np.union1d(searched, np.concatenate([lowest[:LOWEST], highest[:HIGHEST]]))


def named_features(split: SplitRows, rows: Array) -> pd.DataFrame:
    """Columns of numbers, truth values or few words of some rows of the split; the index is the row number.

    They are the inputs of encoder and model and the slices, without the targets; none where these are all images, texts
    or vectors.

    Args:
        split: the split.
        rows: row numbers, in order.
    """
    settings = split.settings
    inputs = settings.input_columns if settings.input_kind == "features" else []
    given = [name for name in settings.model_input_columns if name not in settings.input_columns]
    columns = list(dict.fromkeys([*inputs, *given, *settings.slices]))
    columns = [name for name in columns if name not in settings.target_columns]
    if not columns or not len(rows):
        return pd.DataFrame(index=pd.Index(rows))
    parts = []
    for start in range(0, split.rows, _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, split.rows)
        here = rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)]
        if len(here):
            parts.append(split.frame(Shard(0, start, stop - start, ""), columns).iloc[here - start].set_index(here))
    frame = pd.concat(parts)
    return frame[[name for name in frame if _is_feature(frame[name])]]


def numbers_of_inputs(split: SplitRows, features: pd.DataFrame) -> dict[str, Array]:
    """The columns of numbers among ``features`` that the encoder is given, by which regions of its space are named."""
    if split.settings.input_kind != "features":
        return {}
    inputs = features[[name for name in split.settings.input_columns if name in features]]
    return {str(name): inputs[name].to_numpy() for name in inputs.select_dtypes("number").columns}


def _is_feature(column: pd.Series) -> bool:
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return True
    known = column.dropna()
    return all(isinstance(value, (str, bool)) for value in known) and bool(known.nunique() <= MOST_VALUES)
