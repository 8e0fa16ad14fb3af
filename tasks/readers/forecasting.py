"""Forecasters: sktime's, which are asked for steps of time, and GluonTS's, one object a series for each horizon."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from congruence.tasks.readers.base import Asked, Call, Known, Reader, Spec, UnreadableOutputError, is_of, spec
from congruence.tasks.readers.torch_distributions import TorchReader

_STEPS = ("step", "horizon", "fh")


class SktimeReader(Reader):
    """sktime's forecasters, for the times of the rows.

    A time is the index where that is of dates, the one column of dates, or a column ``step`` (``horizon``, ``fh``) of
    1, 2, ... after the last time of training. The other columns are exogenous variables.
    """

    def known(self, model: Any) -> Known | None:
        if not is_of(model, "sktime", "BaseForecaster"):
            return None
        predicts = model.get_tag("capability:pred_int", tag_value_default=False, raise_error=False)
        return Known(Call("predict_proba"), "predict_proba at the times of the rows") if predicts else None

    def ask(self, model: Any, call: Call, inputs: Any) -> Any:
        """Returns what is forecast for the times of the rows, in the order of the rows.

        Raises:
            UnreadableOutputError: no column says the time.
        """
        if not is_of(model, "sktime", "BaseForecaster"):
            return NotImplemented
        from sktime.forecasting.base import ForecastingHorizon

        times, rest = _times(model, inputs)
        asked, first, places = np.unique(np.asarray(times), return_index=True, return_inverse=True)
        relative = asked.dtype.kind in "iuf"
        steps = asked.astype(int).tolist() if relative else times[first]
        horizon = ForecastingHorizon(steps, is_relative=relative, freq=getattr(model.cutoff, "freq", None))
        exogenous = None
        if rest.shape[1] and model.get_tag("capability:exogenous", tag_value_default=True, raise_error=False):
            exogenous = rest.iloc[first].set_axis(horizon.to_absolute_index(model.cutoff), axis=0)
        method = getattr(model, call.method)
        return method(horizon, exogenous, *call.arguments, **call.keywords).iloc[places]


class GluonTsReader(Reader):
    """A list of forecasts: one row a series (and all its steps as one vector), or one row a step, series by series."""

    def read(self, output: Any, rows: int, asked: Asked) -> Spec | None:
        if isinstance(output, (str, bytes)) or not isinstance(output, Sequence) or not len(output):
            return None
        if all(hasattr(one, "samples") for one in output):
            return _of_draws([np.asarray(one.samples, dtype=np.float64) for one in output], rows)
        if all(hasattr(one, "forecast_array") and hasattr(one, "forecast_keys") for one in output):
            return _of_quantiles(output, rows)
        if len(output) == 1 and hasattr(output[0], "distribution"):
            return TorchReader().read(output[0].distribution, rows, asked)
        return None


def _times(model: Any, frame: Any) -> tuple[Any, Any]:
    """The time of each row, as the forecaster was fitted on (dates or periods) or as steps; and the other columns."""
    import pandas as pd

    periods = isinstance(model.cutoff, pd.PeriodIndex)
    if isinstance(frame.index, (pd.DatetimeIndex, pd.PeriodIndex)):
        found, rest = frame.index, frame
    else:
        kinds = {name: frame[name].dtype for name in frame.columns}
        dates = [name for name, kind in kinds.items() if kind.kind == "M" or str(kind).startswith("period")]
        steps = [name for name in frame.columns if str(name).lower() in _STEPS]
        if len(dates) != 1 and not steps:
            names, count = ", ".join(repr(str(name)) for name in frame.columns), "more than one" if dates else "none"
            raise UnreadableOutputError(
                f"sktime's {type(model).__name__} forecasts times, and of the columns {names} {count} is of dates; "
                "give the rows one column of dates, or a column 'step' of 1, 2, ... after the last time of training"
            )
        name = dates[0] if len(dates) == 1 else steps[0]
        rest = frame.drop(columns=name)
        found = pd.Index(frame[name]) if len(dates) == 1 else frame[name]
    if periods and isinstance(found, pd.DatetimeIndex):
        found = found.to_period(model.cutoff.freq)
    return found, rest


def _of_draws(draws: list[Any], rows: int) -> Spec:
    """Each (draws, horizon)."""
    stacked = np.stack([one if one.ndim == 2 else one[:, None] for one in draws])  # (series, draws, horizon)
    series, count, horizon = stacked.shape
    if rows == series:
        return spec("samples", values=stacked[:, :, 0] if horizon == 1 else stacked)
    _require(rows, series, horizon)
    return spec("samples", values=stacked.transpose(0, 2, 1).reshape(rows, count))


def _of_quantiles(found: Sequence[Any], rows: int) -> Spec:
    keys = [str(key) for key in found[0].forecast_keys]
    levels = {}
    for place, key in enumerate(keys):
        with suppress(ValueError):  # "mean"
            levels[place] = float(key)
    order = sorted((place for place, level in levels.items() if 0.0 < level < 1.0), key=levels.__getitem__)
    if len(order) < 2:
        raise UnreadableOutputError(f"forecasts of {', '.join(keys)}: two or more quantile levels are needed")
    stacked = np.stack([np.asarray(one.forecast_array, dtype=np.float64)[order] for one in found])
    series, count, horizon = stacked.shape
    if rows != series or horizon != 1:
        _require(rows, series, horizon)
    values = stacked.transpose(0, 2, 1).reshape(rows, count)
    return spec("quantiles", levels=[levels[place] for place in order], values=values)


def _require(rows: int, series: int, horizon: int) -> None:
    if rows != series * horizon:
        raise UnreadableOutputError(
            f"{series} forecasts of horizon {horizon} for {rows} input rows; give one row a series (and horizon 1), or "
            f"one row a step, series by series ({series * horizon} rows)"
        )
