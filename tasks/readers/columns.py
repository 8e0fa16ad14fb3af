"""Columns whose names tell what they are: quantiles (``q0.1``, ``M-lo-90``, (variable, level)), torch's counts."""

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
    negative_binomial,
    spec,
)

_LEVEL = r"(0?\.\d+(?:e-?\d+)?|\d(?:\.\d+)?e-\d+)"
_NAMED = re.compile(rf"(?:q|quantile|level)?[_ -]?{_LEVEL}", re.IGNORECASE)
_OF_A_MODEL = re.compile(rf"(.+?)[_-](?:ql|q|quantile)[_-]?{_LEVEL}", re.IGNORECASE)
_INTERVAL = re.compile(r"(.+?)-(lo|hi)-(\d+(?:\.\d+)?)")


class ColumnsReader(Reader):
    """A frame or a mapping whose columns name levels; other columns (an id, a time, the mean) are left alone."""

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
        places = _levels(names)
        if len(places) < 2:
            return None
        ordered = sorted(places)
        values = np.column_stack([as_array(columns[places[level]]) for level in ordered])
        if len(values) != rows:
            raise UnreadableOutputError(f"its columns have {len(values)} rows for {rows} input rows")
        return spec("quantiles", levels=ordered, values=values)


def _levels(names: list[Any]) -> dict[float, int]:
    """The place of each level's column."""
    places: dict[float, int] = {}
    models = set()
    for place, name in enumerate(names):
        if (spelled := _level_of(name)) is not None:
            models.add(spelled[0])
            places[spelled[1]] = place
    if len(models) > 1:
        shown = ", ".join(sorted(map(repr, models)))
        raise UnreadableOutputError(f"the columns hold the quantiles of several models ({shown}); return those of one")
    for model in models:
        if model and f"{model}-median" in names:
            places[0.5] = names.index(f"{model}-median")
    return places


def _level_of(name: Any) -> tuple[str, float] | None:
    """The model that a column is of, "" where it names none, and its level."""
    if isinstance(name, tuple):
        return _level_in(name)
    if isinstance(name, float) and 0.0 < name < 1.0:
        return "", name
    text = str(name).strip()
    if match := _INTERVAL.fullmatch(text):
        share = float(match[3]) / 100.0
        return (match[1], round((1.0 - share) / 2.0 if match[2] == "lo" else (1.0 + share) / 2.0, 12))
    if match := _NAMED.fullmatch(text):
        return "", float(match[1])
    if match := _OF_A_MODEL.fullmatch(text):
        return match[1], float(match[2])
    return None


def _level_in(name: tuple[Any, ...]) -> tuple[str, float] | None:
    """(variable, level), or (variable, coverage, "lower" or "upper")."""
    variable, level = str(name[0]), name[1] if len(name) > 1 else None
    try:
        share = float(level)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    if not 0.0 < share < 1.0:
        return None
    if len(name) == 2:
        return variable, share
    return variable, round((1.0 - share) / 2.0 if str(name[2]) == "lower" else (1.0 + share) / 2.0, 12)
