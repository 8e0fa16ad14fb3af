"""Quantiles that columns or intervals spell: ``q0.1``, ``M-lo-90``, ``M_ql0.1``, (variable, level), MAPIE's arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from congruence.tasks.model_outputs.law import Law, UnreadableOutputError, as_array, law
from congruence.tasks.model_outputs.scipy_stats import negative_binomial

_LEVEL = r"(0?\.\d+(?:e-?\d+)?|\d(?:\.\d+)?e-\d+)"
_NAMED = re.compile(rf"(?:q|quantile|level)?[_ -]?{_LEVEL}", re.IGNORECASE)
_OF_A_MODEL = re.compile(rf"(.+?)[_-](?:ql|q|quantile)[_-]?{_LEVEL}", re.IGNORECASE)
_INTERVAL = re.compile(r"(.+?)-(lo|hi)-(\d+(?:\.\d+)?)")


def read_quantile_columns(found: Any, rows: int) -> Law | None:
    """A frame or a mapping whose columns name levels; other columns (an id, a time, the mean) are left alone.

    Raises:
        UnreadableOutputError: the columns of several models.
    """
    if hasattr(found, "columns") and hasattr(found, "iloc"):
        names, columns = list(found.columns), [found.iloc[:, place] for place in range(found.shape[1])]
    elif isinstance(found, Mapping):
        names, columns = list(found), list(found.values())
    else:
        return None
    if {"total_count", "probs"} <= set(map(str, names)):  # LightGBMLSS: torch's parameters
        by_name = dict(zip(map(str, names), columns, strict=True))
        return negative_binomial(by_name["total_count"], by_name["probs"])
    levels: dict[float, int] = {}
    models = set()
    for place, name in enumerate(names):
        if (spelled := _level_of(name)) is None:
            continue
        model, level = spelled
        models.add(model)
        levels[level] = place
    if len(models) > 1:
        shown = ", ".join(sorted(map(repr, models)))
        raise UnreadableOutputError(f"the columns hold the quantiles of several models ({shown}); return those of one")
    if len(levels) < 2:
        return None
    if (model := next(iter(models))) and f"{model}-median" in names:
        levels[0.5] = names.index(f"{model}-median")
    ordered = sorted(levels)
    values = np.column_stack([as_array(columns[levels[level]]) for level in ordered])
    if len(values) != rows:
        raise UnreadableOutputError(f"its columns have {len(values)} rows for {rows} input rows")
    return law("quantiles", levels=ordered, values=values)


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


def read_intervals(found: Any, rows: int, coverages: Sequence[float]) -> Law | None:
    """MAPIE's answer: the prediction (rows,) and the ends of the intervals (rows, 2, L) of these coverages."""
    if not (isinstance(found, tuple) and len(found) == 2 and np.ndim(found[1]) == 3):
        return None
    ends = as_array(found[1])
    if ends.shape[:2] != (rows, 2) or ends.shape[2] != len(coverages):
        return None
    levels = [(1.0 - share) / 2.0 for share in coverages] + [(1.0 + share) / 2.0 for share in coverages]
    values = np.concatenate([ends[:, 0], ends[:, 1]], axis=1)
    order = np.argsort(levels)
    return law("quantiles", levels=np.round(np.asarray(levels)[order], 12), values=values[:, order])
