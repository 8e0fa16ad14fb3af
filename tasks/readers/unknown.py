"""The error for what no reader knows: what was found, and the three nearest ways to say what it means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from congruence.tasks.readers.base import UnreadableOutputError, is_quantile_regression

_OWN = "log it with log_predictive_model and a function of the frame that returns a distribution of congruence.kernels"


def unknown(output: Any, rows: int, model: Any = None) -> UnreadableOutputError:
    """What was found (class, shape or columns, attributes), and three ways to say how it is read."""
    found, ways = _described(output, rows, model)
    listed = "; ".join(f"({number}) {way}" for number, way in enumerate(ways[:3], 1))
    return UnreadableOutputError(f"{found}; no family is known for it. Say what it is: {listed}")


def _described(output: Any, rows: int, model: Any) -> tuple[str, list[str]]:
    if (hasattr(output, "columns") and hasattr(output, "iloc")) or isinstance(output, Mapping):
        names = [str(name) for name in (output.columns if hasattr(output, "columns") else output)]
        return f"its output is a {_class(output)} with columns {_list(names)}", _for_columns(names)
    shape = _shape(output)
    if isinstance(output, tuple):
        parts = ", ".join(f"{_class(part)} of shape {_shape(part)}" for part in output)
        found = f"its output is a tuple ({parts})"
        return found, ["predictions: {method: 'predict(return_std=True)'} where these are mean and standard deviation",
                       "predictions: {method: ...} with the method that returns its distribution", _OWN]  # fmt: skip
    if shape is not None and len(shape) >= 1 and _is_numeric(output):
        return f"its output is a {_class(output)} of shape {shape} for {rows} rows", _for_arrays(shape, rows, model)
    public = [name for name in dir(output) if not name.startswith("_")]
    return f"its output is a {_class(output)} with attributes {_list(public)}", [
        "predictions: {method: ...} with another method of the model, whose answer is a scipy.stats, torch, skpro or "
        "NGBoost distribution, an array or a DataFrame",
        "return columns that spell it, and give predictions: {family: normal, columns: {loc: ..., scale: ...}}",
        _OWN,
    ]


_LOW, _HIGH = ("lower", "low", "lo", "min"), ("upper", "high", "hi", "max")
_MIDDLE = ("median", "middle", "mid", "yhat", "mean", "prediction")


def _for_columns(names: list[str]) -> list[str]:
    low, high = ([name for name in names if _means(name, words)] for words in (_LOW, _HIGH))
    if len(low) == len(high) == 1:  # the ends of an interval, whose names do not say how much it covers
        middle = [name for name in names if _means(name, _MIDDLE) and name not in (*low, *high)][:1]
        listed = ", ".join([*low, *middle, *high])
        levels = "0.05, 0.5, 0.95" if middle else "0.05, 0.95"
        return [
            f"predictions: {{family: quantiles, levels: [{levels}], columns: {{values: [{listed}]}}}} where they are "
            "the ends of a 90 % interval, with its own levels otherwise",
            "names that say it: lower_90, upper_90, or q0.05, q0.95",
            "predictions: {family: samples} where every column is a draw",
        ]
    first, second = [*names, "mean", "std"][:2] if len(names) > 1 else ("mean", "std")
    normal = f"{{family: normal, columns: {{loc: {first}, scale: {second}}}}}"
    ways = [
        f"predictions: {normal} where two columns are its parameters",
        "predictions: {family: quantiles, levels: [...]} where the columns in order are quantiles; or name them q0.1",
        "predictions: {family: samples} where every column is a draw",
    ]
    if len(names) > 2 and sum(any(sign.isdigit() for sign in name) for name in names) > 2:  # numbered
        ways = [ways[1], ways[2], ways[0]]
    return ways


def _means(name: str, words: tuple[str, ...]) -> bool:
    """Whether one of the words of a name is one of these."""
    return any(part in words for part in re.split(r"[^a-z]+", name.lower()))


def _for_arrays(shape: tuple[int, ...], rows: int, model: Any) -> list[str]:
    methods = [name for name in ("pred_dist", "predict_proba", "predict_quantiles", "predict_interval", "sample_y",
                                 "predict_dist", "get_distribution", "get_prediction")
               if callable(getattr(model, name, None))]  # fmt: skip
    ways = [f"predictions: {{method: {methods[0]}}}, which this model has"] if methods else []
    if len(shape) == 2 and shape[1] == rows != shape[0]:
        ways.append("predictions: {family: samples, draws_axis: 0} where each row is a draw of all rows")
    if model is not None and is_quantile_regression(model):
        ways.insert(0, "log_predictive_model({0.1: low, 0.9: high}, ...) with one model a level: this is one quantile")
    if len(shape) == 1 or shape[1:] == (1,):  # one number a row: a point forecast
        ways += [
            'predictions: {family: normal, columns: {loc: "0", scale: 2.0}} for errors of one known size',
            "predictions: {family: poisson} where it is the mean of a count",
            "predictions: {family: deterministic} for a point forecast",
        ]
    else:
        ways += [
            f"predictions: {{family: quantiles, levels: [...]}} with its {shape[1]} levels",
            "predictions: {family: samples} where every column is a draw",
            "predictions: {family: normal} where the two columns are mean and standard deviation"
            if shape[1] == 2
            else _OWN,
        ]
    return ways


def _class(found: Any) -> str:
    module = type(found).__module__.split(".")[0]
    return type(found).__name__ if module == "builtins" else f"{module} {type(found).__name__}"


def _shape(found: Any) -> tuple[int, ...] | None:
    try:
        return tuple(int(size) for size in np.shape(found))
    except (TypeError, ValueError):
        return None


def _is_numeric(found: Any) -> bool:
    try:
        return bool(np.asarray(found).dtype.kind in "biuf")
    except (TypeError, ValueError, RuntimeError):
        return False


def _list(names: list[str]) -> str:
    return (", ".join(map(repr, names[:10])) or "none") + (", ..." if len(names) > 10 else "")
