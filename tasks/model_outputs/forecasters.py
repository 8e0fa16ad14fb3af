"""sktime's forecasters, which are asked for steps of time: a column of the rows says which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from congruence.tasks.model_outputs.law import UnreadableOutputError, is_of

_STEPS = ("step", "horizon", "fh")


def is_forecaster(model: Any) -> bool:
    """Whether ``model`` is a forecaster of sktime."""
    return is_of(model, "sktime", "BaseForecaster")


def forecast(model: Any, method: Callable[..., Any], frame: Any, *given: Any, **keywords: Any) -> Any:
    """What ``method(fh, X)`` of a forecaster says for the times of the rows, in the order of the rows.

    A time is the index where that is of dates, the one column of dates, or a column ``step`` (``horizon``, ``fh``) of
    1, 2, ... after the last time of training. The other columns are exogenous variables.

    Raises:
        UnreadableOutputError: no column says the time.
    """
    from sktime.forecasting.base import ForecastingHorizon

    times, rest = _times(model, frame)
    asked, first, places = np.unique(np.asarray(times), return_index=True, return_inverse=True)
    relative = asked.dtype.kind in "iuf"
    steps = asked.astype(int).tolist() if relative else times[first]
    horizon = ForecastingHorizon(steps, is_relative=relative, freq=getattr(model.cutoff, "freq", None))
    exogenous = None
    if rest.shape[1] and model.get_tag("capability:exogenous", tag_value_default=True, raise_error=False):
        exogenous = rest.iloc[first].set_axis(horizon.to_absolute_index(model.cutoff), axis=0)
    return method(horizon, exogenous, *given, **keywords).iloc[places]


def _times(model: Any, frame: Any) -> tuple[Any, Any]:
    """The time of each row, as the forecaster was fitted on (dates or periods) or as steps; and the other columns."""
    import pandas as pd

    periods = isinstance(model.cutoff, pd.PeriodIndex)
    if isinstance(frame.index, (pd.DatetimeIndex, pd.PeriodIndex)):
        found, rest = frame.index, frame
    else:
        dates = [name for name in frame.columns if frame[name].dtype.kind == "M" or _is_period(frame[name])]
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


def _is_period(column: Any) -> bool:
    return str(column.dtype).startswith("period")
