"""What logged models answer, as distributions: by the reader that knows the model or its answer."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import numpy as np

from congruence.tasks.readers.base import (
    Asked,
    Call,
    Known,
    Reader,
    Spec,
    UnreadableOutputError,
    as_matrix,
    as_normal,
    as_quantiles,
    is_of,
    is_quantile_regression,
    parse_call,
    quoted,
)

GROUP = "congruence.readers"
logger = logging.getLogger(__name__)

_lent: dict[str, str] = {}


def installed_readers() -> dict[str, str]:
    """Returns the entry points of readers, ``module:class`` by name."""
    return {point.name: point.value for point in entry_points(group=GROUP)}


def lend(named: Mapping[str, str]) -> None:
    """Have these readers beside those that are installed: a version's own environment has none of ours."""
    if not named.items() <= _lent.items():
        _lent.update(named)
        readers.cache_clear()


@cache
def readers() -> tuple[Reader, ...]:
    """Returns the reader of every entry point that can be loaded, in their order.

    Raises:
        UnreadableOutputError: there is none.
    """
    found = []
    for name, value in (_lent | installed_readers()).items():
        try:
            found.append((name, EntryPoint(name, value, GROUP).load()()))
        except Exception as error:  # of a package that has nothing to do with this model
            logger.warning("the reader %s (%s) cannot be loaded: %s", name, value, error)
    if not found:
        raise UnreadableOutputError(
            f"no reader of models is installed: the entry point group {GROUP} is empty; install congruence again"
        )
    return tuple(reader for _, reader in sorted(found, key=lambda each: (each[1].order, each[0])))


def answer_of(
    pyfunc: Any, data: Any, method: str | None, *, as_spec: bool, levels: Sequence[float] | None = None
) -> Any:
    """Returns what a logged model answers for the rows of ``data``: a ``Spec``, or columns that settings explain.

    Args:
        pyfunc: MLflow's wrapper of the model.
        data: the input rows.
        method: of the native model; without one the class of the model tells, and where it does not, the logged
            ``predict`` is asked.
        as_spec: whether arrays and frames are read, too; else they are given back as they are, without a method those
            of ``predict``.
        levels: of quantiles, where the answer does not name them.

    Raises:
        UnreadableOutputError: what came back is no distribution that can be read.
    """
    if method is None and not as_spec:
        return pyfunc.predict(data)
    model = native_model(pyfunc)
    if method is None and (model is None or known(model) is None):
        return read_output(pyfunc.predict(data), len(data), None, model, levels)
    if model is None:
        found = getattr(pyfunc, "loader_module", type(pyfunc).__name__)
        raise UnreadableOutputError(
            f"MLflow gives no native model of the flavor {found}, so predictions.method cannot be asked; "
            "leave it out, or log the model with log_predictive_model"
        )
    inputs = _checked(pyfunc, data)
    if method is None or as_spec:
        return output_of(model, inputs, method, levels)
    call = parse_call(method)
    answer = ask(model, call, inputs)
    return answer if is_columns(answer) else read_output(answer, len(data), call, model, levels)


def output_of(model: Any, inputs: Any, method: str | None = None, levels: Sequence[float] | None = None) -> Spec:
    """Returns the same of a native model and inputs as it takes them."""
    expected = known(model)
    call = parse_call(method) if method is not None else expected.call if expected is not None else Call("predict")
    return read_output(ask(model, call, inputs), len(inputs), call, model, levels)


def read_output(
    output: Any, rows: int, call: Call | None = None, model: Any = None, levels: Sequence[float] | None = None
) -> Spec:
    """Returns the predictive distribution of each of ``rows`` rows in what a model returned.

    That is any object that a reader knows, or an array whose meaning the call, the model or the levels tell.

    Raises:
        UnreadableOutputError: see ``unknown``.
    """
    last = final(model)
    asked = Asked(call, last, known(last) if last is not None else None)
    found = _by_call(output, rows, asked)
    for reader in readers() if found is None else ():
        if (found := reader.read(output, rows, asked)) is not None:
            break
    if found is None and levels is not None and (matrix := as_matrix(output, rows)) is not None:
        found = as_quantiles(levels)(matrix)
    if found is None:
        raise unknown(output, rows, last)
    return found


def _by_call(output: Any, rows: int, asked: Asked) -> Spec | None:
    """What the arguments of the call say of a tuple or an array, else what the class of the model says of an array."""
    words = asked.keywords
    if isinstance(output, tuple) and len(output) == 2 and (words.get("return_std") or words.get("return_var")):
        return as_normal(output[0], output[1], squared=bool(words.get("return_var")))
    matrix = as_matrix(output, rows)
    if matrix is None:
        return None
    levels = next((words[name] for name in ("quantiles", "alpha", "q", "levels") if _are_levels(words.get(name))), None)
    if levels is not None and len(levels) == matrix.shape[1]:
        return as_quantiles(levels)(matrix)
    known = asked.known
    return known.read(matrix) if known is not None and known.read is not None and asked.call == known.call else None


def _are_levels(found: Any) -> bool:
    listed = isinstance(found, (list, tuple)) and len(found) > 1
    return listed and all(isinstance(level, (int, float)) and 0 < level < 1 for level in found)


def is_columns(answer: Any) -> bool:
    """Returns whether a model's answer is numbers in columns, which settings explain, and no object of its own."""
    if isinstance(answer, list):
        return not answer or isinstance(answer[0], (int, float, list, tuple, np.ndarray, np.generic))
    if hasattr(answer, "keys"):
        return "criterion" not in answer and set(answer) != {"weights", "y"}
    is_frame = hasattr(answer, "iloc") and hasattr(answer, "to_numpy")  # skpro's distributions have the first alone
    return is_frame or hasattr(answer, "detach") or isinstance(answer, np.ndarray)


def known(model: Any) -> Known | None:
    """Returns how ``model`` is asked, by its class and its settings; None where these do not tell."""
    last = final(model)
    return next((found for reader in readers() if (found := reader.known(last)) is not None), None)


def said_of(pyfunc: Any) -> str:
    """Returns the class of the native model and how it is asked, where its class tells; else ""."""
    model = native_model(pyfunc)
    found = known(model) if model is not None else None
    return "" if found is None else f"{type(final(model)).__name__}: {found.said}"


def ask(model: Any, call: Call, inputs: Any) -> Any:
    """Returns what ``call`` of ``model`` answers; of a pipeline, its last step on what the others make of ``inputs``.

    Raises:
        UnreadableOutputError: no such method.
    """
    while hasattr(model, "best_estimator_"):  # a search has the methods of its estimator without their arguments
        model = model.best_estimator_
    if call.method and not hasattr(model, call.method) and final(model) is not model:
        model, inputs = through(model, inputs)
    if call.method and not callable(getattr(model, call.method, None)):
        public = [name for name in dir(model) if name.startswith(("pred", "get_", "sample", "forecast", "quantile"))]
        raise UnreadableOutputError(
            f"{type(model).__module__.split('.')[0]}'s {type(model).__name__} has no method {call.method!r}; it has "
            f"{', '.join(public[:8]) or 'none that predicts'}"
        )
    for reader in readers():
        if (answer := reader.ask(model, call, inputs)) is not NotImplemented:
            return answer
    return call.of(model, inputs)


def final(model: Any) -> Any:
    """Returns the model that answers: the best one of a search, the last step of a pipeline."""
    return through(model)[0]


def through(model: Any, inputs: Any = None) -> tuple[Any, Any]:
    """Returns the model that answers, and the inputs, where there are any, as the steps before it make them."""
    while True:
        if hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        elif hasattr(model, "steps") and hasattr(model, "named_steps") and not is_of(model, "sktime", "BaseForecaster"):
            for _, step in model.steps[:-1] if inputs is not None else ():
                if step is not None and not isinstance(step, str):
                    inputs = step.transform(inputs)
            model = model.steps[-1][1]
        else:
            return model, inputs


def native_model(pyfunc: Any) -> Any:
    """Returns the model that was logged, from MLflow's ``PyFuncModel``; None where the flavor's wrapper has none."""
    try:
        return pyfunc.get_raw_model()
    except (AttributeError, NotImplementedError):
        return getattr(getattr(pyfunc, "_model_impl", None), "sktime_model", None)


def _checked(pyfunc: Any, data: Any) -> Any:
    """``data`` as MLflow hands it to the model: converted and checked by the signature, where there is one."""
    signature = getattr(pyfunc.metadata, "signature", None)
    if signature is None or signature.inputs is None:
        return data
    try:
        from mlflow.models.utils import _enforce_schema
    except ImportError:
        return data
    return _enforce_schema(data, signature.inputs)


_OWN = "log it with log_predictive_model and a function of the frame that returns a distribution of congruence.kernels"


def unknown(output: Any, rows: int, model: Any = None) -> UnreadableOutputError:
    """What was found (class, shape or columns, attributes), and three ways to say how it is read.

    Of a table or an array that has another number of rows, that alone: no way of reading helps.
    """
    found, ways = _described(output, rows, model)
    shape = None if isinstance(output, (Mapping, tuple)) else _shape(output)
    if shape and rows not in shape and (hasattr(output, "iloc") or _is_numeric(output)):
        return UnreadableOutputError(f"{found}; it has {shape[0]} rows for {rows} input rows and must have one each")
    listed = "; ".join(f"({number}) {way}" for number, way in enumerate(ways[:3], 1))
    return UnreadableOutputError(f"{found}; no family is known for it. Say what it is: {listed}")


def _described(output: Any, rows: int, model: Any) -> tuple[str, list[str]]:
    if (hasattr(output, "columns") and hasattr(output, "iloc")) or isinstance(output, Mapping):
        names = [str(name) for name in (output.columns if hasattr(output, "columns") else output)]
        return f"its output is a {_class(output)} with columns {quoted(names, 10)}", _for_columns(names)
    shape = _shape(output)
    if isinstance(output, tuple):
        parts = ", ".join(f"{_class(part)} of shape {_shape(part)}" for part in output)
        found = f"its output is a tuple ({parts})"
        return found, ["predictions: {method: 'predict(return_std=True)'} where these are mean and standard deviation",
                       "predictions: {method: ...} with the method that returns its distribution", _OWN]  # fmt: skip
    if shape is not None and len(shape) >= 1 and _is_numeric(output):
        return f"its output is a {_class(output)} of shape {shape} for {rows} rows", _for_arrays(shape, rows, model)
    public = [name for name in dir(output) if not name.startswith("_")]
    attributes = "" if type(output).__module__ == "builtins" else f" with attributes {quoted(public, 10)}"
    return f"its output is a {_class(output)}{attributes}", [
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
