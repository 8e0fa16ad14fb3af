"""The table of a version's scores as it is logged: one row per row of the split, in few bytes each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.engine.results import CongruenceInfluence
from congruence.tasks.data.split import Shard
from congruence.tasks.scores.evaluation import INFLUENCE
from congruence.tasks.scores.metrics.columns import ROW_GROUP, ROW_TIME
from congruence.tasks.scores.split_rows import SplitRows


def with_design(frame: pd.DataFrame, split: SplitRows) -> pd.DataFrame:
    """``frame`` with the groups and times of all rows, where the split names them."""
    design = split.design()
    named = {ROW_GROUP: design.groups, ROW_TIME: design.time}
    return frame.assign(**{name: values for name, values in named.items() if values is not None})


def logged_columns(points: dict[str, Array], valid: Array) -> dict[str, Array | pd.Categorical]:
    """The scores of valid rows in their places, in the single precision in which they are logged; texts by their code.

    They are taken out of ``points``, so that no column is held twice.
    """
    return {name: _coded(over_all_rows(_single(points.pop(name)), valid)) for name in list(points)}


def _coded(values: Array) -> Array | pd.Categorical:
    if values.dtype != object:
        return values
    names = sorted(set(values) - {None})
    codes = {name: code for code, name in enumerate(names)}
    # Row by row, since pandas makes columns of 8 bytes on the way to one of 2.
    found = np.fromiter((codes.get(value, -1) for value in values), np.int16, len(values))
    return pd.Categorical.from_codes(found, pd.Index(names, dtype=str))


def _single(values: Array) -> Array:
    return values.astype(np.float32) if values.dtype == np.float64 else values


def over_all_rows(values: Array, valid: Array) -> Array:
    """Values of the valid rows in their places; NaN, or None for text, where a row is not valid."""
    if values.dtype.kind in "fO" and valid.all():
        return values
    is_text = values.dtype.kind in "UO"
    number = values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
    column = np.full(len(valid), None if is_text else np.nan, dtype=object if is_text else number)
    column[valid] = values
    return column


def influence_columns(influence: CongruenceInfluence) -> tuple[Array, Array]:
    """What each reference row contributes to the squared CCE and to the CCE, in single precision."""
    return _single(influence.squared), _single(influence.root)


def influence_table(columns: tuple[Array, Array], keys: Array | pd.Series[Any]) -> pd.DataFrame:
    """What each reference row contributes (``INFLUENCE``); rows of another split than ``keys`` go by their number."""
    n = len(columns[0])
    named = pd.Series(keys).reset_index(drop=True)
    names = named if len(named) == n else pd.Series(np.arange(n).astype(str))
    return pd.DataFrame(dict(zip(INFLUENCE, (names, *columns), strict=True)), copy=False)


def row_frame(split: SplitRows, reasons: Mapping[int, str], valid: Array) -> pd.DataFrame:
    """One row per row of the split: key, valid, reason, target and slices."""
    everything = Shard(0, 0, split.rows, "")
    columns = [name for name in (*split.settings.target_columns, *split.settings.slices) if name != split.key_column]
    frame = split.frame(everything, columns)
    if len(split.settings.target_columns) == 1:
        frame = frame.rename(columns={split.settings.target_columns[0]: "target"})
    frame.insert(0, "key", split.key_values(everything))
    frame.insert(1, "valid", valid)
    reason = np.full(split.rows, None, dtype=object)
    for row, why in reasons.items():
        reason[row] = why
    frame.insert(2, "reason", reason)
    return frame
