"""Models as people log them: by MLflow itself, or by our helper; and what their versions predict."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import mlflow
import numpy as np
import pandas as pd

from congruence.kernels.distributions import Distribution
from congruence.tasks.contract import PredictionSettings, PredictiveModel, load_predictive_model, log_predictive_model
from congruence.tasks.models.registry import list_versions

FORMATS = {"sklearn": "cloudpickle", "pytorch": "pickle"}
"""MLflow's defaults are others: skops refuses the classes of other packages, pt2 holds no distributions."""


class Returning(mlflow.pyfunc.PythonModel):
    """A model as users write it, where MLflow has no flavor for a package: its answer is that of a function."""

    def __init__(self, function: Callable[[pd.DataFrame], Any]) -> None:
        self.function = function

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> Any:  # type: ignore[override]
        return self.function(model_input)


class Constant(mlflow.pyfunc.PythonModel):
    def predict(self, context: Any, model_input: list[float]) -> list[float]:  # type: ignore[override]
        return model_input


def log_constants(name: str, *runs: str) -> None:
    """Versions that predict nothing, each logged by a run of that name."""
    for run in runs:
        with mlflow.start_run(run_name=run):
            mlflow.pyfunc.log_model(
                name="model", python_model=Constant(), registered_model_name=name, pip_requirements=[]
            )


def log_natively(model: Any, name: str, frame: pd.DataFrame, flavor: str = "sklearn") -> None:
    common: dict[str, Any] = {
        "registered_model_name": name, "pip_requirements": ["numpy"], "signature": mlflow.models.infer_signature(frame)
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if flavor == "pyfunc":
            mlflow.pyfunc.log_model(name="model", python_model=Returning(model), **common)
            return
        log = getattr(mlflow, flavor).log_model
        if flavor in FORMATS and "serialization_format" in inspect.signature(log).parameters:
            common["serialization_format"] = FORMATS[flavor]
        log(model, name="model", **common)


def log_by_us(model: Any, name: str, frame: pd.DataFrame, **settings: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log_predictive_model(model, name="model", input_example=frame, registered_model_name=name, **settings)


def newest(name: str, settings: PredictionSettings | None = None) -> PredictiveModel:
    """The last version of a name."""
    return load_predictive_model(list_versions(name)[-1].uri, settings)


def predicted(name: str, frame: pd.DataFrame, settings: PredictionSettings | None = None) -> Distribution:
    return newest(name, settings).predict(frame)


def same(found: Distribution, expected: Distribution, at: Any = None, rtol: float = 1e-10, atol: float = 1e-10) -> None:
    """The same family, and the same numbers at some targets: by default some about each row's mean."""
    assert type(found) is type(expected)
    assert len(found) == len(expected)
    if at is None:
        at = np.asarray(expected.mean())[:, None] + np.asarray(expected.std())[:, None] * np.array([-1.3, 0.1, 2.0])
        at = np.round(np.abs(at)) if expected.is_discrete else at
    for name in ("cdf", "crps"):
        np.testing.assert_allclose(getattr(found, name)(at), getattr(expected, name)(at), rtol=rtol, atol=atol)
