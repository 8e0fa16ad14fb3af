"""Columns whose names tell what they are: quantiles (``q0.1``, ``M-lo-90``), draws (``draw_0``), torch's counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from congruence.tasks.readers.base import (
    Asked,
    Reader,
    Spec,
    UnreadableOutputError,
    as_array,
    as_normal,
    negative_binomial,
    spec,
)

_LEVEL = r"(0?\.\d+(?:e-?\d+)?|\d(?:\.\d+)?e-\d+)"
_NAMED = re.compile(rf"(?:(?:q|quantile|level|alpha|tau|p)[_ =-]?)?{_LEVEL}", re.IGNORECASE)
_OF_A_MODEL = re.compile(rf"(.+?)[_-](?:ql|q|quantile)[_-]?{_LEVEL}", re.IGNORECASE)
_INTERVAL = re.compile(r"(.+?)-(lo|hi)-(\d+(?:\.\d+)?)")
_ENDS = re.compile(r"(?:pi_|ci_)?(lower|upper|lo|hi)[_ -]?(0?\.\d+|\d{2}(?:\.\d+)?)%?", re.IGNORECASE)
_PERCENT = re.compile(
    r"(?:(?:q|quantile|p|percentile|perc|pct)[_ -]?(\d{1,3}(?:\.\d+)?)|(\d{1,2}(?:\.\d+)?)%)", re.IGNORECASE
)
_NUMBER = re.compile(r"\d{1,2}(?:\.\d+)?")
_SAYS_SO = re.compile(
    r"(?:y[_ ]?)?(?:pred(?:icted|ictions?)?|hat|forecasts?)[_ .-]+(?=\S)|y_(?=(?:q|p|quantile)_?\d)", re.IGNORECASE
)
_LEAST_OF_PERCENTS = 50.0
"""q1, q2, q3 may be quartiles, or only numbered: of percents, one at least is from the upper half."""
_DRAWS = re.compile(
    r"(.*(?<![a-z])(?:draw|sample|member|simulation|sim|ens|ensemble|realization)s?)[_ -]?(\d+)", re.IGNORECASE
)
_FEWEST_DRAWS = 3
_LOCATIONS = ("mean", "mu", "mean_prediction", "y_mean", "pred_mean", "prediction_mean")
_POINTS = ("prediction", "predicted", "pred", "y_pred", "y_hat", "yhat")
_SPREADS = ("std", "sd", "sigma", "stddev", "std_dev", "stdev", "y_std", "pred_std", "prediction_std", "uncertainty")
_VARIANCES = ("var", "variance", "sigma2", "y_var", "pred_var")


def _plain(name: Any) -> str:
    """A name without what says that it is of a prediction, and levels as Python writes them: 10% of "pred_10 %".

    A level may have a comma or, where columns take no point, a low line: 0.1 of "q0,1" and "quantile_0_1".
    """
    plain = _SAYS_SO.sub("", str(name).strip(), count=1).replace(" %", "%")
    return re.sub(r"(?<=\d),(?=\d)|(?<=\D0)_(?=\d)", ".", plain)


class ColumnsReader(Reader):
    """A frame or a mapping whose columns name levels, draws, or a mean and a spread; others (an id) are left alone."""

    order = 100

    def read(self, output: Any, rows: int, asked: Asked) -> Spec | None:
        """See the class.

        Raises:
            UnreadableOutputError: the columns of several models.
        """
        if hasattr(output, "columns") and hasattr(output, "iloc"):
            names, columns = list(output.columns), [output.iloc[:, place] for place in range(output.shape[1])]
        elif isinstance(output, Mapping):
            names, columns = list(output), list(output.values())
        else:
            return None
        if {"total_count", "probs"} <= set(map(str, names)):  # LightGBMLSS: torch's parameters
            by_name = dict(zip(map(str, names), columns, strict=True))
            return negative_binomial(by_name["total_count"], by_name["probs"])
        family, places, levels = told_by(names)
        values = [as_array(columns[place]) for place in places]
        if not family or (family == "normal" and len(values[0]) != rows):
            return None
        if family == "normal":
            mean, spread = (str(names[place]) for place in places)
            kind = "variance" if is_variance(spread) else "standard deviation"
            return as_normal(*values, squared=kind == "variance").noted(
                f"columns {mean!r} and {spread!r} are read as mean and {kind} of a normal distribution; "
                "predictions: {family: ..., columns: {...}} says otherwise"
            )
        matrix = np.column_stack(values)
        if family == "samples":
            return spec(family, values=matrix)
        if len(matrix) != rows:
            raise UnreadableOutputError(f"its columns have {len(matrix)} rows for {rows} input rows")
        return spec(family, levels=levels, values=matrix)


def told_by(names: list[Any]) -> tuple[str, list[int], list[float]]:
    """The family that names of columns tell, the places of its columns, and levels; "" of no family.

    Two levels or more, numbered draws, or mean and spread.

    Raises:
        UnreadableOutputError: the columns of several models.
    """
    if len(found := _levels(names)) >= 2:
        return "quantiles", [found[level] for level in sorted(found)], sorted(found)
    draws = _numbered_draws(names)
    places = draws or [*(_mean_and_spread(names) or ())]
    return "samples" if draws else "normal" if places else "", places, []


def _mean_and_spread(names: list[Any]) -> tuple[int, int] | None:
    """The places of a mean and a standard deviation, or a variance, by their usual names; None where several can be."""
    plain = [_plain(name).lower() for name in names]
    means = [place for place, name in enumerate(plain) if name in _LOCATIONS]
    means = means or [place for place, name in enumerate(plain) if name in _POINTS]
    spreads = [place for place, name in enumerate(plain) if name in (*_SPREADS, *_VARIANCES)]
    return (means[0], spreads[0]) if len(means) == len(spreads) == 1 else None


def is_variance(name: str) -> bool:
    """Whether a spread is called as a variance."""
    return _plain(name).lower() in _VARIANCES


def called_as_moment(name: str) -> bool:
    """Whether a column is called as a predicted mean, median or spread: beside other predictions it is no input."""
    return _plain(name).lower() in (*_LOCATIONS, *_POINTS, *_SPREADS, *_VARIANCES, "median")


def _numbered_draws(names: list[Any]) -> list[int]:
    """Places of columns that are called draws and numbered (``draw_0``, ``member3``), in order; none of several."""
    found: dict[str, dict[int, int]] = {}
    for place, name in enumerate(names):
        if isinstance(name, str) and (match := _DRAWS.fullmatch(name.strip())):
            found.setdefault(match[1], {})[int(match[2])] = place
    draws = [each for each in found.values() if len(each) >= _FEWEST_DRAWS]
    return [draws[0][number] for number in sorted(draws[0])] if len(draws) == 1 else []


def _levels(names: list[Any]) -> dict[float, int]:
    """The place of each level's column."""
    places: dict[float, int] = {}
    models = set()
    percents = [(place, _percent(name)) for place, name in enumerate(names)]
    known = [percent for _, percent in percents if percent is not None]
    as_percents = len(known) > 1 and max(known) >= _LEAST_OF_PERCENTS
    if not known and (bare := _bare_percents(names)):
        percents, as_percents = bare, True
    for place, percent in percents:
        spelled = _level_of(names[place])
        if spelled is None and as_percents and percent is not None:
            spelled = ("", round(percent / 100.0, 12))
        if spelled is not None:
            models.add(spelled[0])
            places[spelled[1]] = place
    if len(models) > 1:
        shown = ", ".join(sorted(map(repr, models)))
        raise UnreadableOutputError(f"the columns hold the quantiles of several models ({shown}); return those of one")
    medians = [place for place, name in enumerate(names) if _plain(name).lower() == "median"]
    if models == {""} and len(places) == 2 and medians:
        places[0.5] = medians[0]  # beside the ends of an interval
    for model in models:
        if model and f"{model}-median" in names:
            places[0.5] = names.index(f"{model}-median")
    return places


def _bare_percents(names: list[Any]) -> list[tuple[int, float | None]]:
    """Levels by place of numbers alone (``5``, ``50``, ``95``), where they lie evenly around 50; else empty."""
    numbers = [float(name) if isinstance(name, str) and _NUMBER.fullmatch(name.strip()) else None for name in names]
    found = {number for number in numbers if number is not None}
    is_even = len(found) > 2 and 50.0 in found and found == {100.0 - number for number in found}
    return list(enumerate(numbers)) if is_even else []


def _percent(name: Any) -> float | None:
    """10 of ``q10``, ``p10`` and ``10%``, 2.5 of ``q025`` and ``p2.5``; None of other names."""
    match = None if isinstance(name, (tuple, float)) else _PERCENT.fullmatch(_plain(name))
    if match is None:
        return None
    digits = match[1] or match[2]
    percent = float(digits) / 10.0 if len(digits) == 3 and "." not in digits else float(digits)
    return percent if 0.0 < percent < 100.0 else None


def _level_of(name: Any) -> tuple[str, float] | None:
    """The model that a column is of, "" where it names none, and its level."""
    if isinstance(name, tuple):
        return _level_in(name)
    if isinstance(name, float) and 0.0 < name < 1.0:
        return "", name
    text = _plain(name)
    if match := _INTERVAL.fullmatch(text):
        return match[1], _end(float(match[3]) / 100.0, lower=match[2] == "lo")
    if match := _ENDS.fullmatch(text):
        share = float(match[2]) if match[2].startswith((".", "0.")) else float(match[2]) / 100.0
        return "", _end(share, lower=match[1].lower() in ("lower", "lo"))
    if match := _NAMED.fullmatch(text):
        return "", float(match[1])
    if match := _OF_A_MODEL.fullmatch(text):
        return match[1], float(match[2])
    return None


def _level_in(name: tuple[Any, ...]) -> tuple[str, float] | None:
    """(variable, level), or (variable, coverage, "lower" or "upper")."""
    try:
        share = float(name[1])
    except (TypeError, ValueError, IndexError):
        return None
    if not 0.0 < share < 1.0:
        return None
    return str(name[0]), share if len(name) == 2 else _end(share, lower=str(name[2]) == "lower")


def _end(share: float, *, lower: bool) -> float:
    """The level of an end of the central interval that covers ``share``."""
    return round((1.0 - share) / 2.0 if lower else (1.0 + share) / 2.0, 12)
