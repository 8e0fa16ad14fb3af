"""skpro's distributions: one law a row, parameters by ``to_df`` with columns (variable, parameter)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from congruence.tasks.model_outputs.law import Array, Law, UnreadableOutputError, is_of, kinds, law, nearly_everywhere
from congruence.tasks.model_outputs.scipy_stats import APPROXIMATE


def read_skpro(found: Any, rows: int) -> Law | None:
    """A distribution of shape (rows, 1), also an empirical one and a mixture."""
    if not is_of(found, "skpro", "BaseDistribution"):
        return None
    if found.ndim == 2 and found.shape[1] != 1:
        raise UnreadableOutputError(
            f"skpro's {type(found).__name__} has {found.shape[1]} target variables "
            f"({', '.join(map(str, found.columns))}); predict one target at a time"
        )
    name = next((kind for kind in kinds(found) if kind in _READ or kind in _MADE_OF_OTHERS), None)
    exact = None
    if name in _MADE_OF_OTHERS:
        exact = _MADE_OF_OTHERS[name](found, rows)
    elif name is not None:
        exact = _READ[name](_Parameters(found, rows))
    return exact or _by_quantiles(found, rows)


class _Parameters:
    """The parameters of a distribution, one value a row."""

    def __init__(self, found: Any, rows: int) -> None:
        self.found, self.rows = found, rows

    def __getattr__(self, name: str) -> Array:
        values = np.asarray(getattr(self.found, name), dtype=np.float64)
        return np.broadcast_to(values[..., 0] if values.ndim == 2 else values, (self.rows,)).copy()


def _by_quantiles(found: Any, rows: int) -> Law:
    levels = nearly_everywhere()
    values = np.asarray(found.quantile(levels.tolist()), dtype=np.float64).reshape(rows, len(levels))
    note = f"skpro's {type(found).__name__} has {APPROXIMATE.format(len(levels))}"
    return law("quantiles", levels=levels, values=values).noted(note)


def _empirical(found: Any, rows: int) -> Law | None:
    if not hasattr(found.spl.index, "levels"):
        return None
    values = found.spl.iloc[:, 0].unstack(level=0).reindex(found.index).to_numpy(dtype=np.float64)
    if values.shape[0] != rows or np.isnan(values).any():
        return None
    if found.weights is None:
        return law("samples", values=values)
    weights = found.weights.unstack(level=0).reindex(found.index).to_numpy(dtype=np.float64)
    return law("weighted_samples", support=values, weights=weights / weights.sum(axis=1, keepdims=True))


def _mixture(found: Any, rows: int) -> Law | None:
    parts = [part[1] if isinstance(part, tuple) else part for part in found.distributions]
    read = tuple(inner for part in parts if (inner := read_skpro(part, rows)) is not None)
    shares = np.ones(len(parts)) if found.weights is None else np.asarray(found.weights, dtype=np.float64)
    return Law("mixture", {"weights": np.broadcast_to(shares / shares.sum(), (rows, len(parts)))}, read)


_MADE_OF_OTHERS: dict[str | None, Callable[[Any, int], Law | None]] = {"Empirical": _empirical, "Mixture": _mixture}

_READ: dict[str, Callable[[_Parameters], Law]] = {
    "Normal": lambda g: law("normal", loc=g.mu, scale=g.sigma),
    "Laplace": lambda g: law("laplace", loc=g.mu, scale=g.scale),
    "Logistic": lambda g: law("logistic", loc=g.mu, scale=g.scale),
    "TDistribution": lambda g: law("student_t", df=g.df, loc=g.mu, scale=g.sigma),
    "LogNormal": lambda g: law("log_normal", s=g.sigma, scale=np.exp(g.mu)),
    "Gamma": lambda g: law("gamma", a=g.alpha, scale=1.0 / g.beta),
    "Beta": lambda g: law("beta", a=g.alpha, b=g.beta),
    "Exponential": lambda g: law("gamma", a=np.ones(g.rows), scale=1.0 / g.rate),
    "Uniform": lambda g: law("uniform", loc=g.lower, scale=g.upper - g.lower),
    "TruncatedNormal": lambda g: law("truncated_normal", loc=g.mu, scale=g.sigma, lower=g.l_trunc, upper=g.r_trunc),
    "Poisson": lambda g: law("poisson", rate=g.mu),
    "NegativeBinomial": lambda g: law("negative_binomial", mean=g.mu, dispersion=1.0 / g.alpha),
    "Binomial": lambda g: law("binomial", n=g.n, p=g.p),
    "Delta": lambda g: law("deterministic", value=g.c),
}
