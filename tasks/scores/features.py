"""The named features of a split's rows: what encoder and model are given that is not an image, a text or a vector."""

from __future__ import annotations

import pandas as pd

from congruence.kernels.arrays import Array
from congruence.tasks.sources import Shard, Split

MOST_VALUES = 30
"""Distinct values of a column of text beyond which it is a name rather than a feature."""


def named_features(split: Split, valid: Array) -> pd.DataFrame:
    """Columns of numbers, truth values or few words, one row per valid row; the index is the row number in the split.

    They are the inputs of encoder and model and the slices, without the targets; none where these are all images, texts
    or vectors.
    """
    settings = split.settings
    inputs = settings.input_columns if settings.input_kind == "features" else []
    given = [name for name in settings.model_input_columns if name not in settings.input_columns]
    columns = list(dict.fromkeys([*inputs, *given, *settings.slices]))
    columns = [name for name in columns if name not in settings.target_columns]
    if not columns:
        return pd.DataFrame(index=pd.RangeIndex(split.rows)[valid])
    frame = split.frame(Shard(0, 0, split.rows, ""), columns).reset_index(drop=True).loc[valid]
    return frame[[name for name in frame if _is_feature(frame[name])]]


def _is_feature(column: pd.Series) -> bool:
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return True
    known = column.dropna()
    if not known.map(lambda value: isinstance(value, (str, bool))).all():
        return False
    return bool(known.nunique() <= MOST_VALUES)
