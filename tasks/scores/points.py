"""The scores of a version's rows, each by itself, and the table of them as it is logged, in few bytes a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.local_reading import PREFIX
from congruence.kernels.conditional_calibration.score_test import VersionCalibration
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.results import (
    CongruenceInfluence,
    CongruenceResult,
    CongruenceTest,
    benjamini_hochberg,
)
from congruence.kernels.pit import ORDERS, pit_values
from congruence.kernels.scores import point_scores, resolution
from congruence.tasks.data.shards import Shard
from congruence.tasks.scores.evaluation import INFLUENCE
from congruence.tasks.scores.metrics.registry import METRICS, ROW_GROUP, ROW_TIME
from congruence.tasks.scores.split_rows import SplitRows

CHUNK_ROWS = 2**16  # scores make several arrays of their rows in passing


def score_points(
    result: CongruenceResult,
    predictive: Distribution,
    targets: Array,
    *,
    seed: int,
    keys: Array | None,
    test: CongruenceTest | None = None,
    calibration: VersionCalibration | None = None,
) -> dict[str, Array]:
    """Every score of every evaluated row; ``keys`` name the rows for the randomised PIT of counts.

    ``calibration_fault`` is text, all others are numbers.
    """
    points = {"cce": result.values, "cce_noise_floor": result.noise_floor_values, "cce_excess": result.excess_values}
    if test is not None:
        points["cce_p_value"] = test.point_p_values
        points["cce_q_value"] = benjamini_hochberg(test.point_p_values)
    if calibration is not None:
        points |= calibration.columns()
        if predictive.quantile_levels is not None and f"{PREFIX}fault" in points:
            # Of a few levels skew and tails cannot be told from bias and spread, which they show, too.
            bias, spread = (np.abs(points[f"{PREFIX}{order}"]) for order in ORDERS[:2])
            plain = np.where(bias >= spread, *ORDERS[:2])
            points[f"{PREFIX}fault"] = np.where(points[f"{PREFIX}fault"] == "", "", plain).astype(object)
            for name in ("shift", "factor"):  # in predicted spreads, which are an interpolation
                del points[f"{PREFIX}{name}"]
    names, step = np.arange(len(targets)) if keys is None else keys, resolution(targets)
    found: dict[str, Array] = {}
    scored: dict[str, int] = {}
    for start in range(0, max(1, len(targets)), CHUNK_ROWS):
        chunk = slice(start, start + CHUNK_ROWS)
        scores = point_scores(predictive[chunk], targets[chunk], step)
        if targets.ndim == 1:
            scores["pit"] = pit_values(targets[chunk], predictive[chunk], seed=seed, keys=names[chunk])
        for metric in METRICS.values():
            if metric.point is not None and (made := metric.point(targets[chunk], predictive[chunk])) is not None:
                scores[metric.column] = made
        for name, values in scores.items():
            if name not in found:
                found[name], scored[name] = np.empty((len(targets), *values.shape[1:]), values.dtype), 0
            found[name][chunk] = values
            scored[name] += len(values)
    # A score that a part of the rows does not have (a density, for example) is no column.
    return points | {name: values for name, values in found.items() if scored[name] == len(targets)}


def with_design(frame: pd.DataFrame, split: SplitRows) -> pd.DataFrame:
    """``frame`` with the groups and times of all rows, where the split names them."""
    design = split.design()
    named = {ROW_GROUP: design.groups, ROW_TIME: design.time}
    return frame.assign(**{name: values for name, values in named.items() if values is not None})


def logged_columns(points: dict[str, Array], valid: Array) -> dict[str, Array | pd.Categorical]:
    """The scores of valid rows in their places, in the single precision in which they are logged; texts by their code.

    They are taken out of ``points``, so that no column is held twice. Means and spreads of vectors have no column.
    """
    columns = [name for name, values in points.items() if values.ndim == 1]
    return {name: _coded(over_all_rows(_single(points.pop(name)), valid)) for name in columns}


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
