"""Whatever a model returned, as a law: each reader in turn, then an error that says what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from congruence.tasks.model_outputs.asking import ask, checked_inputs, native_model
from congruence.tasks.model_outputs.call import Call, parse_call
from congruence.tasks.model_outputs.correlated import refuse_correlated
from congruence.tasks.model_outputs.fitted_models import (
    read_bar_distribution,
    read_ngboost,
    read_ragged,
    read_statsmodels,
    read_weights,
)
from congruence.tasks.model_outputs.forecasts import read_forecasts
from congruence.tasks.model_outputs.known_models import Known, final, known
from congruence.tasks.model_outputs.law import Law, UnreadableOutputError, as_array, is_of, law
from congruence.tasks.model_outputs.quantile_columns import read_intervals, read_quantile_columns
from congruence.tasks.model_outputs.scipy_stats import read_scipy
from congruence.tasks.model_outputs.skpro import read_skpro
from congruence.tasks.model_outputs.torch_distributions import read_torch
from congruence.tasks.model_outputs.unknown import unknown

READERS: tuple[Callable[[Any, int], Law | None], ...] = (
    refuse_correlated,
    read_ngboost,
    read_skpro,
    read_scipy,
    read_torch,
    read_statsmodels,
    read_bar_distribution,
    read_weights,
    read_forecasts,
    read_quantile_columns,
)


def answer_of(
    pyfunc: Any, data: Any, method: str | None, *, as_law: bool, levels: Sequence[float] | None = None
) -> Any:
    """What a logged model answers for the rows of ``data``: a ``Law``, or columns whose meaning the settings tell.

    Args:
        pyfunc: MLflow's wrapper of the model.
        data: the input rows.
        method: of the native model; without one the class of the model tells, and where it does not, the logged
            ``predict`` is asked.
        as_law: whether arrays and frames are read, too; else they are given back as they are.
        levels: of quantiles, where the answer does not name them.

    Raises:
        UnreadableOutputError: what came back is no law that can be read.
    """
    if method is None:
        model = _native_or_none(pyfunc)
        if model is None or known(model) is None:
            return read_law(pyfunc.predict(data), len(data), None, model, levels)
        return law_of_model(model, checked_inputs(pyfunc, data), None, levels)
    model, inputs = native_model(pyfunc), checked_inputs(pyfunc, data)
    if as_law:
        return law_of_model(model, inputs, method, levels)
    call = parse_call(method)
    answer = ask(model, call, inputs)
    return answer if is_columns(answer) else read_law(answer, len(data), call, model, levels)


def said_of(pyfunc: Any) -> str:
    """The class of the native model and how it is asked, where its class tells; else ""."""
    model = _native_or_none(pyfunc)
    found = known(model) if model is not None else None
    return "" if found is None else f"{type(final(model)).__name__}: {found.said}"


def is_columns(answer: Any) -> bool:
    """Whether a model's answer is numbers in columns, whose meaning settings tell, and no object that tells itself."""
    if isinstance(answer, list):
        return not answer or isinstance(answer[0], (int, float, list, tuple, np.ndarray, np.generic))
    if isinstance(answer, Mapping):
        return "criterion" not in answer and set(answer) != {"weights", "y"}
    is_frame = hasattr(answer, "iloc") and hasattr(answer, "to_numpy")  # skpro's distributions have the first alone
    return is_frame or hasattr(answer, "detach") or isinstance(answer, np.ndarray)


def law_of_model(model: Any, inputs: Any, method: str | None = None, levels: Sequence[float] | None = None) -> Law:
    """The same of a native model and inputs as it takes them."""
    expected = known(model)
    call = parse_call(method) if method is not None else expected.call if expected is not None else Call("predict")
    answer = ask(model, call, inputs)
    return read_law(answer, len(inputs), call, model, levels)


def read_law(
    output: Any,
    rows: int,
    call: Call | None = None,
    model: Any = None,
    levels: Sequence[float] | None = None,
) -> Law:
    """The law of each of ``rows`` rows in what a model returned.

    Args:
        output: any object that the readers know, or an array whose meaning call, model or levels tell.
        rows: the number of input rows.
        call: what was asked.
        model: that answered.
        levels: of quantiles.

    Raises:
        UnreadableOutputError: see ``unknown``.
    """
    expected = known(model) if model is not None else None
    for read in (_by_call(call, expected), *READERS, _by_intervals(call, model)):
        found = read(output, rows)
        if found is not None:
            return found
    if levels is not None and (matrix := _matrix(output, rows)) is not None and matrix.shape[1] == len(levels):
        return law("quantiles", levels=levels, values=matrix)
    raise unknown(output, rows, model)


def _by_call(call: Call | None, expected: Known | None) -> Callable[[Any, int], Law | None]:
    """A reader of arrays, by the arguments of the call or by the class of the model."""
    words = call.keywords if call is not None else {}

    def read(output: Any, rows: int) -> Law | None:
        if isinstance(output, tuple) and len(output) == 2 and (words.get("return_std") or words.get("return_var")):
            return _mean_and_spread(output[0], output[1], squared=bool(words.get("return_var")))
        if call is not None and call.method == "predict_cpds" and (ragged := read_ragged(output, rows)) is not None:
            return ragged
        matrix = _matrix(output, rows)
        if matrix is None:
            return None
        named = (words.get(name) for name in ("quantiles", "alpha", "q", "levels"))
        asked = next((found for found in named if _are_levels(found)), None)
        if asked is not None and matrix.shape[1] == len(asked):
            order = np.argsort(asked)
            return law("quantiles", levels=np.asarray(asked)[order], values=matrix[:, order])
        if expected is not None and expected.answer == "normal_variance":
            return _catboosts_uncertainty(matrix, words.get("prediction_type"))
        if call is not None and call.method == "predict_cpds" and matrix.shape[1] > 1:
            return law("samples", values=matrix)
        same = call is not None and expected is not None and call == expected.call
        return _as_expected(matrix, expected) if same and expected is not None else None

    return read


def _as_expected(matrix: Any, expected: Known) -> Law | None:
    if expected.answer == "poisson" and matrix.shape[1] == 1:
        return law("poisson", rate=matrix[:, 0])
    if expected.answer == "quantiles" and matrix.shape[1] == len(expected.levels):
        order = np.argsort(expected.levels)
        return law("quantiles", levels=np.asarray(expected.levels)[order], values=matrix[:, order])
    return None


def _by_intervals(call: Call | None, model: Any) -> Callable[[Any, int], Law | None]:
    """MAPIE knows the error levels of its intervals, or was given them."""
    words = call.keywords if call is not None else {}
    errors = words.get("alpha") if words.get("alpha") is not None else getattr(final(model), "_alphas", None)

    def read(output: Any, rows: int) -> Law | None:
        if errors is None or not (isinstance(output, tuple) and (is_of(final(model), "mapie") or "alpha" in words)):
            return None
        return read_intervals(output, rows, [1.0 - float(error) for error in np.ravel(errors)])

    return read


def _catboosts_uncertainty(matrix: Any, kind: str | None) -> Law | None:
    """Mean and variance; raw, mean and log sigma; of virtual ensembles, the mean and both parts of the variance."""
    if kind in (None, "RMSEWithUncertainty") and matrix.shape[1] == 2:
        return _mean_and_spread(matrix[:, 0], matrix[:, 1], squared=True)
    if kind == "RawFormulaVal" and matrix.shape[1] == 2:
        return _mean_and_spread(matrix[:, 0], np.exp(matrix[:, 1]), squared=False)
    if kind == "TotalUncertainty" and matrix.shape[1] == 3:
        return _mean_and_spread(matrix[:, 0], matrix[:, 1] + matrix[:, 2], squared=True)
    return None


def _mean_and_spread(mean: Any, spread: Any, *, squared: bool) -> Law:
    scale = as_array(spread)
    return law("normal", loc=mean, scale=np.sqrt(scale) if squared else scale)


def _matrix(output: Any, rows: int) -> Any:
    """A numeric array or frame as (rows, k); None where it is another."""
    if isinstance(output, (Mapping, tuple, str)) or output is None:
        return None
    try:
        values = as_array(output)
    except (TypeError, ValueError):
        return None
    if values.ndim == 1 and len(values) == rows:
        return values[:, None]
    return values if values.ndim == 2 and len(values) == rows else None


def _are_levels(found: Any) -> bool:
    listed = isinstance(found, (list, tuple)) and len(found) > 1
    return listed and all(isinstance(level, (int, float)) and 0 < level < 1 for level in found)


def _native_or_none(pyfunc: Any) -> Any:
    try:
        return native_model(pyfunc)
    except UnreadableOutputError:
        return None
