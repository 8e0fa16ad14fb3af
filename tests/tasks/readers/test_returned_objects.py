"""Objects that functions and ``PythonModel`` return, logged by MLflow and by our helper, read from the registry.

What each kind of object is read as is the matter of test_objects.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
import torch.distributions as td

from congruence.kernels import distributions as families
from congruence.kernels.distributions import Distribution
from congruence.tasks.contract import ContractError, load_predictive_model, log_predictive_model
from congruence.tasks.models.registry import list_versions

FRAME = pd.DataFrame({"a": [0.5, 1.0, 2.0, 3.5, 4.0], "b": [0.7, 1.5, 1.0, 2.0, 0.9]})
A, B = FRAME["a"].to_numpy(), FRAME["b"].to_numpy()
LEVELS = [0.05, 0.25, 0.5, 0.75, 0.95]
DRAWS = np.random.default_rng(0).normal(size=40)
SHARES = np.random.default_rng(1).dirichlet(np.ones(3), size=5)


def quantiles(frame: pd.DataFrame) -> Any:
    return frame["a"].to_numpy()[:, None] + frame["b"].to_numpy()[:, None] * scipy.stats.norm.ppf(LEVELS)


def scipy_frozen(frame: pd.DataFrame) -> Any:
    return scipy.stats.gamma(frame["a"], scale=frame["b"])


def torch_mixture(frame: pd.DataFrame) -> Any:
    a, b = (torch.tensor(frame[name].to_numpy(copy=True)) for name in ("a", "b"))
    parts = td.Normal(torch.stack([a, -a], 1), torch.stack([b, b], 1))
    return td.MixtureSameFamily(td.Categorical(torch.tensor([[0.2, 0.8]]).double().expand(len(frame), 2)), parts)


def forecasts(frame: pd.DataFrame) -> Any:
    return [SimpleNamespace(samples=row.a + row.b * DRAWS[:, None]) for row in frame.itertuples()]


def forest_weights(frame: pd.DataFrame) -> Any:
    return {"weights": SHARES[: len(frame)], "y": np.array([0.0, 1.0, 3.0])}


def columns_of_intervals(frame: pd.DataFrame) -> Any:
    names = ["M-lo-90", "M-lo-50", "M-median", "M-hi-50", "M-hi-90"]
    return pd.DataFrame(quantiles(frame), columns=names).assign(unique_id="x", M=0.0)


def parameters_of_lightgbmlss(frame: pd.DataFrame) -> Any:
    return pd.DataFrame({"total_count": frame["a"], "probs": 0.3})


RETURNED: list[tuple[Callable[[pd.DataFrame], Any], Distribution]] = [
    (scipy_frozen, families.Gamma(A, B)),
    (torch_mixture, families.Mixture([0.2, 0.8], [families.Normal(A, B), families.Normal(-A, B)])),
    (forecasts, families.Samples(A[:, None] + B[:, None] * DRAWS)),
    (forest_weights, families.WeightedSamples([0.0, 1.0, 3.0], SHARES)),
    (columns_of_intervals, families.Quantiles(LEVELS, quantiles(FRAME))),
    (parameters_of_lightgbmlss, families.NegativeBinomial(A * 0.3 / 0.7, 1 / A)),
]


class Returning(mlflow.pyfunc.PythonModel):
    """A model as users write it: its answer is that of a function."""

    def __init__(self, function: Callable[[pd.DataFrame], Any]) -> None:
        self.function = function

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> Any:  # type: ignore[override]
        return self.function(model_input)


def same(found: Distribution, expected: Distribution) -> None:
    assert type(found) is type(expected)
    y = np.round(np.asarray(expected.mean())[:, None] + np.array([-0.4, 0.3, 1.7]), 0 if expected.is_discrete else 3)
    y = np.abs(y)
    for name in ("cdf", "crps"):
        np.testing.assert_allclose(getattr(found, name)(y), getattr(expected, name)(y), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("function", "expected"), RETURNED, ids=lambda made: getattr(made, "__name__", ""))
def test_a_returned_object(function: Callable[[pd.DataFrame], Any], expected: Distribution, registry: str) -> None:
    name = f"{registry}-{function.__name__}".replace("_", "-")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow.pyfunc.log_model(
            name="model", python_model=Returning(function), registered_model_name=f"{name}-native",
            signature=mlflow.models.infer_signature(FRAME), pip_requirements=["numpy"],
        )  # fmt: skip
        models = {"function": function, "model": Returning(function)}
        kinds = ["function", "model"] if function is scipy_frozen else ["function"]
        for kind in kinds:
            log_predictive_model(models[kind], name="model", input_example=FRAME,
                                 registered_model_name=f"{name}-{kind}")  # fmt: skip
    for kind in ("native", *kinds):
        same(load_predictive_model(list_versions(f"{name}-{kind}")[-1].uri).predict(FRAME), expected)


def test_an_array_needs_a_word() -> None:
    with pytest.raises(ContractError, match=r"give family=.*numpy ndarray of shape \(5, 5\) for 5 rows.*\(1\).*\(3\)"):
        log_predictive_model(quantiles, name="model", input_example=FRAME)
