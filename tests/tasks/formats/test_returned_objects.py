"""Objects that functions and ``PythonModel`` return, logged by MLflow and by our helper, read from the registry."""

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
Z = scipy.stats.norm.ppf(LEVELS)
DRAWS = np.random.default_rng(0).normal(size=40)
SHARES = np.random.default_rng(1).dirichlet(np.ones(3), size=5)


def quantiles(frame: pd.DataFrame) -> Any:
    return frame["a"].to_numpy()[:, None] + frame["b"].to_numpy()[:, None] * Z


def tensors(frame: pd.DataFrame) -> list[torch.Tensor]:
    return [torch.tensor(frame[name].to_numpy(copy=True)) for name in ("a", "b")]


def scipy_frozen(frame: pd.DataFrame) -> Any:
    return scipy.stats.gamma(frame["a"], scale=frame["b"])


def scipy_new(frame: pd.DataFrame) -> Any:
    return scipy.stats.Normal(mu=frame["a"].to_numpy(), sigma=frame["b"].to_numpy())


def scipy_counts(frame: pd.DataFrame) -> Any:
    return scipy.stats.nbinom(frame["a"], 0.3)


def torch_counts_by_logits(frame: pd.DataFrame) -> Any:
    a, b = tensors(frame)
    return td.NegativeBinomial(b, logits=a)


def torch_vectors(frame: pd.DataFrame) -> Any:
    a, b = tensors(frame)
    return td.Independent(td.StudentT(torch.full_like(a, 5.0)[:, None], a[:, None], b[:, None]), 1)


def torch_mixture(frame: pd.DataFrame) -> Any:
    a, b = tensors(frame)
    parts = td.Normal(torch.stack([a, -a], 1), torch.stack([b, b], 1))
    return td.MixtureSameFamily(td.Categorical(torch.tensor([[0.2, 0.8]]).double().expand(len(frame), 2)), parts)


def skpro_laplace(frame: pd.DataFrame) -> Any:
    from skpro.distributions import Laplace

    return Laplace(mu=frame[["a"]].to_numpy(), scale=frame[["b"]].to_numpy(), index=frame.index, columns=["y"])


def tfp_gamma(frame: pd.DataFrame) -> Any:
    import tensorflow_probability.substrates.numpy as tfp

    return tfp.distributions.Gamma(frame["a"].to_numpy(), rate=frame["b"].to_numpy())


def numpyro_counts(frame: pd.DataFrame) -> Any:
    import jax
    import numpyro.distributions as numpyro

    with jax.enable_x64(True):
        return numpyro.NegativeBinomial2(frame["a"].to_numpy(), frame["b"].to_numpy())


def forecasts(frame: pd.DataFrame) -> Any:
    return [SimpleNamespace(samples=row.a + row.b * DRAWS[:, None]) for row in frame.itertuples()]


def forest_weights(frame: pd.DataFrame) -> Any:
    return {"weights": SHARES[: len(frame)], "y": np.array([0.0, 1.0, 3.0])}


class FullSupportBarDistribution:
    """As TabPFN's, of which it has the name and the borders."""

    borders = torch.tensor([-1.0, 0.0, 2.0, 5.0], dtype=torch.float64)


def bar_distribution(frame: pd.DataFrame) -> Any:
    return {"criterion": FullSupportBarDistribution(), "logits": torch.tensor(np.log(SHARES[: len(frame)]))}


def columns_of_levels(frame: pd.DataFrame) -> Any:
    return pd.DataFrame(quantiles(frame), columns=[f"q{level}" for level in LEVELS])


def columns_of_intervals(frame: pd.DataFrame) -> Any:
    names = ["M-lo-90", "M-lo-50", "M-median", "M-hi-50", "M-hi-90"]
    return pd.DataFrame(quantiles(frame), columns=names).assign(unique_id="x", M=0.0)


def columns_of_a_model(frame: pd.DataFrame) -> Any:
    return pd.DataFrame(quantiles(frame), columns=[f"M_ql{level}" for level in LEVELS])


def columns_of_variable_and_level(frame: pd.DataFrame) -> Any:
    return pd.DataFrame(quantiles(frame), columns=pd.MultiIndex.from_product([["y"], LEVELS]))  # type: ignore[arg-type]


def parameters_of_lightgbmlss(frame: pd.DataFrame) -> Any:
    return pd.DataFrame({"total_count": frame["a"], "probs": 0.3})


HALVES = {k: families.Normal(k * A, B) for k in (1.0, -1.0)}
RETURNED: list[tuple[Callable[[pd.DataFrame], Any], Distribution]] = [
    (scipy_frozen, families.Gamma(A, B)),
    (scipy_new, families.Normal(A, B)),
    (scipy_counts, families.NegativeBinomial(A * 0.7 / 0.3, 1 / A)),
    (torch_counts_by_logits, families.NegativeBinomial(B * np.exp(A), 1 / B)),
    (torch_vectors, families.StudentT(np.full(5, 5.0), A, B)),
    (torch_mixture, families.Mixture([0.2, 0.8], [HALVES[1.0], HALVES[-1.0]])),
    (skpro_laplace, families.Laplace(A, B)),
    (tfp_gamma, families.Gamma(A, 1 / B)),
    (numpyro_counts, families.NegativeBinomial(A, 1 / B)),
    (forecasts, families.Samples(A[:, None] + B[:, None] * DRAWS)),
    (forest_weights, families.WeightedSamples([0.0, 1.0, 3.0], SHARES)),
    (bar_distribution, families.Histogram([-1.0, 0.0, 2.0, 5.0], SHARES, tail_share=0.5)),
    (columns_of_levels, families.Quantiles(LEVELS, quantiles(FRAME))),
    (columns_of_intervals, families.Quantiles(LEVELS, quantiles(FRAME))),
    (columns_of_a_model, families.Quantiles(LEVELS, quantiles(FRAME))),
    (columns_of_variable_and_level, families.Quantiles(LEVELS, quantiles(FRAME))),
    (parameters_of_lightgbmlss, families.NegativeBinomial(A * 0.3 / 0.7, 1 / A)),
]
NEEDED = {skpro_laplace: "skpro", tfp_gamma: "tensorflow_probability", numpyro_counts: "numpyro"}


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
    pytest.importorskip(NEEDED.get(function, "numpy"))
    name = f"{registry}-{function.__name__}".replace("_", "-")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow.pyfunc.log_model(
            name="model", python_model=Returning(function), registered_model_name=f"{name}-native",
            signature=mlflow.models.infer_signature(FRAME), pip_requirements=["numpy"],
        )  # fmt: skip
        models = {"function": function, "model": Returning(function)}
        kinds = ["function", "model"] if function in (scipy_frozen, columns_of_levels) else ["function"]
        for kind in kinds:
            log_predictive_model(models[kind], name="model", input_example=FRAME,
                                 registered_model_name=f"{name}-{kind}")  # fmt: skip
    for kind in ("native", *kinds):
        same(load_predictive_model(list_versions(f"{name}-{kind}")[-1].uri).predict(FRAME), expected)


def test_an_array_needs_a_word() -> None:
    with pytest.raises(ContractError, match=r"give family=.*numpy ndarray of shape \(5, 5\) for 5 rows.*\(1\).*\(3\)"):
        log_predictive_model(quantiles, name="model", input_example=FRAME)
