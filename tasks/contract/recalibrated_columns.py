"""How the output of a recalibrated version spells its laws: those of its parent, and the map they are read through.

An output that holds the columns ``recalibration_shift``, ``recalibration_factor`` and, where the shape is corrected,
``recalibration_share_LEVEL`` (a ``NormalScoreMap``) says so itself: its laws are those that its columns
``uncorrected_NAME`` spell by the parent's own settings, read through the map. Nobody takes these for corrected ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.normal_score_map import IDENTITY_LEVELS, NormalScoreMap
from congruence.tasks.contract.columns import numeric

UNCORRECTED = "uncorrected_"
SHIFT, FACTOR, SHARE = "recalibration_shift", "recalibration_factor", "recalibration_share_"


def is_recalibrated(columns: Mapping[str, Array]) -> bool:
    """Whether these are the columns of a law and of the map that it is read through."""
    return SHIFT in columns and FACTOR in columns


def uncorrected(columns: Mapping[str, Array]) -> dict[str, Array]:
    """The parent's own output columns."""
    return {name.removeprefix(UNCORRECTED): values for name, values in columns.items() if name.startswith(UNCORRECTED)}


def score_map_columns(score_map: NormalScoreMap, *, with_shape: bool) -> dict[str, Array]:
    """The map as columns, one row each."""
    columns = {SHIFT: score_map.shift, FACTOR: score_map.factor}
    if with_shape:
        inner = range(1, len(score_map.levels) - 1)
        columns |= {f"{SHARE}{float(score_map.levels[k])!r}": score_map.shares[:, k] for k in inner}
    return columns


def read_score_map(columns: Mapping[str, Array], start: int = 0) -> NormalScoreMap:
    """The map that ``score_map_columns`` spelled.

    Raises:
        ContractError, InvalidInputError: values that are no map, by column and row.
    """
    shift, factor = (numeric(columns[name], name, start) for name in (SHIFT, FACTOR))
    names = sorted((name for name in columns if name.startswith(SHARE)), key=_level)
    if not names:
        return NormalScoreMap(shift, factor, IDENTITY_LEVELS, np.tile(IDENTITY_LEVELS, (len(shift), 1)))
    inner = np.column_stack([numeric(columns[name], name, start) for name in names])
    ends = np.zeros((len(inner), 1))
    levels = np.array([0.0, *(_level(name) for name in names), 1.0])
    return NormalScoreMap(shift, factor, levels, np.concatenate([ends, inner, ends + 1.0], axis=1))


def _level(name: str) -> float:
    return float(name.removeprefix(SHARE))
