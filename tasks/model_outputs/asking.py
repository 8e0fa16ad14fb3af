"""The native model behind MLflow's wrapper, and the inputs that it takes."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any

import numpy as np

from congruence.tasks.model_outputs.call import Call
from congruence.tasks.model_outputs.forecasters import forecast, is_forecaster
from congruence.tasks.model_outputs.known_models import final, is_quantile_regression, through
from congruence.tasks.model_outputs.law import UnreadableOutputError, is_of


def native_model(pyfunc: Any) -> Any:
    """The model that was logged, from the ``PyFuncModel`` that MLflow loads.

    Raises:
        UnreadableOutputError: MLflow's wrapper of this flavor does not give it.
    """
    try:
        return pyfunc.get_raw_model()
    except (AttributeError, NotImplementedError) as error:
        if (forecaster := getattr(getattr(pyfunc, "_model_impl", None), "sktime_model", None)) is not None:
            return forecaster
        found = getattr(pyfunc, "loader_module", type(pyfunc).__name__)
        raise UnreadableOutputError(
            f"MLflow gives no native model of the flavor {found}, so predictions.method cannot be asked; "
            "leave it out, or log the model with log_predictive_model"
        ) from error


def checked_inputs(pyfunc: Any, data: Any) -> Any:
    """``data`` as MLflow hands it to the model: converted and checked by the signature, where there is one."""
    signature = getattr(pyfunc.metadata, "signature", None)
    if signature is None or signature.inputs is None:
        return data
    try:
        from mlflow.models.utils import _enforce_schema
    except ImportError:
        return data
    return _enforce_schema(data, signature.inputs)


def ask(model: Any, call: Call, inputs: Any) -> Any:
    """What ``call`` of ``model`` returns for ``inputs``; of a pipeline, its last step is asked on what the others make.

    Raises:
        UnreadableOutputError: no such method.
    """
    if not call.method:  # a torch module
        return _forward(model, inputs)
    if not hasattr(model, call.method) and final(model) is not model:
        model, inputs = through(model, inputs)
    method = getattr(model, call.method, None)
    if not callable(method):
        public = [name for name in dir(model) if name.startswith(("pred", "get_", "sample", "forecast", "quantile"))]
        raise UnreadableOutputError(
            f"{_name(model)} has no method {call.method!r}; it has {', '.join(public[:8]) or 'none that predicts'}"
        )
    if call.method == "get_prediction" and is_quantile_regression(model):
        raise UnreadableOutputError(
            "statsmodels' QuantReg is one quantile, whose get_prediction has no law of a target; log one model a "
            "level: log_predictive_model({0.1: low, 0.5: middle, 0.9: high}, ...)"
        )
    if call.method == "get_distribution" and is_of(model, "statsmodels"):
        inputs = _design(model, inputs)
    if is_forecaster(model):
        return forecast(model, method, inputs, *call.arguments, **call.keywords)
    return method(_fitting(model, inputs), *call.arguments, **call.keywords)


def _fitting(model: Any, inputs: Any) -> Any:
    """Inputs as the model's own class takes them."""
    if not hasattr(inputs, "columns"):
        return inputs
    if is_of(model, "xgboost", "Booster"):
        import xgboost

        return xgboost.DMatrix(inputs, enable_categorical=True)
    if is_of(model, "lightgbm"):
        return _with_categories(model, inputs)
    return inputs


def _design(results: Any, frame: Any) -> Any:
    """The design matrix of a formula: ``get_distribution`` of generalised linear models does not make it itself."""
    transforms = "transform" in inspect.signature(results.get_distribution).parameters
    make = getattr(results, "_transform_predict_exog", None)
    return frame if transforms or make is None else make(frame, transform=True)[0]


def _with_categories(model: Any, frame: Any) -> Any:
    """Columns of text as categories again, which a signature turned into strings; the model knows their order."""
    booster = getattr(model, "booster_", model)
    if not getattr(booster, "pandas_categorical", None):
        return frame
    texts = [name for name in frame.columns if frame[name].dtype.kind not in "biufcmM"]
    return frame.assign(**{name: frame[name].astype("category") for name in texts})


def _forward(module: Any, inputs: Any) -> Any:
    import torch

    matrix = inputs.to_numpy(dtype=np.float64) if hasattr(inputs, "to_numpy") else np.asarray(inputs)
    with suppress(NotImplementedError):  # what torch.export made has no mode
        module.eval()
    kind = next((weight.dtype for weight in module.parameters()), torch.float32)
    device = next((weight.device for weight in module.parameters()), torch.device("cpu"))
    with torch.inference_mode():
        return module(torch.tensor(matrix).to(device=device, dtype=kind))


def _name(model: Any) -> str:
    return f"{type(model).__module__.split('.')[0]}'s {type(model).__name__}"
