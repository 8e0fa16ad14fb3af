"""torch.distributions, and NumPyro's and TensorFlow Probability's by the same names: class and attributes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from congruence.tasks.readers.base import (
    Array,
    Asked,
    Call,
    Known,
    Parameters,
    Reader,
    Spec,
    UnreadableOutputError,
    as_array,
    broadcast,
    by_quantiles,
    is_of,
    kinds,
    negative_binomial,
    softmax,
    spec,
)

_CORRELATED = {
    "LowRankMultivariateNormal",
    "MultivariateNormal",
    "MultivariateNormalDiagPlusLowRank",
    "MultivariateNormalFullCovariance",
    "MultivariateNormalTriL",
    "MultivariateStudentT",
    "multivariate_normal_frozen",
    "multivariate_t_frozen",
}
_PACKAGES = ("torch", "numpyro", "tensorflow_probability", "pyro", "distrax", "tfp")


class TorchReader(Reader):
    """A torch module, and distributions of batch shape (rows,), (rows, 1) or, for vectors, (rows, q)."""

    def known(self, model: Any) -> Known | None:
        return Known(Call(""), "the module") if is_of(model, "torch", "Module") else None

    def ask(self, model: Any, call: Call, inputs: Any) -> Any:
        if call.method:
            return NotImplemented
        import torch

        matrix = inputs.to_numpy(dtype=np.float64) if hasattr(inputs, "to_numpy") else np.asarray(inputs)
        with suppress(NotImplementedError):  # what torch.export made has no mode
            model.eval()
        kind = next((weight.dtype for weight in model.parameters()), torch.float32)
        device = next((weight.device for weight in model.parameters()), torch.device("cpu"))
        with torch.inference_mode():
            return model(torch.tensor(matrix).to(device=device, dtype=kind))

    def read(self, output: Any, rows: int, asked: Asked) -> Spec | None:
        ours = any(is_of(output, package) for package in _PACKAGES) and "Distribution" in kinds(output)
        return _read(output, rows) if ours else None


class CorrelatedReader(Reader):
    """Several targets with a covariance for each row, which no family here holds: refused, with what to do."""

    order = 0

    def read(self, output: Any, rows: int, asked: Asked) -> Spec | None:
        package = type(output).__module__.split(".")[0]
        # NGBoost's other laws answer None for what they do not have.
        of_ngboost = is_of(output, "ngboost") and getattr(output, "cov_inv", None) is not None
        if not of_ngboost and not (package in (*_PACKAGES, "scipy") and _CORRELATED & set(kinds(output))):
            return None
        name = "MultivariateNormal" if of_ngboost else type(output).__name__  # NGBoost calls the class MVN
        draws = "draws of shape (rows, 500, targets)"
        if of_ngboost:
            draws = "np.swapaxes(model.pred_dist(x).sample(500), 0, 1)"
        raise UnreadableOutputError(
            f"its output is {package}'s {name}, with a covariance of the targets for each row; no family here holds "
            f"one. Give what is near: (1) its draws: log_predictive_model(lambda x: Samples({draws}), ...); (2) one "
            "target at a time: a function that returns Normal(loc[:, 0], scale[:, 0]); (3) MultivariateNormal(loc, "
            "scale) of congruence.kernels, where the targets are to be judged as if they were independent"
        )


def _read(found: Any, rows: int) -> Spec | None:
    found = _unwrapped(found)
    name = next((kind for kind in kinds(found) if kind in _READ or kind == "MixtureSameFamily"), None)
    if name is None and hasattr(found, "cat") and hasattr(found, "components"):
        return _mixture_of_several(found, rows)
    if name is None:
        return _by_its_quantiles(found, rows)
    if name == "MixtureSameFamily":
        return _mixture(found, rows)
    return _READ[name](Parameters(lambda key: _full(_parameter(found, key), rows)))


def _parameter(found: Any, key: str) -> Array:
    """A parameter; TensorFlow Probability has None where it was given in another form."""
    value = getattr(found, key, None)
    if value is not None:
        return as_array(value)
    if (made := getattr(found, f"{key}_parameter", None)) is not None:
        return as_array(made())
    logarithm = getattr(found, f"log_{key}", None)
    if logarithm is None:
        raise UnreadableOutputError(f"{type(found).__name__} of {type(found).__module__} has no {key}")
    return np.exp(as_array(logarithm))


def _by_its_quantiles(found: Any, rows: int) -> Spec | None:
    """A law of reals that has no family here, where its package has its quantile function."""
    quantile = getattr(found, "icdf", None) or getattr(found, "quantile", None)
    shape = tuple(getattr(found, "batch_shape", ()))
    if quantile is None or tuple(getattr(found, "event_shape", ())) or shape not in ((), (1,), (rows,), (rows, 1)):
        return None

    def at(levels: Array) -> Array:
        asked: Any = levels if len(shape) < 2 else levels[..., None]
        if is_of(found, "torch"):
            import torch

            asked = torch.as_tensor(asked)
        values = as_array(quantile(asked))
        return values[..., 0] if len(shape) == 2 else values

    try:
        discrete = bool(getattr(getattr(found, "support", None), "is_discrete", False))
        return None if discrete else by_quantiles(at, rows, type(found).__name__)
    except (NotImplementedError, TypeError, ValueError):
        return None


def _unwrapped(found: Any) -> Any:
    """What Independent, ExpandedDistribution and MaskedDistribution are wrapped around."""
    while type(found).__name__ in ("Independent", "ExpandedDistribution", "MaskedDistribution"):
        found = _first_of(found, "base_dist", "distribution")
    return found


def _first_of(found: Any, *attributes: str) -> Any:
    """The attribute under whichever of the names it has: packages differ."""
    return next(getattr(found, name) for name in attributes if hasattr(found, name))


def _full(values: Array, rows: int) -> Array:
    """(rows,), or (rows, q) as it is."""
    if values.ndim == 2 and values.shape[0] == rows:
        return values
    try:
        return broadcast(values, rows)
    except ValueError as error:
        raise UnreadableOutputError(
            f"a distribution of batch shape {values.shape} for {rows} input rows; the model must return one a row"
        ) from error


def _mixture(found: Any, rows: int) -> Spec | None:
    outer = _first_of(found, "mixture_distribution", "mixing_distribution", "mixing_distributions")
    inner = _unwrapped(_first_of(found, "component_distribution", "components_distribution"))
    logits = getattr(outer, "logits", None)
    weights = _parameter(outer, "probs") if logits is None else softmax(as_array(logits))
    count = weights.shape[-1]
    name = next((kind for kind in kinds(inner) if kind in _READ), None)
    if name is None:
        return None
    shape = (rows, count)
    parts = tuple(
        _READ[name](Parameters(lambda key, k=k: np.broadcast_to(_parameter(inner, key), shape)[:, k]))  # type: ignore[misc]
        for k in range(count)
    )
    return Spec("mixture", {"weights": np.broadcast_to(weights, (rows, count))}, parts)


def _mixture_of_several(found: Any, rows: int) -> Spec | None:
    """TensorFlow Probability's ``Mixture``: a law of the component, and a list of components of any kinds."""
    parts = tuple(part for one in found.components if (part := _read(one, rows)) is not None)
    if len(parts) < len(found.components):
        return None
    return Spec("mixture", {"weights": np.broadcast_to(_parameter(found.cat, "probs"), (rows, len(parts)))}, parts)


_READ: dict[str, Callable[[Parameters], Spec]] = {
    "Normal": lambda g: spec("multivariate_normal" if g.loc.ndim == 2 else "normal", loc=g.loc, scale=g.scale),
    "Laplace": lambda g: spec("laplace", loc=g.loc, scale=g.scale),
    "Logistic": lambda g: spec("logistic", loc=g.loc, scale=g.scale),
    "StudentT": lambda g: spec("student_t", df=g.df, loc=g.loc, scale=g.scale),
    "Cauchy": lambda g: spec("student_t", df=np.ones_like(g.loc), loc=g.loc, scale=g.scale),
    "LogNormal": lambda g: spec("log_normal", s=g.scale, scale=np.exp(g.loc)),
    "Gamma": lambda g: spec("gamma", a=g.concentration, scale=1.0 / g.rate),
    "Exponential": lambda g: spec("gamma", a=np.ones_like(g.rate), scale=1.0 / g.rate),
    "Beta": lambda g: spec("beta", a=g.concentration1, b=g.concentration0),
    "Uniform": lambda g: spec("uniform", loc=g.low, scale=g.high - g.low),
    "HalfNormal": lambda g: spec("truncated_normal", loc=0.0 * g.scale, scale=g.scale, lower=0.0 * g.scale,
                                 upper=np.full_like(g.scale, np.inf)),
    "TruncatedNormal": lambda g: spec("truncated_normal", loc=g.loc, scale=g.scale, lower=g.low, upper=g.high),
    "Poisson": lambda g: spec("poisson", rate=g.rate),
    "GammaPoisson": lambda g: spec("negative_binomial", mean=g.concentration / g.rate,
                                   dispersion=1.0 / g.concentration),
    "NegativeBinomial": lambda g: spec("negative_binomial", mean=g.total_count * np.exp(g.logits),
                                       dispersion=1.0 / g.total_count),
    "NegativeBinomialProbs": lambda g: negative_binomial(g.total_count, g.probs),
    "Binomial": lambda g: spec("binomial", n=g.total_count, p=g.probs),
    "BinomialProbs": lambda g: spec("binomial", n=g.total_count, p=g.probs),
    "BinomialLogits": lambda g: spec("binomial", n=g.total_count, p=1.0 / (1.0 + np.exp(-g.logits))),
    "Bernoulli": lambda g: spec("binomial", n=np.ones_like(g.probs), p=g.probs),
    "ZeroInflatedPoisson": lambda g: spec("zero_inflated_poisson", rate=g.rate, inflation=g.gate),
    "Delta": lambda g: spec("deterministic", value=g.v),
    "Deterministic": lambda g: spec("deterministic", value=g.loc),
}  # fmt: skip
