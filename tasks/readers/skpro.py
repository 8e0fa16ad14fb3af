"""skpro's distributions: one law a row, parameters by ``to_df`` with columns (variable, parameter)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from congruence.tasks.readers.base import (
    Asked,
    Call,
    Parameters,
    Reader,
    Spec,
    UnreadableOutputError,
    broadcast,
    by_quantiles,
    is_of,
    kinds,
    spec,
)


class SkproReader(Reader):
    """skpro's regressors, and distributions of shape (rows, 1), also an empirical one and a mixture."""

    package, call = "skpro", Call("predict_proba")

    def read(self, output: Any, rows: int, asked: Asked) -> Spec | None:
        if not is_of(output, "skpro", "BaseDistribution"):
            return None
        if output.ndim == 2 and output.shape[1] != 1:
            raise UnreadableOutputError(
                f"skpro's {type(output).__name__} has {output.shape[1]} target variables "
                f"({', '.join(map(str, output.columns))}); predict one target at a time"
            )
        for kind in kinds(output):
            if kind == "Mixture":
                return self._mixture(output, rows, asked)
            if kind == "Empirical" and (exact := _empirical(output, rows)) is not None:
                return exact
            if kind in _FAMILIES:
                return _FAMILIES[kind](Parameters(lambda name: broadcast(getattr(output, name), rows)))
        return by_quantiles(
            lambda levels: np.asarray(output.quantile(levels[:, 0].tolist()), dtype=np.float64).reshape(rows, -1).T,
            rows,
            f"skpro's {type(output).__name__}",
        )

    def _mixture(self, found: Any, rows: int, asked: Asked) -> Spec:
        parts = [part[1] if isinstance(part, tuple) else part for part in found.distributions]
        read = tuple(inner for part in parts if (inner := self.read(part, rows, asked)) is not None)
        shares = np.ones(len(parts)) if found.weights is None else np.asarray(found.weights, dtype=np.float64)
        return Spec("mixture", {"weights": np.broadcast_to(shares / shares.sum(), (rows, len(parts)))}, read)


def _empirical(found: Any, rows: int) -> Spec | None:
    if not hasattr(found.spl.index, "levels"):
        return None
    values = found.spl.iloc[:, 0].unstack(level=0).reindex(found.index).to_numpy(dtype=np.float64)
    if values.shape[0] != rows or np.isnan(values).any():
        return None
    if found.weights is None:
        return spec("samples", values=values)
    weights = found.weights.unstack(level=0).reindex(found.index).to_numpy(dtype=np.float64)
    return spec("weighted_samples", support=values, weights=weights / weights.sum(axis=1, keepdims=True))


_FAMILIES: dict[str, Callable[[Parameters], Spec]] = {
    "Normal": lambda g: spec("normal", loc=g.mu, scale=g.sigma),
    "Laplace": lambda g: spec("laplace", loc=g.mu, scale=g.scale),
    "Logistic": lambda g: spec("logistic", loc=g.mu, scale=g.scale),
    "TDistribution": lambda g: spec("student_t", df=g.df, loc=g.mu, scale=g.sigma),
    "LogNormal": lambda g: spec("log_normal", s=g.sigma, scale=np.exp(g.mu)),
    "Gamma": lambda g: spec("gamma", a=g.alpha, scale=1.0 / g.beta),
    "Beta": lambda g: spec("beta", a=g.alpha, b=g.beta),
    "Exponential": lambda g: spec("gamma", a=np.ones_like(g.rate), scale=1.0 / g.rate),
    "Uniform": lambda g: spec("uniform", loc=g.lower, scale=g.upper - g.lower),
    "TruncatedNormal": lambda g: spec("truncated_normal", loc=g.mu, scale=g.sigma, lower=g.l_trunc, upper=g.r_trunc),
    "Poisson": lambda g: spec("poisson", rate=g.mu),
    "NegativeBinomial": lambda g: spec("negative_binomial", mean=g.mu, dispersion=1.0 / g.alpha),
    "Binomial": lambda g: spec("binomial", n=g.n, p=g.p),
    "Delta": lambda g: spec("deterministic", value=g.c),
}
