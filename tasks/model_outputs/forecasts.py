"""GluonTS forecasts: one object a series, with draws, quantiles or a distribution for each step of its horizon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from congruence.tasks.model_outputs.law import Law, UnreadableOutputError, law
from congruence.tasks.model_outputs.torch_distributions import read_torch


def read_forecasts(found: Any, rows: int) -> Law | None:
    """A list of forecasts: one row a series (and all its steps as one vector), or one row a step, series by series."""
    if isinstance(found, (str, bytes)) or not isinstance(found, Sequence) or not len(found):
        return None
    if all(hasattr(one, "samples") for one in found):
        return _of_draws([np.asarray(one.samples, dtype=np.float64) for one in found], rows)
    if all(hasattr(one, "forecast_array") and hasattr(one, "forecast_keys") for one in found):
        return _of_quantiles(found, rows)
    if len(found) == 1 and hasattr(found[0], "distribution"):
        return read_torch(found[0].distribution, rows)
    return None


def _of_draws(draws: list[Any], rows: int) -> Law:
    """Each (draws, horizon)."""
    stacked = np.stack([one if one.ndim == 2 else one[:, None] for one in draws])  # (series, draws, horizon)
    series, count, horizon = stacked.shape
    if rows == series:
        return law("samples", values=stacked[:, :, 0] if horizon == 1 else stacked)
    _require(rows, series, horizon)
    return law("samples", values=stacked.transpose(0, 2, 1).reshape(rows, count))


def _of_quantiles(found: Sequence[Any], rows: int) -> Law:
    keys = [str(key) for key in found[0].forecast_keys]
    chosen = [place for place, key in enumerate(keys) if _is_level(key)]
    if len(chosen) < 2:
        raise UnreadableOutputError(f"forecasts of {', '.join(keys)}: two or more quantile levels are needed")
    order = sorted(chosen, key=lambda place: float(keys[place]))
    stacked = np.stack([np.asarray(one.forecast_array, dtype=np.float64)[order] for one in found])
    series, count, horizon = stacked.shape
    if rows != series or horizon != 1:
        _require(rows, series, horizon)
    values = stacked.transpose(0, 2, 1).reshape(rows, count)
    return law("quantiles", levels=[float(keys[place]) for place in order], values=values)


def _is_level(key: str) -> bool:
    try:
        return 0.0 < float(key) < 1.0
    except ValueError:
        return False


def _require(rows: int, series: int, horizon: int) -> None:
    if rows != series * horizon:
        raise UnreadableOutputError(
            f"{series} forecasts of horizon {horizon} for {rows} input rows; give one row a series (and horizon 1), or "
            f"one row a step, series by series ({series * horizon} rows)"
        )
